"""Quantization as nodes of ONNX and torch have it: codes, scales and zero points are arrays of their own.

The operations are compositions of operations of elements, so plans record them where they record their types.
:func:`mp_core.quantize` and :class:`mp_core.QuantizedArray` keep codes and scales together, for weights.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import F32, Array, cast
from mp_core.arrays.dtypes import ALLOWED, is_float
from mp_core.arrays.products.matmul import matmul
from mp_core.arrays.quantization.codes import Codes, parse_codes
from mp_core.arrays.recorded import constant
from mp_core.ops.arrangement import array_of, reshape
from mp_core.ops.choosing import repeat
from mp_core.ops.comparisons import equal, greater
from mp_core.ops.composed import round
from mp_core.ops.elementwise import computed, floating
from mp_core.ops.functions import clip, max, min, where
from mp_core.ops.pairs import add, divide, multiply, subtract
from mp_core.utilities.arguments import axis_of, boolean, integer

__all__ = ["dequantize_linear", "dynamic_quantize_linear", "matmul_integer", "quantize_linear"]

_I32, _U8 = ALLOWED["int32"], ALLOWED["uint8"]


def quantize_linear(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    axis: int = 1,
    block_size: int = 0,
    dtype: DTypeLike | None = None,
    saturate: bool = True,
) -> Array:
    """Return codes, by the formula of ONNX QuantizeLinear: ``clamp(round(x / scale) + zero_point)``.

    Parameters
    ----------
    x : array-like
        Floats; integers become float32.
    scale : array-like
        One number, a number for each index along `axis`, or with `block_size` for each block along it.
    zero_point : array-like, optional
        Of the shape of `scale`, and of the type of the codes. Default: 0.
    axis : int
    block_size : int
        The length of a block; 0: none.
    dtype : {"int8", "uint8", "int16", "uint16", "int4", "uint4", "float8_e4m3fn", "float8_e5m2"}, optional
        The type of the codes. Default: that of `zero_point`, or uint8. Codes of 4 bits are returned in int8 or uint8.
    saturate : bool
        Whether 8-bit floats are clamped to the largest number; integers always are.

    Returns
    -------
    ndarray
        NaN gives the zero point, and infinities the first or last code; 8-bit floats keep NaN.

    Raises
    ------
    ValueError
        The shapes do not fit.

    Examples
    --------
    >>> quantize_linear(np.float32([-1, 0, 1, 300]), 0.5, np.uint8(128))
    array([126, 128, 130, 255], dtype=uint8)
    """
    array = floating(array_of(x), F32)
    zero = None if zero_point is None else array_of(zero_point)
    codes = parse_codes(dtype if dtype is not None else "uint8" if zero is None else zero.dtype)
    steps = _spread(array_of(scale), array, axis, block_size, "scale")
    quotient = computed("divide", cast(array, F32), cast(steps, F32), dtype=F32)
    if codes.is_float:
        return cast(quotient, codes.storage, saturate=boolean(saturate, "saturate"))
    whole = round(where(equal(quotient, quotient), quotient, 0.0))
    if zero is not None:
        whole = add(whole, cast(_spread(zero, array, axis, block_size, "zero_point"), F32))
    return cast(clip(whole, float(codes.qmin), float(codes.qmax)), _stored(codes))


def _stored(codes: Codes) -> np.dtype[Any]:
    return codes.storage if not codes.packed else ALLOWED["int8" if codes.qmin < 0 else "uint8"]


def dequantize_linear(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    axis: int = 1,
    block_size: int = 0,
    dtype: DTypeLike | None = None,
) -> Array:
    """Return numbers, by the formula of ONNX DequantizeLinear: ``(x - zero_point) * scale``.

    Parameters
    ----------
    x : array-like
        Codes: integers, or 8-bit floats.
    scale, zero_point, axis, block_size
        As for :func:`quantize_linear`.
    dtype : dtype, optional
        The type of the result, a float. Default: that of `scale`; float64 gives float32.

    Returns
    -------
    ndarray
        The difference is computed in float32 and the product is rounded once.

    Examples
    --------
    >>> dequantize_linear(np.uint8([126, 128, 255]), np.float32(0.5), np.uint8(128))
    array([-1. ,  0. , 63.5], dtype=float32)
    """
    array, steps = array_of(x), array_of(scale)
    kind = np.dtype(dtype) if dtype is not None else steps.dtype
    kind = kind if is_float(kind) and kind.itemsize < 8 else F32
    wide = cast(array, F32)
    if zero_point is not None:
        wide = subtract(wide, cast(_spread(array_of(zero_point), array, axis, block_size, "zero_point"), F32))
    return computed("multiply", wide, cast(_spread(steps, array, axis, block_size, "scale"), F32), dtype=kind)


def _spread(given: Array, x: Array, axis: int, block_size: int, name: str) -> Array:
    """Return scales or zero points in a shape that broadcasts against `x`."""
    if given.size == 1:
        return reshape(given, (1,) * x.ndim)
    place = axis_of(axis, x.ndim)
    length = x.shape[place]
    if not integer(block_size, "block_size"):
        if given.shape != (length,):
            raise ValueError(f"`{name}` must be one number, or have shape {(length,)}; received {given.shape}")
        return reshape(given, [length if axis == place else 1 for axis in range(x.ndim)])
    blocks = tuple(-(-n // block_size) if axis == place else n for axis, n in enumerate(x.shape))
    if block_size < 0 or given.shape != blocks:
        raise ValueError(f"`{name}` must have shape {blocks} for blocks of {block_size}; received {given.shape}")
    return repeat(given, block_size, place)[(*(slice(None),) * place, slice(length))]


def dynamic_quantize_linear(x: ArrayLike) -> tuple[Array, Array, Array]:
    """Return codes, scale and zero point, by the formula of ONNX DynamicQuantizeLinear.

    The range of `x`, which is extended to include 0, is mapped to all codes of uint8. If all elements are 0, the scale
    is 1.

    Parameters
    ----------
    x : array-like
        Floats; integers become float32.

    Returns
    -------
    codes : ndarray of uint8, shape of `x`
    scale : ndarray of float32, shape ()
    zero_point : ndarray of uint8, shape ()

    Examples
    --------
    >>> codes, scale, zero_point = dynamic_quantize_linear([-1.0, 0.0, 1.0, 1.55])
    >>> codes, f"{float(scale):.3f}", int(zero_point)
    (array([  0, 100, 200, 255], dtype=uint8), '0.010', 100)
    """
    wide = cast(floating(array_of(x), F32), F32)
    low = computed("minimum", reshape(min(wide), (1,)), constant(np.zeros(1, F32)), dtype=F32)
    high = computed("maximum", reshape(max(wide), (1,)), constant(np.zeros(1, F32)), dtype=F32)
    scale = divide(subtract(high, low), 255.0)
    scale = where(greater(scale, 0.0), scale, 1.0)
    zero = clip(round(divide(subtract(0.0, low), scale)), 0.0, 255.0)
    quotient = add(round(divide(wide, reshape(scale, (1,) * wide.ndim))), reshape(zero, (1,) * wide.ndim))
    return cast(clip(quotient, 0.0, 255.0), _U8), reshape(scale, ()), cast(reshape(zero, ()), _U8)


def matmul_integer(
    a: ArrayLike, b: ArrayLike, a_zero_point: ArrayLike | None = None, b_zero_point: ArrayLike | None = None
) -> Array:
    """Return the exact int32 product ``(a - a_zero_point) @ (b - b_zero_point)`` of codes: ONNX MatMulInteger.

    It is ``a @ b - a_zero_point * (sums of columns of b) - (sums of rows of (a - a_zero_point)) * b_zero_point``, all
    in int32.

    Parameters
    ----------
    a : array-like, shape (..., m, k)
        int8 or uint8.
    b : array-like, shape (..., k, n)
        int8 or uint8.
    a_zero_point : array-like, shape (), (1,) or (m,), optional
    b_zero_point : array-like, shape (), (1,) or (n,), optional

    Returns
    -------
    ndarray of int32, shape (..., m, n)

    Raises
    ------
    TypeError
        The codes are no integers of 8 bits.

    Examples
    --------
    >>> matmul_integer(np.uint8([[1, 200]]), np.int8([[1], [2]]), np.uint8(100))
    array([[101]], dtype=int32)
    """
    one, two = array_of(a), array_of(b)
    for name, array in (("a", one), ("b", two)):
        if array.dtype.kind not in "iu" or array.dtype.itemsize != 1 or array.ndim < 2:
            raise TypeError(f"`{name}` must be int8 or uint8 with two axes at least; received {array.dtype} of shape "
                            f"{array.shape}")  # fmt: skip
    k, total = one.shape[-1], matmul(one, two)
    of_rows = None if a_zero_point is None else reshape(cast(array_of(a_zero_point), _I32), (-1, 1))
    if of_rows is not None:
        columns = matmul(constant(np.ones((1, k), np.int8)), two)
        total = subtract(total, multiply(of_rows, columns))
    if b_zero_point is not None:
        rows = matmul(one, constant(np.ones((k, 1), np.int8)))
        rows = rows if of_rows is None else subtract(rows, multiply(of_rows, np.int32(k)))
        total = subtract(total, multiply(rows, cast(array_of(b_zero_point), _I32)))
    return total
