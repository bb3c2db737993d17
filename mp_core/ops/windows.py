"""Sliding windows: views of them, their maxima and sums, and the sum of overlapping windows."""

import itertools
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from mp_core.arrays import F32, F64, FORMATS, Array, as_float, contiguous
from mp_core.arrays.recorded import recordable
from mp_core.core.convert import filled
from mp_core.core.pairs import add_windows
from mp_core.core.pooling import pool_windows
from mp_core.ops.convolution_specs import spans_of
from mp_core.utilities.arguments import positive_integer
from mp_core.utilities.docstrings import shown

__all__ = ["overlap_add", "parts_of_windows", "window_maxima", "window_sums", "windows_of"]


@recordable
def window_maxima(x: Any, size: Sequence[int], strides: Sequence[int]) -> Array:
    """Return the largest element of every window, for each channel; NaN if there is a NaN; +0 is larger than -0.

    Parameters
    ----------
    x : array-like, shape (batch, places ..., channels)
        One to three axes of places; float, integers become float32.
    size : sequence of int
        The lengths of a window along the axes of places.
    strides : sequence of int
        The distances from one window to the next along these axes.

    Returns
    -------
    ndarray, shape (batch, windows ..., channels)
        In the type of `x`; only windows that are completely inside.

    Examples
    --------
    >>> window_maxima(np.array([[[1.0], [3.0], [2.0], [4.0]]], np.float32), [2], [2])
    array([[[3.],
            [4.]]], dtype=float32)
    """
    x = as_float(x)
    return _pooled("maxima", x, x.dtype, size, strides)


@recordable
@shown(
    "{}(np.array([[[1.0], [3.0], [2.0], [4.0]]], np.float32), [3], [1])",
    "array([[[6.],\n        [9.]]], dtype=float32)",
)
def window_sums(x: Any, size: Sequence[int], strides: Sequence[int]) -> Array:
    """Return the sum of every window, for each channel, added over its places in C order, in float32.

    Arguments and shape of the result are those of :func:`window_maxima`. The result is float32, or float64 for float64.
    """
    x = as_float(x)
    return _pooled("sums", x, F64 if x.dtype == F64 else F32, size, strides)


def _pooled(what: str, x: Array, dtype: Any, size: Sequence[int], strides: Sequence[int]) -> Array:
    size, strides = (tuple(positive_integer(n, name) for n in given) for given, name in
                     ((size, "size"), (strides, "strides")))  # fmt: skip
    if not 3 <= x.ndim <= 5 or len(size) != x.ndim - 2 or len(strides) != x.ndim - 2:
        raise ValueError(
            "`x` must have shape (batch, one to three spatial lengths, channels), and `size` and `strides` a number "
            f"for each spatial axis; received shape {x.shape}, size={size} and strides={strides}"
        )
    places = x.shape[1:-1]
    if any(length < span for length, span in zip(places, size, strict=True)):
        raise ValueError(f"`size` must be at most the spatial lengths of `x`, {places}; received {size}")
    if dtype == F64:
        with np.errstate(all="ignore"):
            return np.array(reduce(np.maximum if what == "maxima" else np.add, parts_of_windows(x, size, strides)))
    windows = ((length - span) // step + 1 for length, span, step in zip(places, size, strides, strict=True))
    out = np.empty((len(x), *windows, x.shape[-1]), dtype)
    if out.size:
        pool_windows(what, size, strides, FORMATS, out, contiguous(x))
    return out


def parts_of_windows(
    x: Array, size: Sequence[int], strides: Sequence[int], dilation: Sequence[int] | None = None
) -> list[Array]:
    """Return for each place in a window a view of the elements that all windows have at this place.

    `dilation` has the distances between the places of a window; by default they are neighbours.

    Examples
    --------
    >>> [part.ravel().tolist() for part in parts_of_windows(np.arange(5.0).reshape(1, 5, 1), [2], [2])]
    [[0.0, 2.0], [1.0, 3.0]]
    """
    spans = [
        [slice(rate * place, length - rate * (span - 1 - place), step) for place in range(span)]
        for length, span, step, rate in zip(x.shape[1:-1], size, strides, dilation or [1] * len(size), strict=True)
    ]
    return [x[:, *place] for place in itertools.product(*spans)]


# ---- windows with dilation, as convolutions have them


def windows_of(x: Array, size: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> Array:
    """Return a view of all windows that are completely inside `x`, shape (batch, windows ..., size ..., channels).

    `x` has the shape (batch, places ..., channels). For each axis of places, there are the number of elements of a
    window, the distance to the next window (`strides`), and the distance to the next element of the window
    (`dilation`).

    Examples
    --------
    >>> windows_of(np.arange(6.0).reshape(1, 6, 1), [2], [1], [3])[0, :, :, 0]
    array([[0., 3.],
           [1., 4.],
           [2., 5.]])
    """
    axes = tuple(range(1, len(size) + 1))
    windows = sliding_window_view(x, spans_of(size, dilation), axis=axes)
    steps = (slice(None, None, step) for step in (*strides, 1, *dilation))
    return np.moveaxis(windows[:, *steps], len(size) + 1, -1)


@recordable
@shown("{}(np.ones((1, 3, 2, 1), np.float32), [1], [1])[0, :, 0]", "array([1., 2., 2., 1.], dtype=float32)")
def overlap_add(x: Array, strides: Sequence[int], dilation: Sequence[int]) -> Array:
    """Return the sum of overlapping windows, each added at its position: the transpose of :func:`windows_of`.

    Each element starts at +0. The elements of the windows are added in C order (batch, windows, places of a window), in
    float32. In float64 the outermost loop is that over the places of a window, and the result is float64.
    """
    rank = len(strides)
    counts, size = x.shape[1 : rank + 1], x.shape[rank + 1 : -1]
    spans = spans_of(size, dilation)
    places = [(count - 1) * step + span for count, step, span in zip(counts, strides, spans, strict=True)]
    out = filled((len(x), *places, x.shape[-1]), F64 if x.dtype == F64 else F32, 0.0)
    if not x.size:
        return out
    to = as_strided(out, x.shape, windows_of(out, size, strides, dilation).strides)
    if x.dtype != F64:
        add_windows(FORMATS[x.dtype], contiguous(x), to)
        return out
    for place in itertools.product(*map(range, size)):  # within one place of the windows, elements of `to` are distinct
        part = (slice(None),) * (rank + 1) + place
        to[part] += x[part]
    return out
