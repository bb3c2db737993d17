"""Replace elements of an array, or add to them, as torch does when it writes into a part of a tensor."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.programs.aten.elementwise import cast
from mp_core.programs.aten.indexing import flat_places
from mp_core.programs.registry import operator
from mp_core.utilities.arguments import axis_of

__all__ = ["along", "placed"]


def along(places: Any, axis: int, rank: int) -> Any:
    """Return a vector as indices along an axis of an array with `rank` axes."""
    return ops.reshape(places, tuple(-1 if each == axis else 1 for each in range(rank)))


def placed(self: Any, src: Any, places: Any, axis: int, reduction: str | None = None) -> Any:
    """Return an array whose parts at a vector of places along an axis are replaced by `src`, or have it added."""
    return ops.put_along_axis(self, along(places, axis, self.ndim), cast(src, self.dtype.name), axis, reduction)


# ---- at indices


@operator("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(self: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """Return the array with `values` at indices of several axes, or added there; masks replace by one value only."""
    masks = [x for x in indices if x is not None and x.dtype == np.bool_]
    if masks:
        if len(indices) > 1 or values.size != 1 or accumulate:
            raise ValueError(f"a mask as an index needs one value; received values of shape {values.shape}")
        mask = ops.reshape(masks[0], (*masks[0].shape, *(1,) * (self.ndim - masks[0].ndim)))
        return ops.where(mask, cast(ops.reshape(values, (1,) * self.ndim), self.dtype.name), self)
    order, flat, places, axis = flat_places(self, indices)
    wanted = (*flat.shape[:axis], *places.shape, *flat.shape[axis + 1 :])
    updates = ops.reshape(ops.broadcast_to(values, wanted), (*flat.shape[:axis], -1, *flat.shape[axis + 1 :]))
    changed = placed(flat, updates, ops.reshape(places, (-1,)), axis, "add" if accumulate else None)
    moved = ops.reshape(changed, tuple(self.shape[axis] for axis in order))
    return moved if order == sorted(order) else ops.transpose(moved, tuple(int(i) for i in np.argsort(order)))


@operator("aten.scatter.src")
def scatter(self: Any, dim: int, index: Any, src: Any, reduction: str | None = None) -> Any:
    """Return the array with elements of `src` at indices along an axis."""
    axis = axis_of(dim, self.ndim)
    updates = cast(src[tuple(slice(n) for n in index.shape)], self.dtype.name)
    part = tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(index.shape))
    changed = ops.put_along_axis(self[part], index, updates, axis, reduction)
    return changed if changed.shape == self.shape else ops.slice_update(self, (0,) * self.ndim, changed)


@operator("aten.scatter_add.default")
def scatter_add(self: Any, dim: int, index: Any, src: Any) -> Any:
    """Return the array with elements of `src` added at indices along an axis."""
    return scatter(self, dim, index, src, "add")


@operator("aten.scatter.value")
def scatter_value(self: Any, dim: int, index: Any, value: Any) -> Any:
    """Return the array with one value at indices along an axis."""
    return scatter(self, dim, index, np.full(index.shape, value, self.dtype))


# ---- in parts


@operator("aten.slice_scatter.default")
def slice_scatter(
    self: Any, src: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """Return the array with `src` as a part of it along an axis."""
    axis = axis_of(dim, self.ndim)
    return placed(self, src, np.arange(self.shape[axis])[start:end:step], axis)


@operator("aten.select_scatter.default")
def select_scatter(self: Any, src: Any, dim: int, index: int) -> Any:
    """Return the array with `src` at an index of an axis."""
    axis = axis_of(dim, self.ndim)
    return placed(self, ops.expand_dims(src, axis), np.array([index]), axis)


@operator("aten.copy.default")
def copy(self: Any, src: Any, non_blocking: bool = False) -> Any:
    """Return `src` in the shape and the type of the array."""
    return ops.broadcast_to(cast(src, self.dtype.name), self.shape)


@operator("aten.as_strided.default")
def as_strided(self: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Any:
    """Return the elements at equal distances in memory, of a contiguous tensor."""
    return ops.take(ops.reshape(self, (-1,)), _strided(size, stride, storage_offset or 0), 0)


@operator("aten.as_strided_scatter.default")
def as_strided_scatter(
    self: Any, src: Any, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    """Return a contiguous tensor with `src` at equal distances in memory."""
    places = _strided(size, stride, storage_offset or 0)
    return ops.reshape(placed(ops.reshape(self, (-1,)), ops.reshape(src, (-1,)), places.ravel(), 0), self.shape)


def _strided(size: Sequence[int], stride: Sequence[int], first: int) -> Any:
    """Return the places of elements at equal distances."""
    return np.asarray(first + np.tensordot(np.array(stride, np.int64), np.indices(tuple(size)), 1), np.int64)
