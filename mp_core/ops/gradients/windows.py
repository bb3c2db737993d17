"""Gradients of views with repeated elements (the windows of convolutions, and broadcasts), and of pooling."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from mp_core.arrays import F64, FORMATS, Array, cast, contiguous
from mp_core.arrays.recorded import recordable
from mp_core.core.convert import filled
from mp_core.core.pairs import add_windows
from mp_core.core.pooling import pool_windows
from mp_core.ops.gradients.registry import gradient_of, wide_type
from mp_core.ops.windows import overlap_add, parts_of_windows, window_maxima, window_sums, windows_of

__all__ = ["added_windows", "maxima_gradient", "repeats", "sums_gradient"]


def repeats(x: Array) -> bool:
    """Return whether a view may have an element of its memory several times.

    Examples
    --------
    >>> x = np.zeros((4, 6))
    >>> from numpy.lib.stride_tricks import sliding_window_view
    >>> repeats(x[::2, ::-1]), repeats(sliding_window_view(x, 3, axis=1)), repeats(np.broadcast_to(x, (2, 4, 6)))
    (False, True, True)
    """
    reach = 0
    for stride, length in sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (length - 1)
    return False


@recordable
def added_windows(x: Array, elements: int, first: int, strides: tuple[int, ...], dtype: Any) -> Array:
    """Return the gradient of a buffer from that of a view in which elements repeat.

    ``result[first + sum(index * strides)]`` is the sum of ``x[index]`` over all such indices, in C order, in float32.

    Parameters
    ----------
    x : ndarray of float
    elements : int
        How many the buffer has.
    first : int
        The element at which the view begins.
    strides : tuple of int
        In elements.
    dtype : dtype
        That of the result: sums are rounded once.

    Returns
    -------
    ndarray, shape (elements,)

    Examples
    --------
    >>> added_windows(np.ones((3, 2), np.float32), 4, 0, (1, 1), np.dtype(np.float32))
    array([1., 2., 2., 1.], dtype=float32)
    """
    out = filled((elements,), wide_type(x.dtype), 0.0)
    to = as_strided(out[first:], x.shape, [stride * out.itemsize for stride in strides])
    if x.dtype is F64:
        np.add.at(out, first + np.tensordot(strides, np.indices(x.shape), 1), x)
    elif x.size:
        add_windows(FORMATS[x.dtype], contiguous(x), to)
    return out if out.dtype is dtype else cast(out, dtype)


@gradient_of(overlap_add)
def _(d: Array, out: Array, x: Array, strides: Sequence[int], dilation: Sequence[int]) -> dict[str, Any]:
    return {"x": windows_of(d, x.shape[len(strides) + 1 : -1], strides, dilation)}


# ---- pooling


@recordable
def maxima_gradient(d: Array, x: Array, size: Sequence[int], strides: Sequence[int], dtype: Any) -> Array:
    """Return the gradient of an array from that of the maxima of its windows.

    The maxima are those of the first two places of a window, of this and the third place, and so on. The gradient of
    each goes to the larger one of both, half of it to each where they are equal, and is 0 for both at NaN. Windows that
    overlap add up, in C order, in float32.

    Parameters
    ----------
    d : ndarray of float, shape (batch, windows ..., channels)
    x : ndarray of float, shape (batch, places ..., channels)
    size, strides : sequence of int
        As in :func:`mp_core.ops.window_maxima`.
    dtype : dtype
        That of the result: sums are rounded once.

    Returns
    -------
    ndarray
        The shape of `x`.

    Examples
    --------
    >>> x = np.float32([1, 3, 3, 3]).reshape(1, 4, 1)
    >>> maxima_gradient(np.ones((1, 2, 1), np.float32), x, (2,), (2,), np.float32).ravel()
    array([0. , 1. , 0.5, 0.5], dtype=float32)
    """
    out = np.zeros(x.shape, dtype)
    if out.dtype == F64:
        _spread(d, out, size, strides, parts_of_windows(x, size, strides))
    elif d.size:
        pool_windows("maxima gradient", tuple(size), tuple(strides), FORMATS, out, contiguous(x), contiguous(d))
    return out


@recordable
def sums_gradient(d: Array, shape: tuple[int, ...], size: Sequence[int], strides: Sequence[int], dtype: Any) -> Array:
    """Return the gradient of an array of a shape from that of the sums of its windows.

    Parameters
    ----------
    d, size, strides, dtype
        As for :func:`maxima_gradient`.
    shape : tuple of int

    Returns
    -------
    ndarray

    Examples
    --------
    >>> sums_gradient(np.ones((1, 2, 1), np.float32), (1, 4, 1), (3,), (1,), np.float32).ravel()
    array([1., 2., 2., 1.], dtype=float32)
    """
    out = np.zeros(shape, dtype)
    if out.dtype == F64:
        _spread(d, out, size, strides, None)
    elif d.size:
        pool_windows("sums gradient", tuple(size), tuple(strides), FORMATS, out, None, contiguous(d))
    return out


def _spread(d: Array, out: Array, size: Sequence[int], strides: Sequence[int], parts: list[Array] | None) -> None:
    """Add gradients of float64 in the place of those of windows; `parts`: of what maxima were taken."""
    places = parts_of_windows(out, size, strides)
    if parts is None:
        for place in places:
            place += d
        return
    maxima = list(accumulate(parts, np.maximum))
    for part, before, place in zip(parts[:0:-1], maxima[-2::-1], places[:0:-1], strict=True):
        equal = np.where(part == before, d / 2, 0.0)
        place += np.where(part > before, d, equal)
        d = np.where(before > part, d, equal)
    places[0] += d


@gradient_of(window_maxima)
def _(d: Array, out: Array, x: Array, size: Sequence[int], strides: Sequence[int]) -> dict[str, Any]:
    return {"x": lambda dtype: maxima_gradient(d, x, size, strides, dtype)}


@gradient_of(window_sums)
def _(d: Array, out: Array, x: Array, size: Sequence[int], strides: Sequence[int]) -> dict[str, Any]:
    return {"x": lambda dtype: sums_gradient(d, x.shape, size, strides, dtype)}
