"""Gradient rules of look-ups in tables."""

import functools
from typing import Any

import numpy as np

from mp_core.arrays import F32, F64, FORMATS, Array, cast, contiguous
from mp_core.arrays.recorded import recordable
from mp_core.core.lookup import sum_by_index
from mp_core.ops.gradients.registry import RowSum, UngradedError, gradient_of, wide_type
from mp_core.ops.gradients.sums import BLOCK, blocks_of
from mp_core.ops.indexing import added_along, put_along_axis, taken_along
from mp_core.ops.lookup import take_rows
from mp_core.ops.pairs import add

__all__ = ["sum_taken_rows"]


@recordable
def sum_taken_rows(x: Array, indices: Array, rows: int, dtype: Any = F32) -> Array:
    """Return the gradient of a table with `rows` rows from the gradient `x` of the rows at `indices`.

    Row r of the result is the sum of ``x[i]`` over all i with ``indices[i] == r``, in the order of i, in float32. The
    sum over each block of 1024 rows of `x` starts at +0, and the sums of the blocks are added in order.

    Parameters
    ----------
    x : ndarray of float, shape (*indices.shape, columns)
    indices : ndarray of int
    rows : int
    dtype : dtype
        The type of the result. The sums are rounded once.

    Returns
    -------
    ndarray, shape (rows, columns)

    Raises
    ------
    IndexError
        An index is outside of the table.

    Examples
    --------
    >>> sum_taken_rows(np.array([[1], [2], [4]], np.float32), np.array([2, 0, 2]), 3)
    array([[2.],
           [0.],
           [5.]], dtype=float32)
    """
    places = contiguous(indices if indices.dtype in (np.int32, np.int64) else indices.astype(np.int64)).reshape(-1)
    taken = contiguous(x).reshape(places.size, x.shape[-1])
    out = np.zeros((rows, x.shape[-1]), wide_type(x.dtype))
    if x.dtype is F64:
        np.add.at(out, places, taken)
    elif out.size and taken.size:
        sum_by_index(FORMATS[taken.dtype], taken, places, out)
    return out if out.dtype is dtype else cast(out, dtype)


@gradient_of(take_rows)
def _(d: Array, out: Array, table: Any, indices: Array, dtype: Any) -> dict[str, Any]:
    rows, wide = indices.size, wide_type(d.dtype)

    def part(taken: slice) -> Any:
        given, places = d.reshape(rows, d.shape[-1]), indices.reshape(-1)
        return sum_taken_rows(given[taken], places[taken], len(table), wide)

    def after(before: Any) -> Any:
        if before is None:
            return sum_taken_rows(d, indices, len(table), wide)
        return functools.reduce(add, map(part, blocks_of(rows, BLOCK)), before)

    return {"table": RowSum(rows, BLOCK, after, part)}


@gradient_of(taken_along)
def _(d: Array, out: Array, x: Array, indices: Array, axis: int) -> dict[str, Any]:
    def make(dtype: Any) -> Array:
        found = added_along(d, indices, x.shape[axis], axis)
        return found if found.dtype == dtype else cast(found, dtype)

    return {"x": make}


@gradient_of(put_along_axis)
def _(
    d: Array, out: Array, x: Array, indices: Any, updates: Array, axis: int, reduction: str | None = None
) -> dict[str, Any]:
    if reduction not in (None, "add"):
        raise UngradedError(f"put_along_axis has no gradient with the reduction {reduction!r}: use None or 'add'")
    places = indices if isinstance(indices, np.ndarray) else np.asarray(indices)
    of_x = d if reduction else put_along_axis(d, places, np.zeros(updates.shape, d.dtype), axis)
    return {"x": of_x, "updates": taken_along(d, places, axis % d.ndim)}
