"""Sort, select, repeat and shift elements, under Keras' names."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import Array, asarray
from mp_core.arrays.dtypes import ALLOWED, is_float
from mp_core.arrays.recorded import recordable
from mp_core.ops import choosing_specs as specs
from mp_core.ops.arrangement import array_of, broadcast_to, concatenate, moveaxis, ravel, reshape
from mp_core.ops.lookup import take_rows
from mp_core.ops.registry import operation
from mp_core.utilities.arguments import axis_of, integer, positive_integer
from mp_core.utilities.docstrings import shown

__all__ = ["TopK", "argsort", "repeat", "roll", "sort", "take", "tile", "top_k"]


class TopK(NamedTuple):
    """The result of :func:`top_k`."""

    values: Any
    indices: Any


@operation(specs.sorted_along, options="axis")
@recordable
@shown("{}([3.0, 1.0, 2.0])", "array([1., 2., 3.])")
def sort(x: ArrayLike, axis: int = -1) -> Array:
    """Return the elements sorted in ascending order along an axis, NaN last. NumPy sorts, so plans cannot record it."""
    array = asarray(x)
    return np.sort(array, axis_of(axis, array.ndim), stable=True)


@operation(specs.order, options="axis")
@recordable
@shown("{}([3.0, 1.0, 2.0])", "array([1, 2, 0], dtype=int32)")
def argsort(x: ArrayLike, axis: int = -1) -> Array:
    """Return the int32 indices that sort an array along an axis in ascending order; equal elements keep their order.

    NumPy sorts, so plans cannot record it.
    """
    array = asarray(x)
    return np.argsort(array, axis_of(axis, array.ndim), stable=True).astype(ALLOWED["int32"])


@operation(specs.largest, options="k sorted", home="math")
@recordable
@shown("{}([3.0, 1.0, 2.0], 2)", "TopK(values=array([3., 2.]), indices=array([0, 2], dtype=int32))")
def top_k(x: ArrayLike, k: int, sorted: bool = True) -> TopK:
    """Return the `k` largest elements of each row and their indices, the largest first.

    NumPy sorts, so plans cannot record it.

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
    array = asarray(x)
    length = array.shape[axis_of(-1, array.ndim)]
    if positive_integer(k, "k") > length:
        raise ValueError(f"`k` must be at most {length}, the length of a row; received {k}")
    last_first = np.argsort(array[..., ::-1], -1, stable=True)[..., ::-1]  # keeps the order of equal elements
    places = (length - 1 - last_first)[..., :k]
    return TopK(np.take_along_axis(array, places, -1), places.astype(ALLOWED["int32"]))


@operation(specs.taken, "x indices", "axis")
@shown("{}(np.float32([[1, 2, 3], [4, 5, 6]]), [0, -1], axis=1)", "array([[1., 3.],\n       [4., 6.]], dtype=float32)")
def take(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> Array:
    """Return the slices of an array at `indices` along an axis.

    Parameters
    ----------
    x : array-like
    indices : array-like of int
        Negative indices count from the end.
    axis : int, optional
        Default: the indices count the elements of the flattened array.
    """
    array, places = array_of(x), array_of(indices)
    if not is_float(array.dtype):
        return np.take(asarray(array), asarray(places), axis)
    if axis is None:
        array, axis = ravel(array), 0
    axis = axis_of(axis, array.ndim)
    if type(places) is np.ndarray:
        places = np.where(places < 0, places + array.shape[axis], places)
    first = moveaxis(array, axis, 0)
    rows = reshape(first, (first.shape[0], -1))
    found = reshape(take_rows(rows, places, rows.dtype), (*places.shape, *first.shape[1:]))
    goals = list(range(axis, axis + places.ndim))
    return moveaxis(found, list(range(places.ndim)), goals) if goals else found


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
