"""Elements at places that other arrays state, and places of elements."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.arrays.recorded import constant, is_recorded
from mp_core.programs.limits import allocatable
from mp_core.programs.onnx.arguments import integers, value_of
from mp_core.programs.registry import Static, operator

__all__: list[str] = []

Reduction = Literal["none", "add", "mul", "max", "min"]


@operator("Gather")
def gather(x: Any, indices: Any, *, axis: int = 0) -> Any:
    """Return slices at indices along an axis; negative ones count from the end."""
    if indices.ndim == 0 and not is_recorded(indices):
        return x[(slice(None),) * (axis % x.ndim) + (int(indices),)]
    return ops.take(x, indices, axis)


@operator("GatherElements")
def gather_elements(x: Any, indices: Any, *, axis: int = 0) -> Any:
    """Return the element at each index along an axis."""
    along = axis % x.ndim
    return ops.take_along_axis(x[_corner(indices.shape, along)], indices, along)


def _corner(shape: tuple[int, ...], axis: int) -> tuple[slice, ...]:
    """Return the index of the part that arrays of indices address: they may be shorter along all axes but one."""
    return tuple(slice(None) if place == axis else slice(n) for place, n in enumerate(shape))


@operator("GatherND")
def gather_nd(x: Any, indices: Any, *, batch_dims: int = 0) -> Any:
    """Return slices at lists of indices, which are along the last axis, for each place of the first axes."""
    places = [*np.indices(indices.shape[:-1])[:batch_dims, ..., None]]
    return ops.gather_nd(x, ops.concatenate([*(part.astype(indices.dtype) for part in places), indices], -1))


@operator("ScatterElements", "Scatter")
def scatter_elements(x: Any, indices: Any, updates: Any, *, axis: int = 0, reduction: Reduction = "none") -> Any:
    """Return the array with other elements at indices along an axis."""
    along = axis % x.ndim
    grid = [part[..., None].astype(indices.dtype) for part in np.indices(indices.shape)]
    places = ops.concatenate([*grid[:along], ops.expand_dims(indices, -1), *grid[along + 1 :]], -1)
    return scatter_nd(x, places, updates, reduction=reduction)


@operator("ScatterND")
def scatter_nd(x: Any, indices: Any, updates: Any, *, reduction: Reduction = "none") -> Any:
    """Return the array with other slices at lists of indices, which are along the last axis."""
    return ops.scatter_update(x, indices, updates, None if reduction == "none" else reduction)


@operator("OneHot")
def one_hot(indices: Any, depth: Static, values: Any, *, axis: int = -1) -> Any:
    """Return one of two values: the second where an index along a new axis equals an element."""
    count, off, on = int(value_of(np.ravel(depth)[0])), values[:1], values[1:]
    along = axis % (indices.ndim + 1)
    allocatable([*indices.shape, count])
    numbers = np.arange(count).reshape(-1, *(1,) * (indices.ndim - along)).astype(indices.dtype)
    places = ops.expand_dims(ops.where(ops.less(indices, 0), ops.add(indices, count), indices), along)
    return ops.where(ops.equal(places, constant(numbers)), on, off)


@operator("TopK")
def top_k(x: Any, k: Static, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Any, Any]:
    """Return the largest or smallest elements along an axis, and their indices; of equals, the first."""
    del sorted
    count = integers(k)[0]
    last = ops.moveaxis(x, axis, -1)
    if largest:
        values, indices = ops.top_k(last, count)
    else:
        indices = ops.argsort(last, -1)[..., :count]
        values = ops.take_along_axis(last, indices, -1)
    return ops.moveaxis(values, -1, axis), ops.moveaxis(ops.cast(indices, "int64"), -1, axis)


@operator("ArgMax")
def arg_max(x: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    """Return the index of the largest element along an axis: the first, or the last, of equals."""
    return _place(ops.argmax, x, axis, keepdims, select_last_index)


@operator("ArgMin")
def arg_min(x: Any, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Any:
    """Return the index of the smallest element along an axis: the first, or the last, of equals."""
    return _place(ops.argmin, x, axis, keepdims, select_last_index)


def _place(function: Callable[..., Any], x: Any, axis: int, keepdims: int, is_last: int) -> Any:
    found = ops.cast(function(ops.flip(x, axis) if is_last else x, axis, bool(keepdims)), "int64")
    return ops.subtract(x.shape[axis] - 1, found) if is_last else found


@operator("NonZero")
def non_zero(x: Static) -> Array:
    """Return the indices of elements that are not zero; their number is a constant of a plan."""
    return np.array(np.nonzero(x), np.int64).reshape(max(np.ndim(x), 1), -1)
