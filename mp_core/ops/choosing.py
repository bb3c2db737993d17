"""Sort, select, repeat and shift elements, under Keras' names."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import Array, asarray
from mp_core.arrays.recorded import recordable
from mp_core.ops import choosing_specs as specs
from mp_core.ops.arrangement import array_of, broadcast_to, concatenate, ravel, reshape
from mp_core.ops.indexing import take, taken_along
from mp_core.ops.ordering import order_along
from mp_core.ops.registry import operation
from mp_core.utilities.arguments import axis_of, integer, positive_integer
from mp_core.utilities.docstrings import shown

__all__ = ["TopK", "argsort", "repeat", "roll", "sort", "tile", "top_k"]


class TopK(NamedTuple):
    """The result of :func:`top_k`."""

    values: Any
    indices: Any


@operation(specs.sorted_along, options="axis")
@shown("{}([3.0, 1.0, 2.0])", "array([1., 2., 3.])")
def sort(x: ArrayLike, axis: int = -1) -> Array:
    """Return the elements sorted in ascending order along an axis, NaN last. Equal elements keep their order."""
    array = array_of(x)
    axis = axis_of(axis, array.ndim)
    return taken_along(array, argsort(array, axis), axis)


@operation(specs.order, options="axis")
@recordable
@shown("{}([3.0, 1.0, 2.0])", "array([1, 2, 0], dtype=int32)")
def argsort(x: ArrayLike, axis: int = -1) -> Array:
    """Return the int32 indices that sort an array along an axis in ascending order; equal elements keep their order."""
    array = asarray(x)
    axis = axis_of(axis, array.ndim)
    return order_along(array, axis, array.shape[axis])


@operation(specs.largest, options="k sorted", home="math")
@shown("{}([3.0, 1.0, 2.0], 2)", "TopK(values=array([3., 2.]), indices=array([0, 2], dtype=int32))")
def top_k(x: ArrayLike, k: int, sorted: bool = True) -> TopK:
    """Return the `k` largest elements of each row and their indices, the largest first.

    Parameters
    ----------
    x : array-like
        With at least one axis; the rows are the vectors along the last axis.
    k : int
        From 1 to the length of a row.
    sorted : bool
        Without effect: the result is always sorted, and equal elements keep their order.

    Returns
    -------
    TopK
        ``values`` and ``indices``, the latter in int32.
    """
    array = array_of(x)
    axis = axis_of(-1, array.ndim)
    if positive_integer(k, "k") > array.shape[axis]:
        raise ValueError(f"`k` must be at most {array.shape[axis]}, the length of a row; received {k}")
    places = _largest(array, k)
    return TopK(taken_along(array, places, axis), places)


@recordable
def _largest(x: Array, k: int) -> Array:
    array = asarray(x)
    return order_along(array, array.ndim - 1, k, descending=True)


@operation(specs.repeated, options="repeats axis")
@shown("{}([1, 2], 2)", "array([1, 1, 2, 2])")
def repeat(x: ArrayLike, repeats: int | Sequence[int], axis: int | None = None) -> Array:
    """Repeat each slice along an axis `repeats` times; by default each element of the flattened array."""
    array = array_of(x)
    if axis is None:
        array, axis = ravel(array), 0
    axis = axis_of(axis, array.ndim)
    length = array.shape[axis]
    counts = np.ravel(repeats)
    if counts.dtype.kind not in "iu" or counts.size not in (1, length) or (counts < 0).any():
        raise ValueError(
            f"`repeats` must be an integer from 0 on, or one for each of {length} parts; received {repeats}"
        )
    if counts.size > 1:
        return take(array, np.repeat(np.arange(length), counts), axis)
    count, shape = int(counts[0]), array.shape
    wide = broadcast_to(reshape(array, (*shape[: axis + 1], 1, *shape[axis + 1 :])),
                        (*shape[: axis + 1], count, *shape[axis + 1 :]))  # fmt: skip
    return reshape(wide, (*shape[:axis], length * count, *shape[axis + 1 :]))


@operation(specs.tiled, options="repeats")
@shown("{}([1, 2], (2, 2))", "array([[1, 2, 1, 2],\n       [1, 2, 1, 2]])")
def tile(x: ArrayLike, repeats: int | Sequence[int]) -> Array:
    """Repeat an array along its axes. `repeats` counts for the last axes; additional counts make new leading axes."""
    array, counts = array_of(x), specs.counts_of(repeats)
    ndim = max(array.ndim, len(counts))
    array = reshape(array, ((1,) * (ndim - array.ndim) + array.shape))
    for axis, count in enumerate((1,) * (ndim - len(counts)) + counts):
        if count > 1:
            array = concatenate([array] * count, axis)
        elif count == 0:
            array = array[(*[slice(None)] * axis, slice(0))]
    return array


@operation(specs.rolled, options="shift axis")
@shown("{}([1, 2, 3], 1)", "array([3, 1, 2])")
def roll(x: ArrayLike, shift: int, axis: int | None = None) -> Array:
    """Shift the elements along an axis; elements shifted beyond the end continue at the beginning."""
    array, shift = array_of(x), integer(shift, "shift")
    if axis is None:
        return reshape(roll(ravel(array), shift, 0), array.shape)
    axis = axis_of(axis, array.ndim)
    length = array.shape[axis]
    if length == 0 or shift % length == 0:
        return array
    before = (slice(None),) * axis
    place = length - shift % length
    return concatenate([array[(*before, slice(place, None))], array[(*before, slice(place))]], axis)
