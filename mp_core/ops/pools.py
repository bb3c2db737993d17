"""Maxima and means of windows, under Keras' names, with the options of ONNX and torch."""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, F64, Array, cast
from mp_core.arrays.dtypes import ALLOWED, is_float
from mp_core.arrays.recorded import constant
from mp_core.ops import spatial
from mp_core.ops.arrangement import array_of, broadcast_to, moveaxis
from mp_core.ops.comparisons import greater
from mp_core.ops.elementwise import computed, concatenated, floating, rounded
from mp_core.ops.functions import max as largest_of
from mp_core.ops.functions import where
from mp_core.ops.logic import isnan, logical_or
from mp_core.ops.padding import pad
from mp_core.ops.pairs import maximum
from mp_core.ops.registry import operation
from mp_core.ops.spatial import Padding
from mp_core.ops.sums import mean
from mp_core.ops.windows import parts_of_windows, window_maxima, window_sums
from mp_core.utilities.arguments import boolean
from mp_core.utilities.docstrings import documented

__all__ = ["adaptive_average_pool", "adaptive_max_pool", "average_pool", "max_pool"]

_WINDOWS = documented("""
    Parameters
    ----------
    inputs : array-like, shape (batch, places ..., channels)
        One to three axes of places.
    pool_size : int or sequence of int
        The lengths of a window.
    strides : int or sequence of int, optional
        The distances between windows. Default: `pool_size`.
    padding : {"valid", "same"}, int or sequence of (int or pair of int)
        "same": as many places outside of the inputs as give ceil(length / stride) windows. Numbers: so many places
        before and after each axis, fewer than the window has.
    data_format : {"channels_last", "channels_first"}, optional
        With "channels_first", the shape is (batch, channels, places ...).
    ceil_mode : bool
        Whether a last window may exceed the inputs and the padding, if it begins before the end of the inputs.

    Raises
    ------
    ValueError
        The inputs, with their padding, are smaller than a window; or an argument is out of range.
""")


@operation(spatial.pooled, "inputs", "pool_size strides padding data_format", home="nn")
@_WINDOWS
def max_pool(
    inputs: ArrayLike,
    pool_size: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: Padding = "valid",
    data_format: str | None = None,
    *,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the largest element of each window, for each channel; NaN if there is a NaN.

    Places outside of the inputs do not count. Integers of 8 and 16 bits stay integers.

    Parameters
    ----------
    dilation : int or sequence of int
        The distances between the places of a window.
    return_indices : bool
        Whether to return (values, indices). Indices are int32 and count the places of the inputs in C order; the first
        of equal elements, and the last NaN, is found.

    Returns
    -------
    ndarray, or tuple of ndarray

    Examples
    --------
    >>> max_pool(np.float32([1, 3, 2, 4]).reshape(1, 4, 1), 2).ravel()
    array([3., 4.], dtype=float32)
    """
    array = array_of(inputs)
    if not is_float(array.dtype) and array.dtype.itemsize > 2:
        raise TypeError(f"`inputs` must be floats, or integers of at most 16 bits; received {array.dtype}")
    wide = array if is_float(array.dtype) and array.dtype.itemsize > 1 else cast(array, F32)  # float8 may lack -Inf
    w = _windows_of(wide, pool_size, strides, padding, data_format, dilation, ceil_mode)
    padded = _padded(w.x, w.widths, -math.inf)
    if boolean(return_indices, "return_indices"):
        values, places = _maxima_and_places(padded, _numbers(w), w)
        return moveaxis(cast(values, array.dtype), -1, w.to), moveaxis(cast(places, ALLOWED["int32"]), -1, w.to)
    if max(w.rates) == 1:
        values = window_maxima(padded, w.size, w.steps)
    else:
        values = reduce(maximum, parts_of_windows(padded, w.size, w.steps, w.rates))
    return moveaxis(values if values.dtype == array.dtype else cast(values, array.dtype), -1, w.to)


class _Windows(NamedTuple):
    x: Array  # the inputs, channels last
    size: tuple[int, ...]  # for each spatial axis the places of a window,
    steps: tuple[int, ...]  # the distance to the next window,
    rates: tuple[int, ...]  # and that to the next place of the window
    declared: list[tuple[int, int]]  # places before and after each spatial axis, of `padding`
    widths: list[tuple[int, int]]  # all of them: also those that `ceil_mode` adds
    to: int  # the axis of the channels in the result


def _windows_of(
    x: Array, pool_size: Any, strides: Any, padding: Padding, data_format: str | None, dilation: Any, ceil_mode: bool
) -> _Windows:
    """Check the arguments of a pooling."""
    if not 3 <= x.ndim <= 5:
        raise ValueError(f"`inputs` must have a batch axis, one to three spatial axes and a channels axis; received "
                         f"shape {x.shape}")  # fmt: skip
    to = -1 if spatial.data_format_of(data_format) == "channels_last" else 1
    x, rank = moveaxis(x, to, -1), x.ndim - 2
    size, rates = spatial.sizes_of(pool_size, "pool_size", rank), spatial.sizes_of(dilation, "dilation", rank)
    steps = size if strides is None else spatial.sizes_of(strides, "strides", rank)
    lengths, spans = x.shape[1:-1], spatial.spans_of(size, rates)
    given = padding, lengths, spans, steps
    declared, widths = spatial.padding_of(*given), spatial.padding_of(*given, boolean(ceil_mode, "ceil_mode"))
    if any(n + sum(pair) < span for n, pair, span in zip(lengths, widths, spans, strict=True)):
        raise ValueError(f"`pool_size` must be at most the spatial lengths of `inputs`, {lengths}; received {size}, "
                         f"dilation={rates}")  # fmt: skip
    return _Windows(x, size, steps, rates, declared, widths, to)


def _padded(x: Array, widths: Sequence[tuple[int, int]], outside: float) -> Array:
    return pad(x, [(0, 0), *widths, (0, 0)], outside) if any(map(any, widths)) else x


def _numbers(w: _Windows) -> Array:
    """Return the numbers of the places in C order, with the padding, as an array to compare with in float32."""
    lengths = w.x.shape[1:-1]
    if math.prod(lengths) > 2**24:
        raise ValueError(f"indices must be at most 2**24, which float32 holds; received spatial lengths {lengths}")
    return _padded(np.arange(math.prod(lengths), dtype=F32).reshape(1, *lengths, 1), w.widths, 0.0)


def _maxima_and_places(x: Array, numbers: Array, w: _Windows) -> tuple[Array, Array]:
    """Return the maxima of windows, and the element of `numbers` at each of them."""
    parts, places = (parts_of_windows(each, w.size, w.steps, w.rates) for each in (x, numbers))
    largest, found = parts[0], constant(np.ascontiguousarray(places[0]))
    for part, place in zip(parts[1:], places[1:], strict=True):
        is_next = logical_or(greater(part, largest), isnan(part))
        found = where(is_next, constant(np.ascontiguousarray(place)), found)
        largest = maximum(largest, part)
    return largest, broadcast_to(found, largest.shape)


@operation(spatial.pooled, "inputs", "pool_size strides padding data_format", home="nn")
@_WINDOWS
def average_pool(
    inputs: ArrayLike,
    pool_size: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: Padding = "valid",
    data_format: str | None = None,
    *,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Array:
    """Return the mean of each window, for each channel: the sum, accumulated in float32, is divided by the count.

    Parameters
    ----------
    dilation : int or sequence of int
        The distances between the places of a window.
    count_include_pad : bool
        Whether the places of `padding` count, as zeros. Those that `ceil_mode` adds never do.

    Returns
    -------
    ndarray
        In the type of `inputs`; integers give float32.

    Examples
    --------
    >>> average_pool(np.float32([1, 3, 2, 4]).reshape(1, 4, 1), 3, 1, padding="same").ravel()
    array([2., 2., 3., 3.], dtype=float32)
    """
    array = floating(array_of(inputs), F32)
    w = _windows_of(array, pool_size, strides, padding, data_format, dilation, ceil_mode)
    counts = _counts(w, boolean(count_include_pad, "count_include_pad"))
    sums = _sums(_padded(w.x, w.widths, 0.0), w)
    return moveaxis(computed("divide", sums, constant(cast(counts, sums.dtype)), dtype=array.dtype), -1, w.to)


def _sums(x: Array, w: _Windows) -> Array:
    """Return the sums of windows in float32, or in float64 for float64, added over their places in C order."""
    if max(w.rates) == 1:
        return window_sums(x, w.size, w.steps)
    wide = F64 if x.dtype == F64 else F32
    first, *others = parts_of_windows(x, w.size, w.steps, w.rates)
    return reduce(lambda total, part: computed("add", total, part, dtype=wide), others, cast(first, wide))


def _counts(w: _Windows, has_padding: bool) -> Array:
    """Return the number of places that count in each window, or one number if all are equal."""
    there = np.ones((1, *w.x.shape[1:-1], 1), F32)
    outside = w.widths
    if has_padding:
        there = _padded(there, w.declared, 1.0)
        outside = [(0, after - own) for (_, after), (_, own) in zip(w.widths, w.declared, strict=True)]
    counts = _sums(_padded(there, outside, 0.0), w)
    return counts.ravel()[:1] if (counts == counts.flat[0]).all() else counts


_ADAPTIVE = documented("""
    Parameters
    ----------
    inputs : array-like, shape (batch, places ..., channels)
        One to three axes of places.
    output_size : int or sequence of int
        The number of windows along each axis of places. Window i of n along an axis of length L begins at
        ``i * L // n`` and ends before ``ceil((i + 1) * L / n)``.
    data_format : {"channels_last", "channels_first"}, optional
        With "channels_first", the shape is (batch, channels, places ...).

    Returns
    -------
    ndarray
        In the type of `inputs`; integers give float32.

    Raises
    ------
    ValueError
        An axis of places has no elements, or an argument is out of range.
""")


@operation(spatial.adapted, "inputs", "output_size data_format", home="nn")
@_ADAPTIVE
def adaptive_average_pool(inputs: ArrayLike, output_size: int | Sequence[int], data_format: str | None = None) -> Array:
    """Return the means of a given number of windows, for each channel, in float32, rounded once.

    Examples
    --------
    >>> adaptive_average_pool(np.float32([1, 3, 2, 4]).reshape(1, 4, 1), 2).ravel()
    array([2., 3.], dtype=float32)
    """
    return _adapted(mean, inputs, output_size, data_format)


@operation(spatial.adapted, "inputs", "output_size data_format", home="nn")
@_ADAPTIVE
def adaptive_max_pool(inputs: ArrayLike, output_size: int | Sequence[int], data_format: str | None = None) -> Array:
    """Return the largest elements of a given number of windows, for each channel.

    Examples
    --------
    >>> adaptive_max_pool(np.float32([1, 3, 2, 4]).reshape(1, 4, 1), 2).ravel()
    array([3., 4.], dtype=float32)
    """
    return _adapted(largest_of, inputs, output_size, data_format)


def _adapted(function: Callable[..., Array], inputs: ArrayLike, output_size: Any, data_format: str | None) -> Array:
    """Pool one axis after the other. Windows are boxes, so a mean of means is the mean of the window."""
    array = floating(array_of(inputs), F32)
    spatial.adapted(array, output_size, data_format)  # checks the arguments
    axes = spatial.axes_of_places(array.ndim, data_format)
    counts = spatial.sizes_of(output_size, "output_size", len(axes))

    def pooled(x: Array) -> Array:
        for axis, count in zip(axes, counts, strict=True):
            length = array.shape[axis]
            spans = [slice(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]
            windows = [x[(slice(None),) * axis + (span,)] for span in spans]
            x = concatenated(*(function(window, axis, keepdims=True) for window in windows), axis=axis)
        return x

    return rounded(pooled, array)
