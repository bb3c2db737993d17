"""Read and write elements at indices, under NumPy's and Keras' names. Negative indices count from the end.

Calls and steps of plans run the same kernel, which checks every index. Indices may depend on an input of a plan.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, Array, asarray, cast
from mp_core.arrays.conversion import STEP_FORMATS
from mp_core.arrays.dtypes import is_float, name_of
from mp_core.arrays.recorded import comes_from_input, constant, is_recorded, recordable, with_numbers
from mp_core.core.convert import copy_into, empty, filled
from mp_core.core.lookup import at_indices
from mp_core.ops import choosing_specs as specs
from mp_core.ops.arrangement import array_of, ravel, reshape
from mp_core.ops.comparisons import less
from mp_core.ops.functions import where
from mp_core.ops.lookup import take_rows
from mp_core.ops.pairs import add, minimum
from mp_core.ops.registry import operation
from mp_core.utilities.arguments import axis_of
from mp_core.utilities.docstrings import shown

__all__ = ["added_along", "gather_nd", "put_along_axis", "scatter", "scatter_update", "slice", "slice_update", "take",
           "take_along_axis", "taken_along"]  # fmt: skip

_slice = slice
REDUCTIONS = {None: "replace", "add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
"""Keras' name of what happens to elements at indices -> the kernel's name."""
_COMBINED = ("float32", "float64", "int32", "int64")
"""The types in which the kernel combines elements."""
_SUMMED = ("float32", "float16", "bfloat16")
"""The types of tables whose gradients :func:`mp_core.ops.take_rows` sums."""


def _places(indices: Any, argument: str = "indices") -> Array:
    """Return indices as int32 or int64; those of uint64 beyond int64 become its largest number, which is outside."""
    array = array_of(indices)
    if array.dtype.kind not in "iu":
        raise TypeError(f"`{argument}` must be integers; received {array.dtype}")
    if array.dtype.name == "uint64":
        array = minimum(array, 2**63 - 1)
    return array if array.dtype.name in ("int32", "int64") else cast(array, "int64")


def _known(x: Any) -> Array:
    """Return an array that a plan may read: a new one becomes a constant."""
    array = asarray(x)
    return array if comes_from_input(array) else constant(array)


def _at(how: str, array: Array, other: Array, indices: Array, axis: int) -> None:
    """Run the kernel; `indices` broadcasts to the shape of `other`, and so does `array` without its `axis`."""
    limit = array.shape[axis]
    if limit == 0:
        raise IndexError("an index is outside of an axis of length 0")
    base = array[(*[_slice(None)] * axis, _slice(0, 1))]
    views = [np.broadcast_to(x, other.shape) for x in (base, indices)]
    at_indices(how, STEP_FORMATS.get(array.dtype, 0), views[0], other, views[1], array.strides[axis], limit)


def _shape_of(x: Array, indices: Array, axis: int) -> tuple[int, ...]:
    """Return the common shape of the indices and of `x` without its `axis`."""
    rest = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    if x.ndim == indices.ndim:
        try:
            return np.broadcast_shapes(rest, indices.shape)
        except ValueError:
            pass
    raise ValueError(
        f"`indices` must have the axes of the array and broadcast against it except along axis {axis}; received shapes "
        f"{indices.shape} and {x.shape}"
    )


# ---- along one axis


@recordable
@with_numbers
@shown("{}(np.float32([[1, 2], [3, 4]]), np.array([[1], [0]]), 1)", "array([[2.],\n       [3.]], dtype=float32)")
def taken_along(x: Array, indices: Array, axis: int) -> Array:
    """Return the elements at `indices` along an axis; all other axes of both arrays broadcast."""
    array, places = _known(x), _known(indices)
    out = np.empty(_shape_of(array, places, axis), array.dtype)
    if out.size:
        _at("read", array, out, places, axis)
    return out


@recordable
def added_along(d: Array, indices: Array, length: int, axis: int) -> Array:
    """Return the gradient of :func:`taken_along`: sums of `d` at `indices` along an axis of `length`.

    Elements are added in C order, starting at +0, in float32, or in float64 if `d` is.

    Examples
    --------
    >>> added_along(np.float32([1, 2, 4]), np.array([1, 0, 1]), 2, 0)
    array([2., 5.], dtype=float32)
    """
    array, places = _known(d), _known(indices)
    array = array if array.dtype.name in _COMBINED else cast(array, F32)
    out: Array = filled((*array.shape[:axis], length, *array.shape[axis + 1 :]), array.dtype, 0)
    if array.size:
        _at("add", out, array, places, axis)
    return out


@recordable
@shown('{}(np.float32([1, 2, 3]), [0, 0], np.float32([5, 6]), 0, "add")', "array([12.,  2.,  3.], dtype=float32)")
def put_along_axis(
    x: ArrayLike, indices: ArrayLike, updates: ArrayLike, axis: int, reduction: str | None = None
) -> Array:
    """Return a copy of `x` whose elements at `indices` along an axis are replaced by, or combined with, `updates`.

    Parameters
    ----------
    x : array-like
    indices : array-like of int
        With the axes of `x`. Negative indices count from the end.
    updates : array-like
        Of the type of `x`, with a shape that `indices`, and `x` without this axis, broadcast to.
    axis : int
    reduction : {None, "add", "mul", "max", "min"}
        Updates of one element are applied in C order: without a reduction the last one remains. 16-bit and 8-bit floats
        are combined in float32 and rounded once, integers in their own type modulo 2^32 or 2^64.

    Raises
    ------
    IndexError
        An index is outside of the axis.
    TypeError
        `indices` are not integers, or `updates` have another type than `x`.
    ValueError
        The shapes do not fit, or `reduction` is unknown.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"`reduction` must be one of {list(REDUCTIONS)}; received {reduction!r}")
    array, places, other = _known(x), _places(indices), _known(updates)
    places = _known(places)
    axis = axis_of(axis, array.ndim)
    if other.dtype != array.dtype:
        raise TypeError(f"`updates` must have the type of `x`, {array.dtype}; received {other.dtype}")
    shape = _shape_of(array, places, axis)
    if other.ndim != len(shape) or any(n not in (1, m) for n, m in zip(shape, other.shape, strict=True)):
        raise ValueError(f"`updates` must have shape {shape}, that of `indices` and `x`; received {other.shape}")
    dtype, wide = array.dtype, array.dtype
    if reduction is not None and name_of(dtype) not in _COMBINED:
        wide = np.dtype(F32 if is_float(dtype) else np.int64)
    out: Array = empty(array.shape, wide)
    if out.size:
        copy_into(out, _known(cast(array, wide) if wide != dtype else array))
    if other.size:
        _at(REDUCTIONS[reduction], out, _known(cast(other, wide) if wide != dtype else other), places, axis)
    return cast(out, dtype) if wide != dtype else out


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

    Raises
    ------
    IndexError
        An index is outside of the axis.
    """
    array, places = array_of(x), _places(indices)
    if axis is None:
        array, axis = ravel(array), 0
    axis, shape = axis_of(axis, array.ndim), array.shape
    if axis == 0 and array.dtype.name in _SUMMED and is_recorded(array):  # sum the gradients of rows in blocks
        rows, flat = reshape(array, (shape[0], math.prod(shape[1:]))), ravel(places)
        flat = where(less(flat, 0), add(flat, shape[0]), flat)
        return reshape(take_rows(rows, flat, rows.dtype), (*places.shape, *shape[1:]))
    flat = reshape(places, (*(1,) * axis, -1, *(1,) * (array.ndim - axis - 1)))
    return reshape(taken_along(array, flat, axis), (*shape[:axis], *places.shape, *shape[axis + 1 :]))


@operation(specs.taken_along, "x indices", "axis")
@shown("{}(np.float32([[1, 2], [3, 4]]), [[1], [0]], 1)", "array([[2.],\n       [3.]], dtype=float32)")
def take_along_axis(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> Array:
    """Return the elements at `indices` along an axis, by default of the flattened array.

    Parameters
    ----------
    x : array-like
    indices : array-like of int
        With the axes of `x`; the other axes broadcast. Negative indices count from the end.
    axis : int, optional

    Raises
    ------
    IndexError
        An index is outside of the axis.
    """
    array, places = array_of(x), _places(indices)
    if axis is None:
        array, places, axis = ravel(array), ravel(places), 0
    return taken_along(array, places, axis_of(axis, array.ndim))


# ---- along several axes


def _offsets(indices: Any, shape: Sequence[int]) -> Array:
    """Return the places in the flattened first axes of `shape` that the last axis of `indices` names."""
    places = _places(indices)
    count = places.shape[-1] if places.ndim else 0
    if not 1 <= count <= len(shape):
        raise ValueError(f"the last axis of `indices` must name 1 to {len(shape)} axes; received shape {places.shape}")
    tables = [np.arange(n) * math.prod(shape[axis + 1 : count]) for axis, n in enumerate(shape[:count])]
    return reduce(add, [take(table, places[..., axis], 0) for axis, table in enumerate(tables)])


@shown("{}(np.float32([[1, 2], [3, 4]]), [[0, 1], [1, 0]])", "array([2., 3.], dtype=float32)")
def gather_nd(x: ArrayLike, indices: ArrayLike) -> Array:
    """Return the parts of an array at `indices`, each of which names a place along its first axes.

    Parameters
    ----------
    x : array-like
    indices : array-like of int, shape (..., count)
        A place along the first `count` axes of `x`. Negative indices count from the end.

    Returns
    -------
    ndarray, shape ``(*indices.shape[:-1], *x.shape[count:])``

    Raises
    ------
    IndexError
        An index is outside of its axis.
    """
    array, places = array_of(x), array_of(indices)
    offsets = _offsets(places, array.shape)
    return take(reshape(array, (-1, *array.shape[places.shape[-1] :])), offsets, 0)


@operation(specs.updated, "inputs indices updates", "reduction", home="core")
@shown("{}(np.zeros(3, np.float32), [[1]], np.float32([2]))", "array([0., 2., 0.], dtype=float32)")
def scatter_update(inputs: ArrayLike, indices: ArrayLike, updates: ArrayLike, reduction: str | None = None) -> Array:
    """Return a copy of `inputs` whose parts at `indices` are replaced by, or combined with, `updates`.

    Parameters
    ----------
    inputs : array-like
    indices : array-like of int, shape (..., count)
        A place along the first `count` axes of `inputs`.
    updates : array-like, shape ``(*indices.shape[:-1], *inputs.shape[count:])``
    reduction : {None, "add", "mul", "max", "min"}
        As for :func:`put_along_axis`.

    Raises
    ------
    IndexError
        An index is outside of its axis.
    """
    array, places, other = array_of(inputs), array_of(indices), array_of(updates)
    offsets, rest = ravel(_offsets(places, array.shape)), array.shape[places.shape[-1] :]
    wanted = (*places.shape[:-1], *rest)
    if other.shape != wanted:
        raise ValueError(f"`updates` must have shape {wanted} for these indices; received {other.shape}")
    width = math.prod(rest)
    rows = reshape(array, (array.size // max(width, 1), width))
    changed = put_along_axis(rows, reshape(offsets, (-1, 1)), reshape(other, (offsets.size, width)), 0, reduction)
    return reshape(changed, array.shape)


@operation(specs.scattered, "indices values", "shape", home="core")
@shown("{}([[1], [1]], np.float32([2, 3]), (3,))", "array([0., 5., 0.], dtype=float32)")
def scatter(indices: ArrayLike, values: ArrayLike, shape: Sequence[int]) -> Array:
    """Return an array of zeros to which `values` are added at `indices`: see :func:`scatter_update`."""
    found = array_of(values)
    return scatter_update(np.zeros(tuple(shape), found.dtype), indices, found, "add")


@operation(specs.sliced, "inputs start_indices", "shape", home="core")
@shown("{}(np.float32([[1, 2], [3, 4]]), (0, 1), (2, 1))", "array([[2.],\n       [4.]], dtype=float32)")
def slice(inputs: ArrayLike, start_indices: ArrayLike, shape: Sequence[int]) -> Array:
    """Return the part of an array of `shape` that begins at `start_indices`.

    Raises
    ------
    IndexError
        The part is not inside of the array.
    """
    array = array_of(inputs)
    for axis, (start, length) in enumerate(zip(_starts(start_indices, array), shape, strict=True)):
        if is_recorded(start):
            array = take(array, add(start, np.arange(length)), axis)
            continue
        end = int(start) + length
        if not 0 <= int(start) <= end <= array.shape[axis]:
            raise IndexError(f"the part from {int(start)} to {end} is outside of axis {axis} of length "
                             f"{array.shape[axis]}")  # fmt: skip
        array = array[(*[_slice(None)] * axis, _slice(int(start), end))]
    return array


@operation(specs.slice_updated, "inputs start_indices updates", home="core")
@shown("{}(np.zeros((2, 2)), (0, 1), np.ones((2, 1)))", "array([[0., 1.],\n       [0., 1.]])")
def slice_update(inputs: ArrayLike, start_indices: ArrayLike, updates: ArrayLike) -> Array:
    """Return a copy of `inputs` in which the part that begins at `start_indices` is replaced by `updates`.

    Raises
    ------
    IndexError
        The part is not inside of the array.
    """
    array, other = array_of(inputs), array_of(updates)
    offsets: Any = np.zeros((1,) * array.ndim, np.int64)
    for axis, (start, length) in enumerate(zip(_starts(start_indices, array), other.shape, strict=True)):
        table = np.arange(array.shape[axis]) * math.prod(array.shape[axis + 1 :])
        part = take(table, add(start, np.arange(length)), 0)
        offsets = add(offsets, reshape(part, (-1, *(1,) * (array.ndim - axis - 1))))
    return reshape(put_along_axis(ravel(array), ravel(offsets), ravel(other), 0), array.shape)


def _starts(start_indices: Any, array: Array) -> list[Any]:
    """Return the start along each axis, as arrays without axes."""
    starts = start_indices if isinstance(start_indices, list | tuple) else _places(start_indices, "start_indices")
    if len(starts) != array.ndim:
        raise ValueError(f"`start_indices` must have a number for each of {array.ndim} axes; received {len(starts)}")
    return [_places(start, "start_indices") for start in starts]
