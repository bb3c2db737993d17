"""QuantizedArray operands of products: which multiply as codes, and what becomes of the others."""

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
    """What kernels multiply: `a` and `b`, and, where `a` holds codes, its scales and zero points."""

    a: Array
    b: Any  # an array or PackedMatrix
    scale: Array | None
    zero: Array | None
    dtype: np.dtype[Any]  # of the result by default


def has_scale(b: Any) -> bool:
    """Whether `b` is a packed matrix of codes with scales."""
    return isinstance(b, PackedMatrix) and b.scale is not None


def scales_rows(q: QuantizedArray) -> bool:
    """Whether q, as a left operand, multiplies as integers: its scale can be applied after the product."""
    return (q.dtype is I8 or q.dtype is U8) and q.group_size is None and q.scale.shape[-1:] == (1,)


def scales_columns(q: QuantizedArray, *, packed: bool = False) -> bool:
    """Whether each matrix of q, as a right operand, can be packed with its scales: by column, or by groups of k.

    int4 with zero points is only if it is `packed` by the caller; `matmul` dequantizes it.
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
    """Return the matrix at an index of the leading axes, which broadcast, of an array or a quantized one."""
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
    """Return one matrix that :func:`scales_columns`, packed; uint8 and uint4 codes as int8."""
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
    """Return a copy of scales or zero points, since `b` may change: of shape (n,), or (groups, n)."""
    whole = np.array(np.broadcast_to(x, (len(x), b.shape[1])), dtype, order="C")
    return whole if b.group_size else whole[0]


def pack_unsigned(b: Array) -> PackedMatrix:
    """Return matrices of uint8, packed as int8: codes less 128, with a zero point of -128."""
    n = b.shape[-1]
    return pack(_less_128(b), I8, np.ones(n, np.float32), np.full(n, -128, np.int32))


def _less_128(x: Array) -> Array:
    return (x ^ np.uint8(128)).view(np.int8)


def multipliable(a: Any, b: Any) -> Factors:
    """Return operands, of which at least one is quantized, as the product reads them.

    The scales of `a` are with them if both stay integers.
    The result is by default float32, or of the type of an operand in floats of more than 8 bits.
    """
    if isinstance(b, QuantizedArray) and len(b.shape) == 2 and scales_columns(b):
        b = pack_quantized(b)
    packed = has_scale(b)
    if isinstance(a, QuantizedArray) and scales_rows(a) and packed and b.dtype is I8 and b.group_size is None:
        check_unchanged(a)
        return Factors(a.values, b, a.scale, a.zero_point, F32)
    a = a if isinstance(a, QuantizedArray) else asarray(a, "a")
    b = b if isinstance(b, QuantizedArray | PackedMatrix) else asarray(b, "b")
    beside = b if isinstance(a, QuantizedArray) else a
    floats = not isinstance(beside, QuantizedArray) and not has_scale(beside) and is_float(beside.dtype)
    narrow = floats and "float8" in name_of(beside.dtype)  # of too few bits for scaled codes
    dtype = beside.dtype if floats and not narrow else F32
    exact = F64 if dtype is F64 else F32
    if isinstance(b, QuantizedArray):
        b = dequantize(b, exact)
    elif packed and ((b.zero_point is not None and b.dtype is I8) or exact is F64 or narrow):
        b = unpacked(b, exact)
    a = dequantize(a, exact) if isinstance(a, QuantizedArray) else _wide(a)
    b = b if isinstance(b, PackedMatrix) else _wide(b)
    return Factors(a, b, None, None, dtype)


def _wide(x: Array) -> Array:
    """Return an operand as floats of more than 8 bits."""
    return x if is_float(x.dtype) and "float8" not in name_of(x.dtype) else cast(x, F32)


def unpacked(b: PackedMatrix, dtype: np.dtype[Any] = F32) -> Array:
    """Return what a packed matrix holds, codes with scales as the floats of `dtype` that they stand for."""
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
