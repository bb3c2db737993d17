"""Nodes with a constant matrix become layers: policies, quantization and files treat their matrices as any other.

Patterns (:mod:`mp_core.programs.patterns`) first bring products into one form, ``mp_core.dense``: the rows, a matrix of
shape (k, n), perhaps a bias, and the options `activation`, `inputs_scale` and `inputs_zero_point`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import I8, Array
from mp_core.arrays.dtypes import is_float
from mp_core.arrays.quantization import QuantizedArray
from mp_core.arrays.quantization.array import unpacked_codes
from mp_core.files.program import Node
from mp_core.layers import Dense, Embedding, Layer
from mp_core.layers.forms import Inputs
from mp_core.layers.matrix import MatrixLayer
from mp_core.policies.autocast.memory import frozen
from mp_core.policies.dtype_policies import DTypePolicy, get
from mp_core.policies.dtype_policies.map import policy_at
from mp_core.policies.dtype_policies.quantized import parse_quantized
from mp_core.policies.dtype_policies.schemes import Scheme

__all__ = [
    "CODES",
    "MAKERS",
    "Call",
    "Constant",
    "dense",
    "embedding",
    "frozen",
    "is_codes",
    "is_matrix",
    "policy_for",
    "set_codes",
    "weighted",
]

Constant = Callable[[Any], Any]
"""Returns the value of an argument if it is constant, else None."""


class Call(NamedTuple):
    """A call of a layer in place of a node."""

    layer: Layer
    arguments: tuple[Any, ...]


Maker = Callable[..., Call | None]
MAKERS: dict[str, Maker] = {}
"""Operator -> ``maker(node, constant, **options)``, where options are the name and the policy of the layer.

It returns None if the operator's function must compute the node.
"""
CODES: dict[str, Callable[..., QuantizedArray | Array]] = {}
"""Operator -> function that returns what a node with constant arguments stands for: a quantized array, or floats."""


def weighted(*names: str) -> Callable[[Maker], Maker]:
    """Register a maker for the operators `names`."""

    def register(maker: Maker) -> Maker:
        MAKERS.update(dict.fromkeys(names, maker))
        return maker

    return register


def is_matrix(x: Any) -> bool:
    """Return whether a constant is a matrix of floats, or of codes that a layer can store."""
    if isinstance(x, QuantizedArray):
        return len(x.shape) == 2 and is_codes(x)
    return isinstance(x, np.ndarray) and x.ndim == 2 and is_float(x.dtype) and x.size > 0


def is_codes(q: QuantizedArray) -> bool:
    """Return whether a matrix (k, n) has codes of 8 or 4 bits, and scales that layers have."""
    name = q.dtype.name.removeprefix("u")
    per_line = q.group_size is None and q.axis in ((), (1,))
    in_groups = q.group_size is not None and q.axis == (1,)
    return (name == "int8" and per_line) or (name == "int4" and (per_line or in_groups) and q.axis == (1,))


@weighted("mp_core.dense")
def _dense_of(node: Node, constant: Constant, *, name: str, dtype: Any) -> Call:
    """Return the call of a Dense for a product with a constant matrix of shape (k, n)."""
    x, matrix, bias = (*node.arguments, None)[:3]
    layer = dense(constant(matrix).T, constant(bias), name=name, dtype=dtype, **node.options)
    return Call(layer, (x,))


@weighted("mp_core.embedding")
def _embedding_of(node: Node, constant: Constant, *, name: str, dtype: Any) -> Call:
    """Return the call of an Embedding for rows of a constant table."""
    indices, table = node.arguments
    return Call(embedding(constant(table), name=name, dtype=dtype), (indices,))


def dense(
    lines: Any,
    bias: Array | None,
    *,
    name: str,
    dtype: Any,
    activation: str | None = None,
    inputs: Inputs | None = None,
) -> Dense:
    """Return a layer with a matrix of shape (outputs, inputs), whose memory it shares; `dtype` None: that of `lines`.

    Codes are stored as they are. With `inputs`, one scale and one zero point, its inputs are quantized by these.
    """
    n, k = lines.shape
    layer = Dense(n, activation, bias is not None, "zeros", name=name, dtype=policy_for(lines, dtype))
    layer.build((None, k))
    if isinstance(lines, QuantizedArray):
        set_codes(layer, lines, inputs)
    else:
        layer.set_matrix(frozen(lines))
    if layer.bias is not None and bias is not None:
        layer.bias.assign(bias.reshape(-1))
    return layer


def set_codes(layer: MatrixLayer, lines: QuantizedArray, inputs: Inputs | None) -> None:
    """Store codes of shape (outputs, inputs) in a layer, whose inputs one scale and one zero point may quantize."""
    codes, k = signed(lines), lines.shape[1]
    scheme = Scheme.of(codes, "float" if inputs is None else "fixed")
    named = parse_quantized(f"{scheme}_from_{_source(layer)}")
    if inputs is not None:
        codes = replace(codes, scale=codes.scale * inputs.scale)
        inputs = Inputs(np.full(k, inputs.scale, np.float32), np.full(k, inputs.zero_point, np.int8))
    layer.set_matrix(codes, inputs, policy=named)


def embedding(table: Any, *, name: str, dtype: Any) -> Embedding:
    """Return a layer that looks up rows of a table."""
    rows, columns = table.shape
    layer = Embedding(rows, columns, embeddings_initializer="zeros", name=name, dtype=policy_for(table, dtype))
    layer.build()
    if isinstance(table, QuantizedArray):
        codes = signed(table)
        layer.set_matrix(codes, policy=parse_quantized(f"{Scheme.of(codes)}_from_{_source(layer)}"))
    else:
        layer.set_matrix(frozen(table))
    return layer


def policy_for(weights: Any, dtype: Any) -> DTypePolicy:
    """Return the policy of a layer; if the model has none, that of the type of its weights."""
    if dtype is None:
        dtype = "float32" if isinstance(weights, QuantizedArray) else weights.dtype.name
    return get(dtype)


def _source(layer: Layer) -> str:
    """Return the name of the policy of a layer without quantization."""
    return policy_at(layer.dtype_policy, layer.path).name.rpartition("_from_")[2]


def signed(q: QuantizedArray) -> QuantizedArray:
    """Return the same values in int8 or int4, with zero points that are smaller by the same number as the codes."""
    if not q.dtype.name.startswith("u"):
        return q
    half = 8 if q.dtype.name == "uint4" else 128
    zero = np.full(q.scale.shape, -half, np.int32) if q.zero_point is None else q.zero_point - np.int32(half)
    codes = (unpacked_codes(q).astype(np.int16) - half).astype(I8)
    return QuantizedArray(codes if half == 128 else codes.astype(Scheme.parse("int4/8").dtype), q.scale,
                          zero if zero.any() else None, q.axis, q.group_size)  # fmt: skip
