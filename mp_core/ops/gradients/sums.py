"""Sums over rows in K blocks, and the rules of sums and means."""

from math import prod
from typing import Any

import numpy as np

from mp_core.arrays import F32, F64, FORMATS, Array, cast, contiguous
from mp_core.arrays.recorded import recordable
from mp_core.core import sums as _sums
from mp_core.ops.elementwise import computed
from mp_core.ops.gradients.registry import Summed, gradient_of, wide_type
from mp_core.ops.sums import mean, sum

__all__ = ["BLOCK", "blocks_of", "rows_behind", "sum_rows", "summed_rows"]

BLOCK = 1024
"""The rows of a K block of products in float32, and of :func:`sum_rows`."""


def rows_behind(x: Array, axes: tuple[int, ...]) -> Array:
    """Return `x` as a matrix: the given axes, none of them negative and in ascending order, are its columns."""
    order = [axis for axis in range(x.ndim) if axis not in axes] + list(axes)
    columns = prod(x.shape[axis] for axis in axes)
    return contiguous(x.transpose(order)).reshape(x.size // columns if columns else 0, columns)


@recordable
def sum_rows(
    x: Array,
    axes: tuple[int, ...] | None = None,
    *,
    dtype: Any = F32,
    before: Array | None = None,
    part: slice = slice(None),
) -> Array:
    """Return the sum over all axes but some, added in float32 in K blocks: the gradient of what every row shares.

    The index into the axes that are summed is a row. Rows are added in blocks of 1024 from the front: the sum of each
    block starts at +0, and block sums are added in order, to `before` if that is given. So the sums of rows that come
    in several calls have the bits of one call, if all calls but the last have whole blocks.

    Parameters
    ----------
    x : ndarray of float
    axes : tuple of int, optional
        The axes that stay, in ascending order. Default: the last one.
    dtype : dtype
        That of the result: sums are rounded once.
    before : ndarray of float32, optional
        The sum of earlier rows, in the shape of the result (float64 of float64 `x`).
    part : slice
        Which rows; default: all.

    Returns
    -------
    ndarray
        The lengths of the axes that stay.

    Examples
    --------
    >>> sum_rows(np.ones((2, 3, 4), np.float16))
    array([6., 6., 6., 6.], dtype=float32)
    """
    kept = (x.ndim - 1,) if axes is None else axes
    shape = tuple(x.shape[axis] for axis in kept)
    wide = wide_type(x.dtype)
    rows = rows_behind(x, kept)[part]
    out = np.zeros(shape, wide) if before is None or rows.size == 0 else np.empty(shape, wide)
    if x.dtype == F64:
        out = rows.sum(axis=0).reshape(shape) + (0.0 if before is None else before)
    elif rows.size:
        given = None if before is None else contiguous(before).reshape(-1)
        _sums.row_sums(FORMATS[x.dtype], rows, out.reshape(-1), given)
    elif before is not None:
        out = cast(before, wide)
    return out if out.dtype == dtype else cast(out, dtype)


def summed_rows(x: Array, shape: tuple[int, ...], axes: tuple[int, ...] | None = None) -> Summed:
    """Return :func:`sum_rows` of an array as a gradient of a shape."""
    kept = (x.ndim - 1,) if axes is None else axes
    lengths, wide = tuple(x.shape[axis] for axis in kept), wide_type(x.dtype)

    def after(before: Any) -> Any:
        other = None if before is None else before.reshape(lengths)
        return sum_rows(x, kept, dtype=wide, before=other).reshape(shape)

    def part(rows: slice) -> Any:
        return sum_rows(x, kept, dtype=wide, part=rows).reshape(shape)

    return Summed(x.size // max(prod(lengths), 1), BLOCK, after, part)


def blocks_of(rows: int, block: int) -> list[slice]:
    """Return the K blocks of so many rows."""
    return [slice(begin, min(begin + block, rows)) for begin in range(0, rows, block)]


def _spread(d: Array, x: Any, axis: Any, keepdims: bool) -> Any:
    """Return the gradient of a sum at each element that was added: a view."""
    shape = np.shape(x)
    if not keepdims:
        summed = range(len(shape)) if axis is None else [each % len(shape) for each in np.atleast_1d(axis).tolist()]
        d = d.reshape(tuple(1 if place in summed else length for place, length in enumerate(shape)))
    return np.broadcast_to(d, shape)


@gradient_of(sum)
def _(d: Array, total: Array, x: Any, axis: Any = None, *, keepdims: bool = False, out_dtype: Any = None) -> Any:
    return {"x": _spread(d, x, axis, keepdims)}


@gradient_of(mean)
def _(d: Array, total: Array, x: Any, axis: Any = None, *, keepdims: bool = False, out_dtype: Any = None) -> Any:
    count = np.full(1, np.size(x) / max(total.size, 1), wide_type(d.dtype))

    def make(dtype: Any) -> Any:
        return _spread(computed("divide", d, count, dtype=dtype).reshape(d.shape), x, axis, keepdims)

    return {"x": make}
