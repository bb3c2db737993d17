"""Products with the matrix of a layer. The matrix is packed once and used by many products."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array, dtypes
from mp_core.arrays.quantization import QuantizedArray, dequantize, for_each_element, quantize, unpacked_codes
from mp_core.arrays.recorded import is_recorded
from mp_core.ops import PackedMatrix
from mp_core.ops.convolution import convolve, convolve_quantized
from mp_core.ops.convolution_specs import Windows
from mp_core.ops.elementwise import concatenated

__all__ = ["Inputs", "Product", "multiplied", "packed", "parts_of", "product_by_group", "product_of"]

Product = Callable[..., Array]
"""A product with one matrix: a function of rows, bias, activation, the compute dtype of the layer, and perhaps windows
and the dtype of the result.

With windows, the rows are the windows of an array with the channels last. The dtype of the result is by default that of
the rows, for float8 the compute dtype.
"""


class Inputs(NamedTuple):
    """Fixed scales and zero points of the inputs of products: ``x_j ~ scale_j * (q_j - zero_point_j)``.

    For int8 codes, `scale` is float32 and `zero_point` int8, both of shape (inputs,). For float8 codes, `scale` is one
    float32 number of shape (), and `zero_point` is None.

    Examples
    --------
    >>> inputs = Inputs(np.float32([0.5, 0.25]), np.int8([0, 10]))
    >>> q = np.int8([4, 14])  # codes of two inputs, which stand for these numbers:
    >>> inputs.scale * (q - inputs.zero_point)
    array([2., 1.], dtype=float32)
    """

    scale: Any
    zero_point: Any = None


def product_of(
    lines: QuantizedArray | Array, inputs: Inputs | None, dynamic: bool, dtype: np.dtype[Any]
) -> tuple[Product, PackedMatrix | Array]:
    """Return a function that multiplies rows by the transpose of `lines`, and the packed matrix that it uses.

    Rows are quantized by the fixed scales `inputs`, for which `lines` stand for the weights times these scales, or by
    each call if `dynamic`. Otherwise they stay floats of `dtype`.
    """
    if inputs is None:
        kernel = ops.pack(lines.T) if dynamic else _weight_only(lines, dtype)
        function: Callable[..., Array] = _multiplied_dynamically if dynamic else multiplied

        def multiply(
            rows: Array, bias: Any, activation: Any, _: Any, windows: Windows | None = None, out_dtype: Any = None
        ) -> Array:
            return function(rows, kernel, windows, out_dtype=out_dtype, bias=bias, activation=activation)

        return multiply, kernel
    assert isinstance(lines, QuantizedArray)
    scale, packed_codes = inputs.scale, ops.pack(lines.T)
    if inputs.zero_point is None:
        codes = dtypes.name_of(lines.dtype)

        def multiply_float8(
            rows: Array, bias: Any, activation: Any, compute: Any,
            windows: Windows | None = None, out_dtype: Any = None,
        ) -> Array:  # fmt: skip
            left = ops.cast(quantize(rows, dtype=codes, scale=scale).values, "bfloat16")  # the cast is exact
            epilogue = {"out_dtype": out_dtype or compute, "bias": bias, "activation": activation}
            return multiplied(left, packed_codes, windows, **epilogue)

        return multiply_float8, packed_codes
    zero_point = inputs.zero_point.astype(np.int32)
    sums = ops.matmul(lines.values, inputs.zero_point).astype(np.int64)
    if lines.zero_point is not None:
        sums -= lines.zero_point.reshape(-1) * zero_point.sum(dtype=np.int64)
    offset = ops.cast(-sums * lines.scale.reshape(-1).astype(np.float64), "float32")  # contribution of zero points

    def multiply_fixed(
        rows: Array, bias: Any, activation: Any, _: Any, windows: Windows | None = None, out_dtype: Any = None
    ) -> Array:
        rows = rows if out_dtype is None else ops.cast(rows, out_dtype)  # the codes do not change
        epilogue = {"bias": offset if bias is None else offset + bias, "activation": activation}
        if windows is None:
            return ops.fixed_matmul(rows, packed_codes, scale, zero_point, **epilogue)
        return convolve_quantized(rows, packed_codes, windows=windows, scales=scale, zeros=zero_point, **epilogue)

    return multiply_fixed, packed_codes


def multiplied(rows: Array, b: Any, windows: Windows | None, **epilogue: Any) -> Array:
    """Return the product of rows, or of the windows of an array, and a matrix; of groups (groups, k, n) if given."""
    return ops.matmul(rows, b, **epilogue) if windows is None else convolve(rows, b, windows=windows, **epilogue)


def _multiplied_dynamically(rows: Array, b: PackedMatrix, windows: Windows | None, **epilogue: Any) -> Array:
    """Return the product of rows or windows, each quantized by its own scale, and a packed matrix of codes."""
    if windows is None:
        return ops.dynamic_matmul(rows, b, **epilogue)
    return convolve_quantized(rows, b, windows=windows, **epilogue)


def product_by_group(
    lines: QuantizedArray | Array, inputs: Inputs | None, dynamic: bool, dtype: np.dtype[Any], groups: int
) -> Product:
    """Return a function as :func:`product_of` does, for groups of outputs, each with its part of the channels."""
    products = [product_of(part, inputs, dynamic, dtype)[0] for part in parts_of(lines, groups)]

    def multiply(
        rows: Array, bias: Any, activation: Any, compute: Any, windows: Windows, out_dtype: Any = None
    ) -> Array:
        parts = np.split(rows, groups, axis=-1)
        biases = [None] * groups if bias is None else np.split(bias, groups)
        each = zip(products, parts, biases, strict=True)
        found = (product(x, b, activation, compute, windows, out_dtype) for product, x, b in each)
        return concatenated(*found, axis=-1)

    return multiply


def parts_of(lines: QuantizedArray | Array, groups: int) -> Iterator[QuantizedArray | Array]:
    """Yield the lines of each group."""
    count = lines.shape[0] // groups
    for part in (slice(first, first + count) for first in range(0, lines.shape[0], count)):
        if not isinstance(lines, QuantizedArray):
            yield lines[part]
            continue
        scale, zero = (x if x is None or len(x) == 1 else x[part] for x in (lines.scale, lines.zero_point))
        shape = (count, lines.shape[1])
        yield replace(lines, values=lines.values[part], scale=scale, zero_point=zero, shape=shape)


def packed(matrix: Array, dtype: np.dtype[Any]) -> PackedMatrix | Array:
    """Return floats as the right operand for rows of `dtype`: packed; float64 and recorded arrays are only cast."""
    if is_recorded(matrix):
        return as_recorded(matrix, dtype)
    return ops.pack(matrix, dtype=dtype) if dtypes.name_of(dtype) in dtypes.WIDE else ops.cast(matrix, dtype)


def widened(bias: Array) -> Array:
    """Return a bias in float32, in which products sum; float64 stays float64."""
    if is_recorded(bias):
        return as_recorded(bias, F32)
    return bias if bias.dtype.name == "float64" else ops.cast(bias, F32)


def as_recorded(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return a recorded array in a dtype. It is not copied if it has that dtype, since nobody can write to it."""
    return x if x.dtype == dtype else ops.cast(x, dtype)


def _weight_only(lines: QuantizedArray | Array, dtype: np.dtype[Any]) -> PackedMatrix | Array:
    """Return the right operand for rows of `dtype`: packed codes if products can apply their scales, else floats."""
    wide = dtypes.name_of(dtype) in dtypes.WIDE
    if not isinstance(lines, QuantizedArray):
        return packed(lines.T, dtype)
    q = lines
    if q.group_size is not None and q.scale.shape[1] == 1:
        q = replace(q, group_size=None)  # a single scale group spans the whole line
    if wide and dtypes.name_of(q.dtype) == "int4" and (q.group_size is None or q.group_size % 8 == 0):
        zero = q.zero_point
        return ops.pack((q if zero is not None and zero.any() else replace(q, zero_point=None)).T)
    q = _without_zero_points(q)
    if wide and q.zero_point is None and (q.group_size is None or q.group_size % 8 == 0):
        return ops.pack(q.T)
    return packed(dequantize(q, "float32" if wide else dtype).T, dtype)


def _without_zero_points(q: QuantizedArray) -> QuantizedArray:
    """Return the codes ``q - zero_point`` in int8, without zero points; `q` itself if int8 cannot hold them."""
    if q.zero_point is None or not q.zero_point.any():
        return replace(q, zero_point=None)
    codes = unpacked_codes(q) - for_each_element(q.zero_point, q).astype(np.int16)
    if codes.size and not -128 <= codes.min() <= codes.max() <= 127:
        return q
    return QuantizedArray(codes.astype(np.int8), q.scale, None, q.axis, q.group_size)
