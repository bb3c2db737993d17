"""Rows of tables."""

from typing import Any

import numpy as np

from mp_core.arrays import F32, FORMATS, I8, Array, cast, contiguous
from mp_core.core.lookup import count_places, gather
from mp_core.quantization import QuantizedArray, dequantize
from mp_core.recorded import recordable

__all__ = ["take_rows", "token_places"]


@recordable
def take_rows(table: Array | QuantizedArray, indices: Array, dtype: np.dtype[Any]) -> Array:
    """Return the rows of a table at `indices`, in `dtype`; only they are cast or dequantized.

    Parameters
    ----------
    table : ndarray or QuantizedArray, shape (rows, columns)
        Float, or codes with scales for each row, or for each row and group of columns.
    indices : ndarray of int
        From 0 to rows - 1.
    dtype : dtype
        A float type of :data:`mp_core.dtypes.ALLOWED`.

    Returns
    -------
    ndarray, shape (*indices.shape, columns)

    Raises
    ------
    IndexError
        An index is outside of the table.

    Examples
    --------
    >>> take_rows(np.eye(3, dtype=np.float32), np.array([2, 0]), np.dtype("float32"))
    array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """
    shape = (*indices.shape, table.shape[1])
    places = indices if indices.dtype == np.int32 and indices.flags.c_contiguous else _as_int32(indices, table.shape[0])
    is_wide = dtype.itemsize == 8
    if not isinstance(table, QuantizedArray):
        if is_wide or table.dtype.itemsize == 8 or table.strides[1] != table.itemsize or not table.dtype.isnative:
            return cast(table[indices], dtype)
        out = np.empty(shape, dtype)
        gather(table, places, out, FORMATS[table.dtype], FORMATS[dtype])
        return out
    plain = table.dtype is I8 and table.zero_point is None and table.group_size is None and table.axis == (0,)
    if plain and not is_wide and table.values.flags.c_contiguous and table.scale.flags.c_contiguous:
        out = np.empty(shape, dtype)
        gather(table.values, places, out, FORMATS[F32], FORMATS[dtype], table.scale)
        return out
    index = indices.reshape(-1)
    scale, zero = (x if x is None or not table.axis else x[index] for x in (table.scale, table.zero_point))
    rows = (index.size, table.shape[1])
    part = QuantizedArray(table.values[index], scale, zero, table.axis, table.group_size, table.dtype, rows)
    return dequantize(part, dtype).reshape(shape)


@recordable
def token_places(ids: Array, padding: int) -> Array:
    """Return the position of each token but padding, counted from ``padding + 1``; that of padding is `padding`.

    Parameters
    ----------
    ids : ndarray of int, shape (n, length)
    padding : int
        The token that is padding.

    Returns
    -------
    ndarray of int32, shape (n, length)

    Examples
    --------
    >>> token_places(np.array([[5, 6, 1], [1, 7, 7]]), 1)
    array([[2, 3, 1],
           [1, 2, 3]], dtype=int32)
    """
    tokens = contiguous(ids) if ids.dtype == np.int32 else np.ascontiguousarray(ids, np.int32)
    places = np.empty(ids.shape, np.int32)
    count_places(tokens, padding, places)
    return places


def _as_int32(indices: Array, limit: int) -> Array:
    """Return indices as kernels read them; those that int32 does not hold become one that no table has."""
    if indices.dtype.itemsize > 2:
        indices = np.minimum(indices, limit) if indices.dtype.kind == "u" else np.clip(indices, -1, limit)
    return np.ascontiguousarray(indices, np.int32)
