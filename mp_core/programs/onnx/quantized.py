"""Quantized operators. Codes are integers q with a scale and a zero point: ``x ~ scale * (q - zero_point)``.

Operators on codes (QLinearConv ...) are written as operators on floats between DequantizeLinear and QuantizeLinear.
Patterns then find the products whose operands are both quantized: layers multiply these codes exactly, in int32.
"""

from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import Array, dtypes
from mp_core.arrays.dtypes import is_float
from mp_core.arrays.quantization import QuantizedArray
from mp_core.files.onnx.tensors import type_name
from mp_core.files.program import Node
from mp_core.layers.forms import Inputs
from mp_core.programs.patterns import Match, pattern
from mp_core.programs.registry import operator
from mp_core.programs.weights import CODES, is_matrix

# ---- codes and floats


def codes_of(
    q: Any, scale: Any, zero: Any = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> QuantizedArray | Array:
    """Return the quantized array of constant codes; floats if no product reads such codes."""
    is_known = q.dtype.name in ("int8", "uint8", "int4", "uint4") and q.ndim > 1 and not output_dtype
    if not is_known or scale.dtype.name != "float32":
        return dequantize_linear(q, scale, zero, axis=axis, block_size=block_size, output_dtype=output_dtype)
    return QuantizedArray.from_onnx(q, scale, zero, axis, block_size)


CODES["DequantizeLinear"] = codes_of


@operator("DequantizeLinear", "com.microsoft.DequantizeLinear")
def dequantize_linear(
    q: Any, scale: Any, zero: Any = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Any:
    """Return ``(q - zero) * scale`` in the type of the scale."""
    kind = type_name(output_dtype) if output_dtype else scale.dtype.name
    x = ops.cast(q, "float32")
    if zero is not None:
        x = ops.subtract(x, _aligned(ops.cast(zero, "float32"), q, axis, block_size))
    return ops.cast(ops.multiply(x, _aligned(ops.cast(scale, "float32"), q, axis, block_size)), kind)


@operator("QuantizeLinear", "com.microsoft.QuantizeLinear")
def quantize_linear(
    x: Any,
    scale: Any,
    zero: Any = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    saturate: int = 1,
    precision: int = 0,
) -> Any:
    """Return ``round(x / scale) + zero``, clipped to the type of `zero` or `output_dtype`, default uint8."""
    del precision  # divisions are computed in float32
    kind = zero.dtype if zero is not None else dtypes.dtype_of(type_name(output_dtype or 2))
    scaled = ops.divide(ops.cast(x, "float32"), _aligned(ops.cast(scale, "float32"), x, axis, block_size))
    if is_float(kind):
        return ops.cast(scaled, kind, saturate=bool(saturate))
    q = ops.round(scaled)
    if zero is not None:
        q = ops.add(q, _aligned(ops.cast(zero, "float32"), x, axis, block_size))
    return in_codes(q, kind)


def in_codes(q: Any, kind: Any) -> Any:
    """Return integers, stored as floats, as codes of a type: clipped to its range."""
    info = dtypes.integer_info(kind)
    return ops.cast(ops.clip(q, info.min, info.max), kind)


def _aligned(part: Any, x: Any, axis: int, block: int) -> Any:
    """Return scales or zero points in a shape that broadcasts against `x`."""
    if part.size == 1:
        return part.reshape(1) if part.ndim else part
    if block:
        repeated = ops.repeat(part, block, axis)
        return repeated[(*(slice(None),) * (axis % x.ndim), slice(x.shape[axis]))]
    return part.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Any) -> tuple[Any, Any, Any]:
    """Return uint8 codes, their scale and their zero point, for the range of all elements with 0.

    Samples of a batch have one range, so the codes of a sample depend on the others.
    """
    axes = {"keepdims": True}
    low, high = ops.minimum(ops.min(x, **axes), 0.0), ops.maximum(ops.max(x, **axes), 0.0)
    scale = ops.divide(ops.subtract(high, low), 255.0)
    scale = ops.where(ops.equal(scale, 0.0), 1.0, scale)
    zero = ops.clip(ops.round(ops.divide(ops.negative(low), scale)), 0, 255)
    codes = in_codes(ops.add(ops.round(ops.divide(x, scale)), zero), np.dtype(np.uint8))
    return codes, scale.reshape(()), ops.cast(zero, "uint8").reshape(())


# ---- products of integers


@operator("MatMulInteger")
def matmul_integer(a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    """Return ``(a - a_zero) @ (b - b_zero)`` in int32, exact."""
    return ops.matmul(_shifted(a, a_zero, -2), _shifted(b, b_zero, -1), out_dtype="int32")


def _shifted(q: Any, zero: Any, axis: int) -> Any:
    """Return codes with their zero points as an operand of products: one zero point, or one for each row or column."""
    if zero is None:
        return q
    if zero.size > 1 and zero.ndim == 1:
        zero = ops.expand_dims(zero, -1 if axis == -2 else 0)
    return QuantizedArray(q, np.float32(1), zero, () if zero.size == 1 else (axis % q.ndim,))


# ---- pairs of quantization and dequantization


@pattern("DequantizeLinear(QuantizeLinear(x, SCALE, ZERO), SCALE2, ZERO2)", is_shared=True)
def rounded_pair(m: Match) -> Node | None:
    """Round floats to the numbers that codes stand for, without the codes."""
    same = all(np.array_equal(m[name], m[f"{name}2"]) for name in ("SCALE", "ZERO"))
    zero = np.asarray(m["ZERO"])
    fits = same and np.size(m["SCALE"]) == 1 and zero.dtype.name in ("int8", "uint8") and not _has_blocks(m)
    arguments = m.node("QuantizeLinear").arguments[1:3]
    return m.instead("mp_core.rounded_to_codes", m["x"], *arguments) if fits else None


def _has_blocks(m: Match) -> bool:
    return any(node.options.get("block_size") or node.options.get("output_dtype") for node in m.nodes)


@operator("mp_core.rounded_to_codes")
def rounded_to_codes(x: Any, scale: Any, zero: Any) -> Any:
    """Return the numbers next to `x` that codes with one scale stand for."""
    least, most = (float(n) - float(zero) for n in (dtypes.integer_info(zero.dtype).min,
                                                    dtypes.integer_info(zero.dtype).max))  # fmt: skip
    return ops.multiply(ops.clip(ops.round(ops.divide(x, scale)), least, most), scale)


@pattern("mp_core.dense(mp_core.rounded_to_codes(x, SCALE, ZERO), W)", is_shared=True)
def product_of_codes(m: Match) -> Node | None:
    """Multiply codes of int8 exactly: the layer quantizes its inputs by the fixed scale."""
    node = m.last
    if not isinstance(m["W"], QuantizedArray) or "int8" not in m["W"].dtype.name or "inputs" in node.options:
        return None
    zero = int(m["ZERO"].reshape(())) - (128 if m["ZERO"].dtype == np.uint8 else 0)
    inputs = Inputs(np.float32(m["SCALE"]).reshape(()), np.int8(zero))
    return m.replaced(node, (m["x"], *node.arguments[1:]), inputs=inputs)


# ---- operators on codes, written as operators on floats


def _dequantized(m: Match, q: Any, scale: Any, zero: Any, axis: int = 1) -> tuple[Any, list[Node]]:
    """Return the value that codes stand for, and the node that computes it."""
    found = [m.graph.constant(x) for x in (q, scale, zero)]
    if found[0] is not None and found[1] is not None:
        name = f"{q.name}.dequantized"
        return m.graph.add_constant(name, codes_of(found[0], found[1], found[2], axis=axis)), []
    node = m.before("DequantizeLinear", q, scale, zero, label=f"{q.name}", axis=axis)
    return m.value(node), [node]


def _on_floats(m: Match, name: str, operands: list[tuple[Any, ...]], y: tuple[Any, ...], *more: Any, **options: Any
               ) -> list[Node]:  # fmt: skip
    """Return the nodes of an operator on floats in place of the last one, which is on codes."""
    arguments, nodes = [], []
    for operand in operands:
        value, before = _dequantized(m, *operand)
        arguments.append(value)
        nodes += before
    result = m.before(name, *arguments, *more, **options)
    return [*nodes, result, m.instead("QuantizeLinear", m.value(result), *y)]


@pattern("QLinearMatMul(a, sa, za, b, sb, zb, sy, zy)")
def qlinear_matmul(m: Match) -> list[Node]:
    """Return the product of codes."""
    a, b = (tuple(m[f"{part}{name}"] for part in ("", "s", "z")) for name in "ab")
    return _on_floats(m, "MatMul", [a, b], (m["sy"], m["zy"]))


@pattern("QLinearConv(x, sx, zx, w, sw, zw, sy, zy)")
def qlinear_conv(m: Match) -> list[Node]:
    """Return the convolution of codes; the scale of its int32 bias is the product of both scales."""
    x, w = (tuple(m[f"{part}{name}"] for part in ("", "s", "z")) for name in "xw")
    bias = m.last.arguments[8:9]
    more = []
    if bias and bias[0] is not None:
        codes, scales = m.graph.constant(bias[0]), [m.graph.constant(m[name]) for name in ("sx", "sw")]
        floats = (codes * np.float64(scales[0]) * np.float64(scales[1])).astype(np.float32)
        more = [m.graph.add_constant(f"{bias[0].name}.dequantized", floats)]
    return _on_floats(m, "Conv", [x, (*w, 0)], (m["sy"], m["zy"]), *more, **m.last.options)


_OF_TWO = {"QLinearAdd": "Add", "QLinearMul": "Mul"}
_OF_ONE = {"QLinearSigmoid": "Sigmoid", "QLinearLeakyRelu": "LeakyRelu", "QLinearSoftmax": "Softmax",
           "QLinearGlobalAveragePool": "GlobalAveragePool", "QLinearAveragePool": "AveragePool"}  # fmt: skip


@pattern(*(f"com.microsoft.{name}(a, sa, za, b, sb, zb, sy)" for name in _OF_TWO))
def qlinear_of_two(m: Match) -> list[Node]:
    """Return a function of two arrays of codes."""
    a, b = (tuple(m[f"{part}{name}"] for part in ("", "s", "z")) for name in "ab")
    return _on_floats(m, _OF_TWO[_name(m)], [a, b], m.last.arguments[6:8])


@pattern(*(f"com.microsoft.{name}(x, sx, zx, sy)" for name in _OF_ONE))
def qlinear_of_one(m: Match) -> list[Node] | None:
    """Return a function of an array of codes."""
    options = {name: x for name, x in m.last.options.items() if name not in ("channels_last", "opset")}
    x = tuple(m[name] for name in ("x", "sx", "zx"))
    return _on_floats(m, _OF_ONE[_name(m)], [x], m.last.arguments[3:5], **options)


@pattern("com.microsoft.QLinearConcat(sy, zy)")
def qlinear_concat(m: Match) -> list[Node]:
    """Return codes side by side, in one scale."""
    parts = m.last.arguments[2:]
    operands = [tuple(parts[i : i + 3]) for i in range(0, len(parts), 3)]
    return _on_floats(m, "Concat", operands, (m["sy"], m["zy"]), **m.last.options)


@pattern("com.microsoft.QGemm(a, sa, za, b, sb, zb)")
def qgemm(m: Match) -> list[Node] | None:
    """Return the product of codes, with an int32 bias whose scale is the product of both scales."""
    a, b = (tuple(m[f"{part}{name}"] for part in ("", "s", "z")) for name in "ab")
    c, sy, zy = (*m.last.arguments[6:], None, None, None)[:3]
    more = []
    if c is not None:
        scales = [np.float64(m.graph.constant(m[name])) for name in ("sa", "sb")]
        floats = (m.graph.constant(c) * scales[0] * scales[1]).astype(np.float32)
        more = [m.graph.add_constant(f"{c.name}.dequantized", floats)]
    nodes = _on_floats(m, "Gemm", [a, (*b, 1)], (sy, zy), *more, **m.last.options)
    if sy is None:
        nodes[-1:] = []
        nodes[-1] = m.replaced(nodes[-1], nodes[-1].arguments)
    return nodes


def _name(m: Match) -> str:
    return m.last.operator.rpartition(".")[2]


def is_codes_of(x: Any) -> bool:
    """Return whether a constant is a matrix of codes."""
    return isinstance(x, QuantizedArray) and is_matrix(x)
