"""Find the names of parameters for the initializers of an ONNX file.

Exporters of torch keep the names of parameters, with exceptions. They transpose the matrices of products and call them
``onnx::MatMul_123`` or ``val_95``. They write equal parameters once. Optimizers then fuse nodes. So the names of a
weight are derived from the nodes that read it:

name of a weight = path of the module + part of the module (weight or bias)

The part follows from the operation and the position of the input. The path is in the metadata of the node [1]_, in the
node's name (``/encoder/layer.0/output/dense/MatMul``), or in the name of the bias that is added to the product.

A weight without a name raises an error; it is never left out.

.. [1] ``pkg.torch.onnx.name_scopes``, https://docs.pytorch.org/docs/stable/onnx_export.html.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np

from mp_core.arrays import F32, Array

__all__ = ["NOT_QUANTIZED", "TORCH", "Graph", "Initializer", "Named", "Node", "RefusedError", "module_of", "names_of"]


class Node(NamedTuple):
    """A node of a graph."""

    kind: str  # the name of its operation; for operations of other domains than ONNX's, ``DOMAIN.NAME``
    name: str
    inputs: tuple[str, ...]  # inputs, outputs: names of values
    outputs: tuple[str, ...]
    module: str | None  # the path of the module to whose call it belongs; None if it is unknown
    transposes: bool  # whether it transposes its second operand or, if it is a Transpose, a matrix

    @property
    def result(self) -> str:
        """The first value that it computes."""
        return self.outputs[0]


class Initializer(NamedTuple):
    """A constant array of floats, which may be a weight."""

    shape: tuple[int, ...]
    read: Callable[[], Array]


@dataclass(frozen=True, slots=True)
class Graph:
    """The parts of a file from which names are derived."""

    by_torch: bool = False  # whether an exporter of torch wrote it; it writes equal parameters once
    # whether names of nodes are paths: then parameters of the network itself have names without a point
    by_paths: bool = False
    # The exporter's list of parameters, buffers and constants: name -> whether checkpoints store it. Empty: the
    # file has no list.
    signature: Mapping[str, bool] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    weights: dict[str, Initializer] = field(default_factory=dict)  # the initializers that are floats
    others: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the shapes of all other initializers


class Named(NamedTuple):
    """The value of a named weight: an initializer, or its transpose."""

    initializer: str
    transposed: bool


class RefusedError(ValueError):
    """Weights have no name, or are quantized."""


class _Use(NamedTuple):
    """A node that reads an initializer, the position of the input, and whether the value was transposed before."""

    node: Node
    position: int
    transposed: bool


class _Place(NamedTuple):
    """The part of a module that an initializer is, according to one node that reads it."""

    name: str | None  # the name of the part; None if the module is unknown
    transposed: bool  # whether the initializer is the transpose of that part
    is_matrix: bool = False  # whether it is the matrix of a product
    is_stated: bool = False  # Whether the file has this name. Otherwise it is derived from the path of the node.


_MICROSOFT = "com.microsoft."
_PASS_THROUGH = ("Identity", "Cast", "Transpose")
"""Operations whose result is the same weight."""
_PRODUCTS = ("MatMul", "Gemm", f"{_MICROSOFT}FusedMatMul", f"{_MICROSOFT}FusedGemm", f"{_MICROSOFT}GemmFastGelu")
_PARTS = {
    **{kind: {1: "weight", 2: "bias"} for kind in _PRODUCTS},
    "Gather": {0: "weight"},
    "LayerNormalization": {1: "weight", 2: "bias"},
    "RMSNormalization": {1: "weight"},
    "SimplifiedLayerNormalization": {1: "weight"},
    f"{_MICROSOFT}SkipLayerNormalization": {2: "weight", 3: "bias"},
    f"{_MICROSOFT}SkipSimplifiedLayerNormalization": {2: "weight"},
}
"""Operation -> position of an input -> the part of the module that it reads there.

Convolutions are missing, because exporters multiply their weights by those of the normalization that follows.
"""
_BIAS_INPUTS = {
    "Add": (0, 1),
    f"{_MICROSOFT}BiasGelu": (1,),
    f"{_MICROSOFT}FastGelu": (1,),
    f"{_MICROSOFT}SkipLayerNormalization": (4,),
    f"{_MICROSOFT}SkipSimplifiedLayerNormalization": (3,),
}
"""Operation -> positions of inputs that may be the bias of a product."""
_SIDE_BY_SIDE = {
    f"{_MICROSOFT}Attention": (1, 2),
    f"{_MICROSOFT}PackedAttention": (1, 2),
    f"{_MICROSOFT}LongformerAttention": (1, 2),
    f"{_MICROSOFT}MultiHeadAttention": (3,),
    f"{_MICROSOFT}PackedMultiHeadAttention": (3,),
    f"{_MICROSOFT}DecoderMaskedMultiHeadAttention": (10,),
}
"""Operation -> positions of inputs that are the matrices or biases of several modules side by side."""
_KINDS = {*_PARTS, *_BIAS_INPUTS, *_PASS_THROUGH, "Mul", "Div", "Sub", "Pow", "Sqrt", "ReduceMean", "Erf", "Tanh"}
TORCH = "pytorch", "onnxruntime.transformers"
"""The programs that write files of torch networks."""
_FUSED = "fused "
"""Prefix of the names of some nodes that an optimizer fused."""
_GENERATED = re.compile(r"/|onnx::|ortshared_|_inlfunc_|FusedBack_|InsertedPrecisionFreeCast_|(val_)?\d+$")
"""Beginnings of names that exporters and optimizers generate."""
_REWRITTEN = re.compile(r"\w*Fusion_|reorder(_|$)")
"""Beginnings of the names of weights that an optimizer multiplied by others, or reordered for a CPU."""
_ROTARY = re.compile(r"(?<![a-z])(rotary|inv_freq|rope(?![a-z]))")
"""Parts of the names of rotary frequencies. They follow from ``config.json``; checkpoints do not store them."""
_CALL = re.compile(r"_\d+(?=\.\w+$)")
"""The number of a call of a module, in the path of the call."""
_QUANTIZED = re.compile(r"[Qq]uant|Integer|QLinear|Bits|Bnb4")
"""Parts of the names of operations that read quantized weights."""
_MASKED = -1e4
"""The largest number that is used to mask a token when added to a score."""
_LISTED, _LONGEST = 20, 200
"""How many weights an error lists, and the most characters of a name in it."""
NOT_QUANTIZED = "expected floats: take the export that is not quantized"


def module_of(name: str) -> str | None:
    """Return the path of a module from the name of a node, such as ``/encoder/layer.0/output/dense/MatMul``."""
    path = name.removeprefix(_FUSED)
    if not path.startswith("/"):
        return None
    parts = path.strip("/").split("/")[:-1]
    while parts and re.sub(r"_\d+$", "", parts[-1]) in _KINDS:  # the name of a node that an optimizer fused
        parts.pop()
    return ".".join(parts)


def names_of(graph: Graph) -> dict[str, Named]:
    """Return the names of weights and their values. Constants that are not weights get no name.

    A weight without a name, a quantized one, and two weights with the same name raise RefusedError.
    """
    for node in graph.nodes:
        for name in node.inputs if _QUANTIZED.search(node.kind) else ():
            if prod(shape := graph.others.get(name, ())) > 1:
                reason = f"initializer {name} of shape {shape} has codes, read by {node.kind} {node.name}"
                raise RefusedError(f"{reason}; {NOT_QUANTIZED}")
    _add_zeros(graph)
    uses = _uses(graph)
    places = _places(graph, uses)
    found: dict[str, Named] = {}
    equal: set[tuple[Named, Named]] = set()
    unnamed: list[str] = []
    for name, weight in graph.weights.items():
        is_parameter = _is_parameter(graph, name)
        if is_parameter and not graph.signature.get(name, True):
            continue  # a buffer that checkpoints do not store
        named = _names(graph, name, places[name], is_parameter)
        if _is_derived(name, uses[name]) or (graph.by_torch and _is_shared(places[name])):
            unnamed.append(name)
        elif named:
            _add(graph, found, equal, name, named)
        elif not uses[name]:
            found[name] = Named(name, False)
        elif (places[name] or prod(weight.shape) > 1) and not _is_constant(name, weight, uses[name]):
            unnamed.append(name)
    # Derived weights need no name if all parameters that the exporter lists were found.
    if unnamed and not _all_found(graph, found):
        raise RefusedError(_unnamed_error(graph, unnamed, uses))
    return found


def _add_zeros(graph: Graph) -> None:
    """Add biases of zeros: torch's exporter lists them as parameters but omits them from products."""
    for node in graph.nodes:
        name, matrix = f"{node.module}.bias", graph.weights.get("".join(node.inputs[1:2]))
        if node.kind == "Gemm" and not any(node.inputs[2:]) and graph.signature.get(name) and matrix is not None:
            shape = matrix.shape[:1] if node.transposes else matrix.shape[1:]
            graph.weights.setdefault(name, Initializer(shape, partial(_zeros, matrix, shape)))


def _zeros(matrix: Initializer, shape: tuple[int, ...]) -> Array:
    return np.zeros(shape, matrix.read().dtype)


def _all_found(graph: Graph, found: Mapping[str, Named]) -> bool:
    """Return whether every parameter in the exporter's list was found; then all other values are derived from them."""
    kept = {name for name, is_kept in graph.signature.items() if is_kept}
    return bool(kept) and kept <= found.keys() | graph.others.keys()


def _is_parameter(graph: Graph, name: str) -> bool:
    """Return whether a name is that of a parameter in its module, not one that an exporter generated."""
    if name in graph.signature:
        return True
    may_be_short = graph.by_paths or not (graph.by_torch or graph.signature)
    return not _GENERATED.match(name) and ("." in name or may_be_short)


def _uses(graph: Graph) -> defaultdict[str, list[_Use]]:
    """Return the nodes that read each initializer, directly or after `_PASS_THROUGH` nodes."""
    sources = {name: (name, False) for name in graph.weights}
    uses: defaultdict[str, list[_Use]] = defaultdict(list)
    for node in graph.nodes:
        for position, value in enumerate(node.inputs):
            if value not in sources:
                continue
            name, transposed = sources[value]
            if node.kind in _PASS_THROUGH and (node.transposes or node.kind != "Transpose"):
                sources[node.result] = name, transposed ^ node.transposes
                if node.kind != "Identity" or not _is_parameter(graph, node.result):
                    continue
            uses[name].append(_Use(node, position, transposed))
    return uses


def _places(graph: Graph, uses: Mapping[str, Sequence[_Use]]) -> defaultdict[str, list[_Place]]:
    """Return for each initializer the parts of modules that it is, according to the nodes that read it."""
    stems = _stems_of_products(graph, uses)
    places: defaultdict[str, list[_Place]] = defaultdict(list)
    for name, found in uses.items():
        for use in found:
            place = _place(use, stems, name, len(graph.weights[name].shape))
            if place is not None:
                places[name].append(place)
    return places


def _stems_of_products(graph: Graph, uses: Mapping[str, Sequence[_Use]]) -> dict[str, str | None]:
    """Return result of a product -> stem of the names of its matrix and bias, or None if it is unknown.

    The stem follows from the path of the node. If the added bias has a name, the stem follows from that instead:
    ``in_proj_bias`` belongs to ``in_proj_weight``.
    """
    every = (use for found in uses.values() for use in found)
    products = (use.node for use in every if use.node.kind in _PRODUCTS and use.position == 1)
    stems = {node.result: _stem(node) for node in products}
    for name, found in uses.items():
        if len(found) == 1 and name.endswith("bias") and _is_parameter(graph, name):
            node, position, _ = found[0]
            value = node.result if position == 2 else _augend(node, position)
            if value in stems and name.startswith(stems[value] or ""):
                stems[value] = name.removesuffix("bias")
    return stems


def _stem(node: Node) -> str | None:
    """Return the stem of the names of the parts of a node's module; None if the module is unknown."""
    return f"{node.module}." if node.module else node.module


def _augend(node: Node, position: int) -> str:
    """Return the value to which a node adds its input at `position`; "" if it does not add that input."""
    if position not in _BIAS_INPUTS.get(node.kind, ()):
        return ""
    return node.inputs[1 - position if node.kind == "Add" else 0] if len(node.inputs) > 1 else ""


def _place(use: _Use, stems: Mapping[str, str | None], name: str, axes: int) -> _Place | None:
    """Return the part of a module that an initializer is to one node; None if it is none."""
    node, position, transposed = use
    part = _PARTS.get(node.kind, {}).get(position)
    stem = stems.get(node.result, _stem(node))
    if node.kind == "Identity":
        return _Place(node.result, transposed, is_stated=True)
    if node.kind in _PRODUCTS and part == "weight":
        return _Place(_joined(stem, part), not transposed ^ node.transposes, is_matrix=True) if axes == 2 else None
    if part is not None:
        return _Place(_joined(stem, part), transposed)
    value = _augend(node, position)
    if axes == 1 and value in stems and (node.kind != "Add" or node.module is None or _stem(node) == stems[value]):
        return _Place(_joined(stems[value], "bias"), transposed)
    norm = node.module if node.kind == "Mul" and name.endswith(".weight") and axes == 1 else None
    return None if norm is None or "norm" not in norm.rpartition(".")[2] else _Place(f"{norm}.weight", transposed)


def _joined(stem: str | None, part: str) -> str | None:
    return None if stem is None else f"{stem}{part}"


def _names(graph: Graph, name: str, places: Iterable[_Place], is_parameter: bool) -> dict[str, bool]:
    """Return the names of an initializer -> whether it is the transpose of the parameter with that name.

    If the initializer has the name of a parameter, it is not transposed: ignore places where it would be. If it has
    none, accept only matrices of products (exporters transpose these) and names that the file has: other values may be
    computed from a parameter, such as ``1 + weight``.
    """
    names = {name: False} if is_parameter else {}
    for place in places:
        if place.name is None or (is_parameter and place.transposed):
            continue
        if not (is_parameter or place.is_matrix or place.is_stated):
            continue
        if graph.signature:
            is_another = place.name in graph.signature
        else:  # the path of the second call of the module dense ends in dense_1
            is_another = place.is_stated or _CALL.sub("", place.name) not in names
        if is_another:
            names.setdefault(place.name, place.transposed)
    return names


def _is_shared(places: Sequence[_Place]) -> bool:
    """Return whether several nodes read an initializer and the module of one of them is unknown.

    Exporters write equal parameters once; then the names of the other parameters follow only from these nodes.
    """
    return len(places) > 1 and any(place.name is None for place in places)


def _is_derived(name: str, uses: Iterable[_Use]) -> bool:
    """Return whether an optimizer computed a weight from those of modules, so that no module has it."""
    return _REWRITTEN.match(name) is not None or any(
        use.position in _SIDE_BY_SIDE.get(use.node.kind, ()) for use in uses
    )


def _is_constant(name: str, weight: Initializer, uses: Sequence[_Use]) -> bool:
    """Return whether values are no weights: rotary frequencies, masks, or biases of zeros that an exporter added."""
    if all(_ROTARY.search(f"{name}.{use.node.module}") for use in uses):
        return True
    if _adds_nothing(weight, uses):
        return True
    if len(weight.shape) < 2 or {use.node.kind for use in uses} - {"Add", "Where"}:
        return False
    with np.errstate(over="ignore"):
        values = weight.read().astype(F32)
    return bool(((values == 0) | (values <= _MASKED)).all())


def _adds_nothing(weight: Initializer, uses: Sequence[_Use]) -> bool:
    """Return whether all values are zeros and only biases: an exporter writes these if a module has no bias."""
    parts = {_PARTS.get(use.node.kind, {}).get(use.position) for use in uses}
    return parts == {"bias"} and not weight.read().any()


def _add(
    graph: Graph, found: dict[str, Named], equal: set[tuple[Named, Named]], initializer: str, names: Mapping[str, bool]
) -> None:
    """Add the names of an initializer to `found`; raise RefusedError if a name has other values already.

    `equal` caches pairs whose values were compared.
    """
    for name, transposed in names.items():
        new = Named(initializer, transposed)
        old = found.setdefault(name, new)
        if old != new and (old, new) not in equal:
            if not np.array_equal(_values(graph, old), _values(graph, new), equal_nan=True):
                raise RefusedError(f"the initializers {old.initializer} and {initializer} would both be named {name}")
            equal.add((old, new))


def _values(graph: Graph, named: Named) -> Array:
    values = graph.weights[named.initializer].read()
    return values.T if named.transposed else values


def _unnamed_error(graph: Graph, unnamed: Sequence[str], uses: Mapping[str, Sequence[_Use]]) -> str:
    """Return the error text that lists weights without a name."""
    listed = []
    for name in unnamed[:_LISTED]:
        node, others = uses[name][0].node, len(uses[name]) - 1
        reader = f"{node.kind} {node.name}"[:_LONGEST] + (f" and {others} others" if others else "")
        listed.append(f"{name[:_LONGEST]} of shape {graph.weights[name].shape}, read by {reader}")
    more = f"; {len(unnamed) - _LISTED} more" if len(unnamed) > _LISTED else ""
    expected = "torch's export with optimize=False or do_constant_folding=False, before it is optimized or quantized"
    return (
        f"{len(unnamed)} weights have no name that a module gives them; expected {expected}: {'; '.join(listed)}{more}"
    )
