"""Keras' packing of int4: two 4-bit integers in a byte, along any axis."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import Array, asarray, dtypes
from mp_core.arrays.quantization.recipe import pack_nibbles, unpack_nibbles
from mp_core.utilities.arguments import axis_of, integer


def pack_int4(arr: ArrayLike, axis: int = 0, dtype: DTypeLike = "int8") -> tuple[Array, tuple[int, ...], int]:
    """Pack 4-bit integers in pairs along `axis`; the element with the even index is the low half of the byte.

    Return the array, half as long along `axis` (an odd last element is paired with 0), its shape, and the length of
    `arr` along `axis`, which :func:`unpack_int4` needs.

    Parameters
    ----------
    arr : array-like
        In `dtype`: from -8 to 7 for int8, from 0 to 15 for uint8.
    axis : int
    dtype : {"int8", "uint8"}

    Examples
    --------
    >>> packed, shape, length = pack_int4(np.array([[-3, 7], [2, -8], [1, 0]], np.int8))
    >>> packed.tolist(), length
    ([[45, -121], [1, 0]], 3)
    """
    x, target, axis = _int4_operand(arr, axis, dtype, "arr")
    low, high = (-8, 7) if target.name == "int8" else (0, 15)
    if x.size and not low <= x.min() <= x.max() <= high:
        raise ValueError(f"`arr` must hold {low} to {high}; received {x.min()} to {x.max()}")
    codes = np.ascontiguousarray(np.moveaxis(x, axis, -1))
    length = codes.shape[-1]
    packed = np.empty((*codes.shape[:-1], (length + 1) // 2), target)
    if codes.size:
        pack_nibbles(codes.reshape(-1, length), packed.reshape(-1, packed.shape[-1]))
    packed = np.ascontiguousarray(np.moveaxis(packed, -1, axis))
    return packed, packed.shape, length


def unpack_int4(packed: ArrayLike, orig_len: int | None, axis: int = 0, dtype: DTypeLike = "int8") -> Array:
    """Return the integers that :func:`pack_int4` packed.

    Parameters
    ----------
    packed : array-like
        Bytes, of type int8 or uint8.
    orig_len : int, optional
        The number of integers along `axis`. None: two for each byte.
    axis : int
    dtype : {"int8", "uint8"}

    Examples
    --------
    >>> unpack_int4(np.array([[45, -121], [1, 0]], np.int8), 3).tolist()
    [[-3, 7], [2, -8], [1, 0]]
    """
    x, target, axis = _int4_operand(packed, axis, dtype, "packed", ("int8", "uint8"))
    length = 2 * x.shape[axis] if orig_len is None else integer(orig_len, "orig_len")
    if length < 0 or (length + 1) // 2 != x.shape[axis]:
        raise ValueError(
            f"`orig_len` must be the number of integers packed into {x.shape[axis]} bytes; received {orig_len}"
        )
    pairs = np.ascontiguousarray(np.moveaxis(x, axis, -1))
    codes = np.empty((*pairs.shape[:-1], length), target)
    if codes.size:
        signed = target.name == "int8"
        unpack_nibbles(pairs.reshape(-1, pairs.shape[-1]), codes.reshape(-1, length), signed)
    return np.ascontiguousarray(np.moveaxis(codes, -1, axis))


def _int4_operand(
    x: ArrayLike, axis: int, dtype: DTypeLike, argument: str, allowed: tuple[str, ...] = ()
) -> tuple[Array, np.dtype[Any], int]:
    """Return the array, the dtype and the non-negative axis; check that the array has that dtype, or an allowed one."""
    array, target = asarray(x, argument), dtypes.parse(dtype)
    if target.name not in ("int8", "uint8"):
        raise ValueError(f"`dtype` must be int8 or uint8; received {target.name}")
    if array.dtype.name not in (allowed or (target.name,)):
        raise TypeError(f"`{argument}` must be of type {' or '.join(allowed) or target.name}; received {array.dtype}")
    return array, target, axis_of(axis, array.ndim)
