"""What the modules of a network call the initializers of an ONNX file.

Exporters of torch keep the names of parameters, except of matrices of products: they transpose these while they export,
and call them ``onnx::MatMul_123`` or ``val_95``. Of parameters that are equal they write one. Optimizers after them
join nodes. So each weight gets the names that follow from the nodes that read it: the part of a module that a node
multiplies by or adds, and the path of this module, which is in the metadata of the node [1]_, in its name
(``/encoder/layer.0/output/dense/MatMul``), or before the ``.bias`` that is added to the product.

A weight without a name is an error, and never left out.

.. [1] ``pkg.torch.onnx.name_scopes``, https://docs.pytorch.org/docs/stable/onnx_export.html.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mp_core.arrays import F32, Array

__all__ = ["NOT_QUANTIZED", "TORCH", "Graph", "Initializer", "Named", "Node", "RefusedError", "module_of", "names_of"]


class Node(NamedTuple):
    """A node of a graph.

    Attributes
    ----------
    kind : str
        The name of its operation; of one that other domains than ONNX' define, behind the domain and a point.
    name : str
    inputs, outputs : tuple of str
        Names of values.
    module : str or None
        The path of the module whose call it is a part of; None if the file does not say it.
    transposes : bool
        Whether it transposes its second operand or, if it is a Transpose, a matrix.
    """

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    module: str | None
    transposes: bool

    @property
    def result(self) -> str:
        """The first value that it computes."""
        return self.outputs[0]


class Initializer(NamedTuple):
    """A constant value of floats, which may be a weight."""

    shape: tuple[int, ...]
    read: Callable[[], Array]


@dataclass(frozen=True, slots=True)
class Graph:
    """What is read of a file.

    Attributes
    ----------
    by_torch : bool
        Whether it comes from an exporter of torch, which writes parameters that are equal once.
    by_paths : bool
        Whether names of nodes are paths: then parameters of the network itself have names without a point.
    signature : mapping of str to bool
        The names of parameters, buffers and constants as the exporter lists them -> whether folders hold them. Empty:
        there is no list.
    nodes : list of Node
    weights : dict of str to Initializer
        Those of floats.
    others : dict of str to tuple of int
        The shapes of all other initializers.
    files : dict of Path to ndarray of uint8
        The files beside it from which values were read, each mapped once.
    """

    by_torch: bool = False
    by_paths: bool = False
    signature: Mapping[str, bool] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    weights: dict[str, Initializer] = field(default_factory=dict)
    others: dict[str, tuple[int, ...]] = field(default_factory=dict)
    files: dict[Path, Array] = field(default_factory=dict)


class Named(NamedTuple):
    """What a name stands for: an initializer, or its transpose."""

    initializer: str
    transposed: bool


class RefusedError(ValueError):
    """Weights have no name, or are codes."""


class _Use(NamedTuple):
    """A node that reads an initializer, at which of its inputs, and whether transposed before."""

    node: Node
    position: int
    transposed: bool


class _Place(NamedTuple):
    """What an initializer is to a node that reads it.

    Attributes
    ----------
    name : str or None
        The name of a part of a module; None if the module is unknown.
    transposed : bool
        Whether it is the transpose of that part.
    is_matrix : bool
        Whether it is the matrix of a product.
    is_said : bool
        Whether the file has this name. Else it follows from the path of the node.
    """

    name: str | None
    transposed: bool
    is_matrix: bool = False
    is_said: bool = False


_MICROSOFT = "com.microsoft."
_PASSED = ("Identity", "Cast", "Transpose")
"""Operations behind which a weight is still the same one."""
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
"""Operation -> at which of its inputs it reads which part of its module.

Convolutions are not among them: exporters multiply their weights by those of the normalization behind them.
"""
_ADDED = {
    "Add": (0, 1),
    f"{_MICROSOFT}BiasGelu": (1,),
    f"{_MICROSOFT}FastGelu": (1,),
    f"{_MICROSOFT}SkipLayerNormalization": (4,),
    f"{_MICROSOFT}SkipSimplifiedLayerNormalization": (3,),
}
"""Operation -> at which of its inputs it may read what is added to a product."""
_PACKED = {
    f"{_MICROSOFT}Attention": (1, 2),
    f"{_MICROSOFT}PackedAttention": (1, 2),
    f"{_MICROSOFT}LongformerAttention": (1, 2),
    f"{_MICROSOFT}MultiHeadAttention": (3,),
    f"{_MICROSOFT}PackedMultiHeadAttention": (3,),
    f"{_MICROSOFT}DecoderMaskedMultiHeadAttention": (10,),
}
"""Operation -> at which of its inputs it reads the matrices or biases of several modules side by side."""
_KINDS = {*_PARTS, *_ADDED, *_PASSED, "Mul", "Div", "Sub", "Pow", "Sqrt", "ReduceMean", "Erf", "Tanh"}
TORCH = "pytorch", "onnxruntime.transformers"
"""The programs that write files of networks of torch."""
_JOINED = "fused "
"""How the names of some nodes begin that an optimizer has joined."""
_MADE_UP = re.compile(r"/|onnx::|ortshared_|_inlfunc_|FusedBack_|InsertedPrecisionFreeCast_|(val_)?\d+$")
"""How names begin that exporters and optimizers have made up."""
_CHANGED = re.compile(r"\w*Fusion_|reorder(_|$)")
"""How names begin of weights that an optimizer has multiplied by others, or laid out for a CPU."""
_TURNS = re.compile(r"(?<![a-z])(rotary|inv_freq|rope(?![a-z]))")
"""What is in the names of frequencies by which vectors turn. ``config.json`` says them; folders do not have them."""
_CALL = re.compile(r"_\d+(?=\.\w+$)")
"""What numbers the calls of one module."""
_CODED = re.compile(r"[Qq]uant|Integer|QLinear|Bits|Bnb4")
"""What is in the names of operations that read codes."""
_MASKED = -1e4
"""The largest number that hides a token, added to a score."""
_LISTED, _LONGEST = 20, 200
"""How many weights an error lists, and the most letters of a name."""
NOT_QUANTIZED = "expected floats: take the export that is not quantized"


def module_of(name: str) -> str | None:
    """Return the path of a module by the name of a node, such as ``/encoder/layer.0/output/dense/MatMul``."""
    path = name.removeprefix(_JOINED)
    if not path.startswith("/"):
        return None
    parts = path.strip("/").split("/")[:-1]
    while parts and re.sub(r"_\d+$", "", parts[-1]) in _KINDS:  # the name of a node that an optimizer has joined
        parts.pop()
    return ".".join(parts)


def names_of(graph: Graph) -> dict[str, Named]:
    """Return what each name of a weight stands for. Constants that are no weights have none.

    Raises
    ------
    RefusedError
        Weights have no name, or two have the same, or are codes of a quantization.
    """
    for node in graph.nodes:
        for name in node.inputs if _CODED.search(node.kind) else ():
            if prod(shape := graph.others.get(name, ())) > 1:
                told = f"initializer {name} of shape {shape} has codes, read by {node.kind} {node.name}"
                raise RefusedError(f"{told}; {NOT_QUANTIZED}")
    _add_zeros(graph)
    uses = _uses(graph)
    places = _places(graph, uses)
    found: dict[str, Named] = {}
    equal: set[tuple[Named, Named]] = set()
    lost: list[str] = []
    for name, weight in graph.weights.items():
        own = _is_own(graph, name)
        if own and not graph.signature.get(name, True):
            continue
        named = _names(graph, name, places[name], own)
        if _is_another(name, uses[name]) or (graph.by_torch and _is_shared(places[name])):
            lost.append(name)
        elif named:
            _add(graph, found, equal, name, named)
        elif not uses[name]:
            found[name] = Named(name, False)
        elif (places[name] or prod(weight.shape) > 1) and not _is_constant(name, weight, uses[name]):
            lost.append(name)
    if lost and not _all_found(graph, found):
        raise RefusedError(_without_names(graph, lost, uses))
    return found


def _add_zeros(graph: Graph) -> None:
    """Add the biases of zeros that torch's exporter lists as parameters and leaves out of products."""
    for node in graph.nodes:
        name, matrix = f"{node.module}.bias", graph.weights.get("".join(node.inputs[1:2]))
        if node.kind == "Gemm" and not any(node.inputs[2:]) and graph.signature.get(name) and matrix is not None:
            shape = matrix.shape[:1] if node.transposes else matrix.shape[1:]
            graph.weights.setdefault(name, Initializer(shape, partial(_zeros, matrix, shape)))


def _zeros(matrix: Initializer, shape: tuple[int, ...]) -> Array:
    return np.zeros(shape, matrix.read().dtype)


def _all_found(graph: Graph, found: Mapping[str, Named]) -> bool:
    """Whether every parameter that the exporter lists has been found, so that all other values follow from these."""
    kept = {name for name, is_kept in graph.signature.items() if is_kept}
    return bool(kept) and kept <= found.keys() | graph.others.keys()


def _is_own(graph: Graph, name: str) -> bool:
    """Whether a parameter has this name in its module, and not a value in the graph."""
    if name in graph.signature:
        return True
    may_be_short = graph.by_paths or not (graph.by_torch or graph.signature)
    return not _MADE_UP.match(name) and ("." in name or may_be_short)


def _uses(graph: Graph) -> defaultdict[str, list[_Use]]:
    """Return the nodes that read each initializer, also behind those that pass it on."""
    sources = {name: (name, False) for name in graph.weights}
    uses: defaultdict[str, list[_Use]] = defaultdict(list)
    for node in graph.nodes:
        for position, value in enumerate(node.inputs):
            if value not in sources:
                continue
            name, transposed = sources[value]
            if node.kind in _PASSED and (node.transposes or node.kind != "Transpose"):
                sources[node.result] = name, transposed ^ node.transposes
                if node.kind != "Identity" or not _is_own(graph, node.result):
                    continue
            uses[name].append(_Use(node, position, transposed))
    return uses


def _places(graph: Graph, uses: Mapping[str, Sequence[_Use]]) -> defaultdict[str, list[_Place]]:
    """Return what each initializer is to the nodes that read it as a part of a module."""
    stems = _stems_of_products(graph, uses)
    places: defaultdict[str, list[_Place]] = defaultdict(list)
    for name, found in uses.items():
        for use in found:
            place = _place(use, stems, name, len(graph.weights[name].shape))
            if place is not None:
                places[name].append(place)
    return places


def _stems_of_products(graph: Graph, uses: Mapping[str, Sequence[_Use]]) -> dict[str, str | None]:
    """Return the result of each product by an initializer -> how the names of matrix and bias begin, if that is known.

    The bias that is added to a product says it where the node does not, and where it has another stem than the
    module: ``in_proj_bias`` is beside ``in_proj_weight``.
    """
    every = (use for found in uses.values() for use in found)
    products = (use.node for use in every if use.node.kind in _PRODUCTS and use.position == 1)
    stems = {node.result: _stem(node) for node in products}
    for name, found in uses.items():
        if len(found) == 1 and name.endswith("bias") and _is_own(graph, name):
            node, position, _ = found[0]
            value = node.result if position == 2 else _augend(node, position)
            if value in stems and name.startswith(stems[value] or ""):
                stems[value] = name.removesuffix("bias")
    return stems


def _stem(node: Node) -> str | None:
    """Return how the names of the parts of a node's module begin."""
    return f"{node.module}." if node.module else node.module


def _augend(node: Node, position: int) -> str:
    """Return the value that a node adds its input at `position` to; nothing if it does not add there."""
    if position not in _ADDED.get(node.kind, ()):
        return ""
    return node.inputs[1 - position if node.kind == "Add" else 0] if len(node.inputs) > 1 else ""


def _place(use: _Use, stems: Mapping[str, str | None], name: str, axes: int) -> _Place | None:
    """Return what an initializer is to a node that reads it as a part of a module."""
    node, position, transposed = use
    part = _PARTS.get(node.kind, {}).get(position)
    stem = stems.get(node.result, _stem(node))
    if node.kind == "Identity":
        return _Place(node.result, transposed, is_said=True)
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


def _names(graph: Graph, name: str, places: Iterable[_Place], own: bool) -> dict[str, bool]:
    """Return the names of an initializer -> whether it is the transpose of what has this name.

    An initializer that has a name is as its module has it: a place where it is the transpose is another matrix. One
    that has none may be the matrix of a product, which exporters transpose. As something else it may be computed from
    the part of a module, as ``1 + weight`` is.
    """
    names = {name: False} if own else {}
    for place in places:
        if place.name is None or (own and place.transposed) or not (own or place.is_matrix or place.is_said):
            continue
        if graph.signature:
            is_another = place.name in graph.signature
        else:  # the path of the second call of the module dense ends in dense_1
            is_another = place.is_said or _CALL.sub("", place.name) not in names
        if is_another:
            names.setdefault(place.name, place.transposed)
    return names


def _is_shared(places: Sequence[_Place]) -> bool:
    """Whether several nodes read an initializer of which not all say in which module they are.

    Exporters write parameters that are equal once. The names of the others are in these nodes alone.
    """
    return len(places) > 1 and any(place.name is None for place in places)


def _is_another(name: str, uses: Iterable[_Use]) -> bool:
    """Whether an optimizer has made a weight of those of modules, so that no module has it."""
    return _CHANGED.match(name) is not None or any(use.position in _PACKED.get(use.node.kind, ()) for use in uses)


def _is_constant(name: str, weight: Initializer, uses: Sequence[_Use]) -> bool:
    """Whether values are known to be no weights: frequencies, masks, biases of zeros that an exporter has added."""
    if all(_TURNS.search(f"{name}.{use.node.module}") for use in uses):
        return True
    if _adds_nothing(weight, uses):
        return True
    if len(weight.shape) < 2 or {use.node.kind for use in uses} - {"Add", "Where"}:
        return False
    with np.errstate(over="ignore"):
        values = weight.read().astype(F32)
    return bool(((values == 0) | (values <= _MASKED)).all())


def _adds_nothing(weight: Initializer, uses: Sequence[_Use]) -> bool:
    """Whether values are zeros that are biases only: an exporter writes them where a module has no bias."""
    parts = {_PARTS.get(use.node.kind, {}).get(use.position) for use in uses}
    return parts == {"bias"} and not weight.read().any()


def _add(
    graph: Graph, found: dict[str, Named], equal: set[tuple[Named, Named]], initializer: str, names: Mapping[str, bool]
) -> None:
    """Add the names of an initializer; raise RefusedError if one is that of other values. Add pairs that are equal."""
    for name, transposed in names.items():
        new = Named(initializer, transposed)
        old = found.setdefault(name, new)
        if old != new and (old, new) not in equal:
            if not np.array_equal(_values(graph, old), _values(graph, new), equal_nan=True):
                raise RefusedError(f"the initializers {old.initializer} and {initializer} would both be {name}")
            equal.add((old, new))


def _values(graph: Graph, named: Named) -> Array:
    values = graph.weights[named.initializer].read()
    return values.T if named.transposed else values


def _without_names(graph: Graph, lost: Sequence[str], uses: Mapping[str, Sequence[_Use]]) -> str:
    """Return the message that lists weights without a name."""
    told = []
    for name in lost[:_LISTED]:
        node, others = uses[name][0].node, len(uses[name]) - 1
        reader = f"{node.kind} {node.name}"[:_LONGEST] + (f" and {others} others" if others else "")
        told.append(f"{name[:_LONGEST]} of shape {graph.weights[name].shape}, read by {reader}")
    more = f"; {len(lost) - _LISTED} more" if len(lost) > _LISTED else ""
    expected = "torch's export with optimize=False or do_constant_folding=False, before it is optimized or quantized"
    return f"{len(lost)} weights have no name that a module gives them; expected {expected}: {'; '.join(told)}{more}"
