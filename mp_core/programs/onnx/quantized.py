"""Quantized operators. Codes are integers q with a scale and a zero point: ``x ~ scale * (q - zero_point)``.

Operators on codes (QLinearConv ...) are written as operators on floats between DequantizeLinear and QuantizeLinear.
Patterns then find the products whose operands are both quantized: layers multiply these codes exactly, in int32.
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.arrays.quantization import QuantizedArray
from mp_core.files.program import Node, Value
from mp_core.layers.forms import Inputs
from mp_core.layers.forms.products import parts_of
from mp_core.ops.convolution import multiply_codes
from mp_core.ops.convolution_specs import windows_over
from mp_core.programs import convolutions
from mp_core.programs.convolutions import has_lines, is_by_channel
from mp_core.programs.expansions import Expansion, Making, expansion
from mp_core.programs.onnx.arguments import dtype_of
from mp_core.programs.onnx.casting import cast_like
from mp_core.programs.onnx.convolution import conv
from mp_core.programs.patterns import Match, pattern
from mp_core.programs.registry import operator
from mp_core.programs.weights import CODES

# ---- codes and floats


def codes_of(
    q: Any, scale: Any, zero: Any = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> QuantizedArray | Array:
    """Return the quantized array of constant codes; floats if no product reads such codes."""
    is_known = q.dtype.name in ("int8", "uint8", "int4", "uint4") and q.ndim > 1 and not output_dtype
    if not is_known or scale.dtype.name != "float32":
        floats: Array = dequantize_linear(q, scale, zero, axis=axis, block_size=block_size, output_dtype=output_dtype)
        return floats
    return QuantizedArray.from_onnx(q, scale, zero, axis, block_size)


CODES["DequantizeLinear"] = codes_of


@operator("DequantizeLinear", "com.microsoft.DequantizeLinear")
def dequantize_linear(
    q: Any, scale: Any, zero: Any = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Any:
    """Return ``(q - zero) * scale`` in the type of the scale."""
    kind = dtype_of(output_dtype) if output_dtype else scale.dtype
    return ops.dequantize_linear(q, scale, zero, axis, block_size, kind)


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
    kind = zero.dtype if zero is not None else dtype_of(output_dtype or 2)
    if kind.name == "float4_e2m1fn":
        steps = ops.dequantize_linear(np.ones(x.shape, np.int8), ops.cast(scale, "float32"), None, axis, block_size)
        return cast_like(ops.divide(ops.cast(x, "float32"), steps), np.empty(0, kind), saturate=saturate)
    codes = ops.quantize_linear(x, scale, zero, axis, block_size, kind, bool(saturate))
    return codes if kind.name not in ("int4", "uint4") else cast_like(codes, np.empty(0, kind))


operator("DynamicQuantizeLinear")(ops.dynamic_quantize_linear)


# ---- products of integers


operator("MatMulInteger")(ops.matmul_integer)


@operator("ConvInteger")
def conv_integer(x: Any, w: Any, x_zero: Any = None, w_zero: Any = None, **options: Any) -> Any:
    """Return the convolution of ``x - x_zero`` with ``w - w_zero`` in int32, exact."""
    x, w = (
        ops.cast(q, "float64") if zero is None else ops.subtract(ops.cast(q, "float64"), zero_of(zero, q))
        for q, zero in ((x, x_zero), (w, w_zero))
    )
    return ops.cast(conv(x, w, **options), "int32")


def zero_of(zero: Any, q: Any) -> Any:
    """Return a zero point, or one for each filter at axis 0, in float64."""
    zero = ops.cast(zero, "float64")
    return zero.reshape(-1, *(1,) * (q.ndim - 1)) if zero.size > 1 else zero.reshape(1)


# ---- pairs of quantization and dequantization


@pattern("DequantizeLinear(QuantizeLinear(x, SCALE, ZERO), SCALE2, ZERO2)", is_shared=True)
def rounded_pair(m: Match) -> Node | None:
    """Round floats to the numbers that codes stand for, without the codes."""
    same = all(np.array_equal(m[name], m[f"{name}2"]) for name in ("SCALE", "ZERO"))
    is_one = np.size(m["SCALE"]) == np.size(m["ZERO"]) == 1 and m["SCALE"].dtype.name == "float32"
    if not (same and is_one) or m["ZERO"].dtype.name not in ("int8", "uint8") or _has_blocks(m):
        return None
    zero = m["ZERO"].item() - (128 if m["ZERO"].dtype == np.uint8 else 0)
    return m.instead("mp_core.rounded_to_codes", m["x"], scale=m["SCALE"].item(), zero_point=zero)


@operator("mp_core.rounded_to_codes")
def rounded_to_codes(x: Any, *, scale: float, zero_point: int) -> Any:
    """Return the numbers next to `x` that int8 codes with one scale stand for."""
    step, zero = np.float32(scale), np.int8(zero_point)
    return ops.dequantize_linear(ops.quantize_linear(x, step, zero), step, zero, dtype=x.dtype)


@pattern(*(f"mp_core.{layer}(mp_core.rounded_to_codes(x), W)" for layer in ("conv", "dense")), is_shared=True)
def product_of_codes(m: Match) -> Node | None:
    """Multiply codes of int8 exactly: the layer quantizes its inputs by the fixed scale."""
    node, rounded = m.nodes[0], m.node("mp_core.rounded_to_codes").options
    inputs = Inputs(np.float32(rounded["scale"]), np.int8(rounded["zero_point"]))
    return m.replaced(node, (m["x"], *node.arguments[1:]), inputs=inputs) if _multiplies_codes(m) else None


@pattern(*(f"mp_core.{layer}(DequantizeLinear(q, scale, zero), W)" for layer in ("conv", "dense")), is_shared=True)
def product_of_given_codes(m: Match) -> Node | None:
    """Multiply codes that the graph computes: of a constant scale, or of DynamicQuantizeLinear."""
    node, scale, zero = m.nodes[0], *(m.graph.constant(m[name]) for name in ("scale", "zero"))
    if not _multiplies_codes(m) or _has_blocks(m):
        return None
    if _is_dynamic(m):
        w, kind = m["W"], node.operator.removeprefix("mp_core.")
        zeros = np.zeros(w.scale.shape, np.int32) if w.zero_point is None else w.zero_point
        parts = {"codes": w.values, "scale": w.scale.reshape(-1), "zero": zeros.reshape(-1)}
        names = [m.graph.add_constant(f"{m.last.outputs[0]}.{name}", np.asarray(x)) for name, x in parts.items()]
        arguments = (m["q"], names[0], m["scale"], m["zero"], *names[1:], *node.arguments[2:3])
        return m.instead(f"mp_core.dynamic_{kind}", *arguments, **node.options)
    if scale is None or zero is None or np.size(scale) != 1 or zero.dtype.name not in ("int8", "uint8"):
        return None
    inputs = Inputs(np.float32(scale.item()), np.int8(zero.item() - (128 if zero.dtype == np.uint8 else 0)))
    return m.replaced(node, node.arguments, inputs=inputs)


@pattern("MatMul(a, b)", is_shared=True)
def product_of_computed_codes(m: Match) -> list[Node] | None:
    """Multiply two matrices exactly if both are codes of constant scales, and none of them is constant."""
    left, right = (_codes_behind(m, x, number) for number, x in enumerate(m.last.arguments))
    if left is None or right is None:
        return None
    (a, scale_a, zero_a, first), (b, scale_b, zero_b, second) = left, right
    zeros = [m.graph.add_constant(f"{m.last.outputs[0]}.zero", np.asarray(x)) if x else None for x in (zero_a, zero_b)]
    total = m.before("MatMulInteger", a, b, *zeros)
    floats = m.before("Cast", m.value(total), to=1)
    scale = m.graph.add_constant(f"{m.last.outputs[0]}.scale", np.asarray(scale_a * scale_b))
    return [*first, *second, total, floats, m.instead("Mul", m.value(floats), scale)]


def _codes_behind(m: Match, x: Any, number: int) -> tuple[Any, np.float32, Any, list[Node]] | None:
    """Return the codes that floats stand for, their scale and zero point, and the nodes that compute the codes."""
    node = m.graph.producer(x)
    if node is None:
        return None
    if node.operator == "mp_core.rounded_to_codes":
        scale, zero = np.float32(node.options["scale"]), np.int8(node.options["zero_point"])
        names = [m.graph.add_constant(f"{m.last.outputs[0]}.{number}", np.asarray(x)) for x in (scale, zero)]
        quantized = m.before("QuantizeLinear", node.arguments[0], *names, label=f"QuantizeLinear{number}")
        return m.value(quantized), scale, zero, [quantized]
    if node.operator != "DequantizeLinear" or len(node.arguments) < 3 or node.options.get("block_size"):
        return None
    scale, zero = (m.graph.constant(part) for part in node.arguments[1:3])
    if scale is None or zero is None or zero.size != 1 or scale.dtype.name != "float32":
        return None
    if zero.dtype.name not in ("int8", "uint8"):
        return None
    return node.arguments[0], scale.reshape(()), zero.reshape(()), []


def _multiplies_codes(m: Match) -> bool:
    """Return whether a layer multiplies its codes by those of quantized inputs."""
    node, matrix = m.nodes[0], m["W"]
    if "inputs" in node.options or not isinstance(matrix, QuantizedArray) or "int8" not in matrix.dtype.name:
        return False
    group = node.options.get("group", 1)
    return len(matrix.shape) == 2 or (has_lines(matrix) and not is_by_channel(matrix, group))


def _is_dynamic(m: Match) -> bool:
    """Return whether codes, scale and zero point are the results of one DynamicQuantizeLinear."""
    node = m.graph.producer(m["q"])
    if node is None or node.operator != "DynamicQuantizeLinear":
        return False
    return [m["q"], m["scale"], m["zero"]] == [Value(x) for x in node.outputs]


@pattern(
    *(f"Mul(Cast({name}(q, W, zero, WZERO)), scale, {scales})"
      for name in ("MatMulInteger", "ConvInteger") for scales in ("WSCALE", "scales")),
)  # fmt: skip
def dynamic_product(m: Match) -> list[Node] | None:
    """Multiply codes of DynamicQuantizeLinear by constant codes: the product of what both stand for."""
    node, scales = m.nodes[-1], m.values.get("WSCALE", m.graph.constant(m.values.get("scales")))
    is_matrix = node.operator == "MatMulInteger"
    if scales is None or not _is_dynamic(m):
        return None
    scales = _scales_of_outputs(np.asarray(scales, np.float32), m["W"].shape, m["WZERO"], is_matrix)
    if scales is None:
        return None
    matrix = codes_of(m["W"], scales, m["WZERO"], axis=1 if is_matrix else 0)
    rows = m.before("DequantizeLinear", m["q"], m["scale"], m["zero"])
    arguments = m.value(rows), m.graph.add_constant(f"{m.last.outputs[0]}.matrix", matrix)
    return [rows, m.instead("MatMul" if is_matrix else "Conv", *arguments, **node.options)]


def _scales_of_outputs(scales: Any, shape: tuple[int, ...], zero: Any, is_matrix: bool) -> Any:
    """Return one scale, or one per column or filter, if scales multiply a product in this way; else None.

    `shape` is that of the matrix or the kernel, whose zero points are `zero`.
    """
    count, most = (shape[-1], 1) if is_matrix else (shape[0], len(shape))
    if scales.ndim > most or (is_matrix and len(shape) > 2 and max(scales.size, zero.size) > 1):
        return None
    if scales.size > 1:
        own = ((1,) * (len(shape) - scales.ndim) + scales.shape)[1]  # axis 1 of a product has the columns or filters
        return scales.reshape(-1) if own == scales.size == count else None
    one = scales.reshape(())
    return one if zero.size == 1 else np.full(count, one)


@operator("mp_core.dynamic_dense")
def dynamic_dense(
    q: Any, w: Any, scale: Any, zero: Any, w_scale: Any, w_zero: Any, bias: Any = None
) -> Any:  # fmt: skip
    """Return the exact product of uint8 codes with one scale and of a matrix of codes (k, n), as floats."""
    matrix = ops.pack(QuantizedArray(w, w_scale.reshape(1, -1), w_zero.reshape(1, -1), (1,)))
    return multiply_codes(q, *_of_one_element(scale, zero), matrix, bias=bias)


def _of_one_element(scale: Any, zero: Any) -> tuple[Any, Any]:
    """Return a scale and a zero point in the types and the shape that products read."""
    return ops.reshape(scale, (1,)), ops.cast(ops.reshape(zero, (1,)), "int32")


@operator("mp_core.dynamic_conv")
def dynamic_conv(
    q: Any,
    w: Any,
    scale: Any,
    zero: Any,
    w_scale: Any,
    w_zero: Any,
    bias: Any = None,
    *,
    strides: tuple[int, ...] | None = None,
    pads: Any = "valid",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
) -> Any:
    """Return the exact convolution of uint8 codes with one scale and of a kernel of codes, as floats."""
    x, rank = ops.moveaxis(q, 1, -1), w.ndim - 2
    windows = windows_over(x.shape[1:-1], w.shape[2:], strides or 1, convolutions.pairs_of(pads), dilations or 1)
    if any(map(any, windows.padding)):  # with the code of zero, which only the inputs decide
        inside = ops.pad(np.ones((1, *x.shape[1:-1], 1), np.uint8), [(0, 0), *windows.padding, (0, 0)])
        x = ops.pad(x, [(0, 0), *windows.padding, (0, 0)])
        x = ops.where(ops.equal(inside, 1), x, ops.reshape(zero, (1,) * x.ndim))
        windows = replace(windows, padding=((0, 0),) * rank)
    lines = QuantizedArray(w, w_scale.reshape(-1, *[1] * (rank + 1)), w_zero.reshape(-1, *[1] * (rank + 1)), (0,))
    matrices = [ops.pack(part.T) for part in parts_of(convolutions.lines_of(lines), group)]
    pairs, of_inputs = zip(ops.split(x, group, -1), matrices, strict=True), _of_one_element(scale, zero)
    outputs = [multiply_codes(part, *of_inputs, matrix, windows=windows) for part, matrix in pairs]
    found = outputs[0] if group == 1 else ops.concatenate(outputs, -1)
    return ops.moveaxis(found if bias is None else ops.add(found, bias), -1, 1)


def _has_blocks(m: Match) -> bool:
    return any(node.options.get("block_size") or node.options.get("output_dtype") for node in m.nodes)


# ---- operators on codes, written as operators on floats


@expansion("QLinearMatMul", "com.microsoft.QLinearMatMul")
def qlinear_matmul(make: Making, a: Any, sa: Any, za: Any, b: Any, sb: Any, zb: Any, sy: Any, zy: Any) -> None:
    """Return the product of codes."""
    product = make("MatMul", make(_FLOATS, a, sa, za), make(_FLOATS, b, sb, zb))
    make(_CODES, product, sy, zy)


@expansion("QLinearConv")
def qlinear_conv(
    make: Making, x: Any, sx: Any, zx: Any, w: Any, sw: Any, zw: Any, sy: Any, zy: Any, bias: Any = None, **options: Any
) -> None:
    """Return the convolution of codes; the scale of its int32 bias is the product of both scales."""
    more = () if bias is None else (make(_FLOATS, bias, make("Mul", sx, sw), axis=0),)
    result = make("Conv", make(_FLOATS, x, sx, zx), make(_FLOATS, w, sw, zw, axis=0), *more, **options)
    make(_CODES, result, sy, zy)


@expansion("com.microsoft.QGemm")
def qgemm(
    make: Making, a: Any, sa: Any, za: Any, b: Any, sb: Any, zb: Any, c: Any = None, sy: Any = None, zy: Any = None,
    *, transB: int = 0, **options: Any,
) -> None:  # fmt: skip
    """Return the product of codes; the scale of its int32 bias is the product of both scales."""
    more = () if c is None else (make(_FLOATS, c, make("Mul", sa, sb), axis=0),)
    matrix = make(_FLOATS, b, sb, zb, axis=0 if transB else 1)
    product = make("Gemm", make(_FLOATS, a, sa, za), matrix, *more, transB=transB, **options)
    if sy is not None:
        make(_CODES, product, sy, zy)


def _of_two(name: str) -> Expansion:
    def expand(
        make: Making, a: Any, sa: Any, za: Any, b: Any, sb: Any, zb: Any, sy: Any, zy: Any = None
    ) -> None:  # fmt: skip
        make(_CODES, make(name, make(_FLOATS, a, sa, za), make(_FLOATS, b, sb, zb)), sy, zy)

    return expand


def _of_one(name: str) -> Expansion:
    def expand(
        make: Making,
        x: Any,
        sx: Any,
        zx: Any,
        sy: Any,
        zy: Any = None,
        *,
        channels_last: Literal[0] = 0,
        **options: Any,
    ) -> None:
        options.pop("opset", None)
        make(_CODES, make(name, make(_FLOATS, x, sx, zx), **options), sy, zy)

    return expand


for _name in ("Add", "Mul"):
    expansion(f"com.microsoft.QLinear{_name}")(_of_two(_name))
for _name in ("Sigmoid", "LeakyRelu", "Softmax", "GlobalAveragePool", "AveragePool"):
    expansion(f"com.microsoft.QLinear{_name}")(_of_one(_name))


@expansion("com.microsoft.QLinearConcat")
def qlinear_concat(make: Making, sy: Any, zy: Any, *parts: Any, axis: int) -> None:
    """Return codes side by side, in one scale."""
    floats = [make(_FLOATS, *parts[i : i + 3]) for i in range(0, len(parts), 3)]
    make(_CODES, make("Concat", *floats, axis=axis), sy, zy)


@expansion("com.microsoft.MatMulIntegerToFloat")
def matmul_integer_to_float(
    make: Making, a: Any, b: Any, sa: Any, sb: Any, za: Any = None, zb: Any = None, bias: Any = None
) -> None:
    """Return the product of codes as floats."""
    product = make("MatMul", make(_FLOATS, a, sa, za), make(_FLOATS, b, sb, zb))
    if bias is not None:
        make("Add", product, bias)


@expansion("com.microsoft.DynamicQuantizeMatMul")
def dynamic_quantize_matmul(make: Making, a: Any, b: Any, sb: Any, zb: Any = None, bias: Any = None) -> None:
    """Return the product of rows that are quantized with one range, and of codes."""
    rows = make(_FLOATS, *make.results("DynamicQuantizeLinear", 3, a))
    product = make("MatMul", rows, make(_FLOATS, b, sb, zb))
    if bias is not None:
        make("Add", product, bias)


_FLOATS, _CODES = "DequantizeLinear", "QuantizeLinear"
