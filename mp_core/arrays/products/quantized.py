"""Quantized operands of products: which ones are multiplied as codes, and how the others are converted."""

from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import F32, F64, I8, U8, Array, asarray, cast
from mp_core.arrays.dtypes import is_float, name_of
from mp_core.arrays.products.panels import PackedMatrix, pack
from mp_core.arrays.quantization import QuantizedArray, check_unchanged, dequantize, unpacked_codes

__all__ = [
    "Factors",
    "has_scale",
    "matrix_of",
    "multipliable",
    "pack_quantized",
    "pack_unsigned",
    "scales_columns",
    "scales_rows",
    "unpacked",
]


class Factors(NamedTuple):
    """The operands for kernels: `a` and `b`, and, if `a` holds codes, its scales and zero points."""

    a: Array
    b: Any  # an array or PackedMatrix
    scale: Array | None
    zero: Array | None
    dtype: np.dtype[Any]  # the default type of the result


def has_scale(b: Any) -> bool:
    """Return whether `b` is a packed matrix of codes with scales."""
    return isinstance(b, PackedMatrix) and (b.group_size is not None or b.scale is not None)


def scales_rows(q: QuantizedArray) -> bool:
    """Return whether q, as a left operand, can multiply as integers: its scales can be applied after the product."""
    return (q.dtype is I8 or q.dtype is U8) and q.group_size is None and q.scale.shape[-1:] == (1,)


def scales_columns(q: QuantizedArray, *, packed: bool = False) -> bool:
    """Return whether each matrix of q, as a right operand, can be packed with scales by column, or by groups along k.

    int4 with zero points counts only with `packed`, that is if the user packs it; `matmul` dequantizes it.
    """
    if len(q.shape) < 2 or q.dtype.itemsize > 1:
        return False
    shifted_int4 = q.zero_point is not None and name_of(q.dtype) == "int4"
    if shifted_int4 and not packed:
        return False
    if q.group_size is None:
        return bool(q.scale.shape[-2:-1] == (1,))
    by_k = len(q.shape) - 2 not in q.axis
    return bool(by_k and (q.zero_point is None or shifted_int4) and q.dtype is not U8 and q.group_size % 8 == 0)


def matrix_of(x: Any, index: tuple[int, ...]) -> Any:
    """Return the matrix at a broadcast index of the batch axes of an array or QuantizedArray."""
    lead = len(x.shape) - 2
    if lead < 1:
        return x

    def at_index(part: Any) -> Any:
        own = index[len(index) - lead :]
        return part[tuple(i if n > 1 else 0 for i, n in zip(own, part.shape[:lead], strict=True))]

    if not isinstance(x, QuantizedArray):
        return at_index(x)
    zero = None if x.zero_point is None else at_index(x.zero_point)
    axes = tuple(axis - lead for axis in x.axis if axis >= lead)
    kind: Any = type(x)
    return kind(at_index(x.values), at_index(x.scale), zero, axes, x.group_size, x.dtype, x.shape[lead:])


def pack_quantized(b: QuantizedArray) -> PackedMatrix:
    """Pack one matrix for which :func:`scales_columns` is true; uint8 and uint4 codes become int8."""
    check_unchanged(b)
    values, zero = unpacked_codes(b), b.zero_point
    if b.dtype is U8:  # u - zero = (u - 128) - (zero - 128), and u - 128 is int8
        values, zero = _less_128(values), np.full((1, 1), -128, np.int32) if zero is None else zero - np.int32(128)
    dtype = I8 if b.dtype is U8 or name_of(b.dtype) == "uint4" else b.dtype
    scale = _for_columns(b.scale, b, np.float32)
    if zero is not None:
        zero = _for_columns(zero, b, np.int8 if name_of(dtype) == "int4" else np.int32)
    return pack(values, dtype, scale, zero, b.group_size)


def _for_columns(x: Array, b: QuantizedArray, dtype: Any) -> Array:
    """Return a copy of scales or zero points (`b` may change), of shape (n,) or (groups, n)."""
    whole = np.array(np.broadcast_to(x, (len(x), b.shape[1])), dtype, order="C")
    return whole if b.group_size else whole[0]


def pack_unsigned(b: Array) -> PackedMatrix:
    """Pack uint8 matrices as int8: subtract 128, and set the zero point to -128."""
    n = b.shape[-1]
    return pack(_less_128(b), I8, np.ones(n, np.float32), np.full(n, -128, np.int32))


def _less_128(x: Array) -> Array:
    return (x ^ np.uint8(128)).view(np.int8)


def multipliable(a: Any, b: Any) -> Factors:
    """Convert operands, of which at least one is quantized, to ones that kernels multiply.

    If both stay integers, the Factors have the scales of `a`. The default type of the result is that of a float operand
    with more than 8 bits, else float32.
    """
    if isinstance(b, QuantizedArray) and len(b.shape) == 2 and scales_columns(b):
        b = pack_quantized(b)
    packed = has_scale(b)
    if isinstance(a, QuantizedArray) and scales_rows(a) and packed and b.dtype is I8 and b.group_size is None:
        check_unchanged(a)
        return Factors(a.values, b, a.scale, a.zero_point, F32)
    a = a if isinstance(a, QuantizedArray) else asarray(a, "a")
    b = b if isinstance(b, QuantizedArray | PackedMatrix) else asarray(b, "b")
    other = b if isinstance(a, QuantizedArray) else a
    floats = not isinstance(other, QuantizedArray) and not has_scale(other) and is_float(other.dtype)
    narrow = floats and "float8" in name_of(other.dtype)  # too few bits for products with scaled codes
    dtype = other.dtype if floats and not narrow else F32
    exact = F64 if dtype is F64 else F32
    if isinstance(b, QuantizedArray):
        b = dequantize(b, exact)
    elif packed and ((b.zero_point is not None and b.dtype is I8) or exact is F64 or narrow):
        b = unpacked(b, exact)
    a = dequantize(a, exact) if isinstance(a, QuantizedArray) else _wide(a)
    b = b if isinstance(b, PackedMatrix) else _wide(b)
    return Factors(a, b, None, None, dtype)


def _wide(x: Array) -> Array:
    """Return an operand in a float type with more than 8 bits."""
    return x if is_float(x.dtype) and "float8" not in name_of(x.dtype) else cast(x, F32)


def unpacked(b: PackedMatrix, dtype: np.dtype[Any] = F32) -> Array:
    """Return the values of a packed matrix; codes with scales are dequantized to `dtype`."""
    if b.scale is None:
        return b.unpack()
    codes, scale, zero = cast(b.unpack(), F32), b.scale, b.zero_point
    if b.group_size is not None:
        k = b.shape[-2]
        group_of = np.arange(k) // min(b.group_size, max(k, 1))
        scale, zero = scale[group_of], None if zero is None else zero[group_of]
    if zero is not None:
        codes -= zero
    return cast(codes * scale, dtype)
