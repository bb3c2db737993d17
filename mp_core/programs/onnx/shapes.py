"""Shapes, and arrays in another shape. Shapes are constants of a plan."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.programs.limits import allocatable
from mp_core.programs.onnx.arguments import axes_of, dtype_of, flattened, integers, pairs_of, value_of
from mp_core.programs.onnx.casting import Number
from mp_core.programs.registry import Shaped, Static, operator

__all__: list[str] = []


@operator("Shape")
def shape(x: Shaped, *, start: int = 0, end: int | None = None) -> Array:
    """Return the lengths of the axes."""
    return np.array(x.shape[start:end], np.int64)


@operator("Size")
def size(x: Shaped) -> Array:
    """Return the number of elements."""
    return np.array(math.prod(x.shape), np.int64)


@operator("Identity", keeps_type=True)
def identity(x: Any) -> Any:
    """Return the array itself."""
    return x


@operator("Dropout")
def dropout(x: Any, ratio: Any = None, training_mode: Static = None, *, seed: int = 0) -> Any:
    """Return the array itself, and a mask of its elements: models run, they are not trained here."""
    del ratio, seed
    if training_mode is not None and value_of(training_mode):
        raise ValueError("Dropout with `training_mode` draws other numbers than ONNX; expected the mode to be false")
    return x, lambda: np.ones(x.shape, np.bool_)


@operator("Reshape", keeps_type=True)
def reshape(x: Any, shape: Static, *, allowzero: Literal[0, 1] = 0) -> Any:
    """Return an array with other axes; 0 keeps the length of an axis, -1 is computed from the others."""
    wanted = integers(shape)
    return ops.reshape(x, [n if n or allowzero else x.shape[axis] for axis, n in enumerate(wanted)])


@operator("Flatten", keeps_type=True)
def flatten(x: Any, *, axis: int = 1) -> Any:
    """Return a matrix: the axes before `axis` are its rows."""
    return flattened(x, axis)


@operator("Transpose", keeps_type=True)
def transpose(x: Any, *, perm: tuple[int, ...] | None = None) -> Any:
    """Return a view with the axes in another order; default: reversed."""
    return ops.transpose(x, perm)


@operator("Squeeze", keeps_type=True)
def squeeze(x: Any, axes: Static = None) -> Any:
    """Return a view without axes of length 1."""
    return ops.reshape(x, _without(x.shape, axes_of(axes, x.ndim)))


def _without(lengths: Sequence[int], axes: Sequence[int]) -> list[int]:
    if any(lengths[axis] != 1 for axis in axes):
        raise ValueError(f"`axes` must have the length 1; received {axes} for the shape {lengths}")
    return [n for axis, n in enumerate(lengths) if not (axis in axes if axes else n == 1)]


@operator("Unsqueeze", keeps_type=True)
def unsqueeze(x: Any, axes: Static) -> Any:
    """Return a view with more axes of length 1."""
    found = axes_of(axes, x.ndim + len(integers(axes)))
    lengths = iter(x.shape)
    return ops.reshape(x, [1 if axis in found else next(lengths) for axis in range(x.ndim + len(found))])


@operator("Expand", keeps_type=True)
def expand(x: Any, shape: Static) -> Any:
    """Return the array, repeated along axes of length 1."""
    return ops.broadcast_to(x, allocatable(np.broadcast_shapes(x.shape, integers(shape))))


@operator("Tile", keeps_type=True)
def tile(x: Any, repeats: Static) -> Any:
    """Return copies of the array, one after the other along each axis."""
    counts = integers(repeats)
    allocatable([n * count for n, count in zip(x.shape, counts, strict=True)])
    return ops.tile(x, counts)


@operator("Concat", keeps_type=True)
def concat(*arrays: Any, axis: int) -> Any:
    """Return arrays, one after the other."""
    return ops.concatenate(arrays, axis)


@operator("Split", keeps_type=True)
def split(x: Any, split: Static = None, *, axis: int = 0, num_outputs: int | None = None) -> tuple[Any, ...]:
    """Return parts of given lengths, or parts of equal length, of which the last may be shorter."""
    length = x.shape[axis]
    if split is not None:
        lengths = integers(split)
    else:
        count = num_outputs or 1
        part = -(-length // count)
        lengths = (*(part,) * (count - 1), length - part * (count - 1))
    if sum(lengths) != length:
        raise ValueError(f"`split` must add up to {length}; received {lengths}")
    return tuple(ops.split(x, list(itertools.accumulate(lengths))[:-1], axis))


@operator("Slice", keeps_type=True)
def slice_(x: Any, starts: Static, ends: Static, axes: Static = None, steps: Static = None) -> Any:
    """Return a view of a range along each of some axes."""
    first, last = integers(starts), integers(ends)
    along = axes_of(range(len(first)) if axes is None else axes, x.ndim)
    by = (1,) * len(first) if steps is None else integers(steps)
    parts = [slice(None)] * x.ndim
    for axis, start, end, step in zip(along, first, last, by, strict=True):
        # A negative end counts from the last element; before the first element it is none.
        stop = None if step < 0 and end < -x.shape[axis] else end
        parts[axis] = slice(start, stop, step)
    return x[tuple(parts)]


@operator("Pad", keeps_type=True)
def pad(
    x: Any,
    pads: Static,
    value: Static = None,
    axes: Static = None,
    *,
    mode: Literal["constant", "reflect", "edge", "wrap"] = "constant",
) -> Any:
    """Return the array with more places at its ends; negative numbers remove places."""
    along = tuple(range(x.ndim)) if axes is None else axes_of(axes, x.ndim)
    widths = dict(zip(along, pairs_of(integers(pads)), strict=True))
    pairs = [widths.get(axis, (0, 0)) for axis in range(x.ndim)]
    kept = tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, pairs, strict=True))
    x, more = x[kept], [(max(a, 0), max(b, 0)) for a, b in pairs]
    allocatable([n + sum(pair) for n, pair in zip(x.shape, more, strict=True)])
    if mode == "constant":
        return ops.pad(x, more, 0 if value is None else value_of(value)) if any(map(any, more)) else x
    for axis, pair in enumerate(more):
        if any(pair):
            x = ops.take(x, np.pad(np.arange(x.shape[axis]), pair, mode), axis)
    return x


@operator("DepthToSpace")
def depth_to_space(x: Any, *, blocksize: int, mode: Literal["DCR", "CRD"] = "DCR") -> Any:
    """Return an image whose blocks of pixels were channels."""
    n, channels, height, width = x.shape
    depth, size = channels // blocksize**2, blocksize
    if mode == "DCR":
        parts = ops.transpose(ops.reshape(x, (n, size, size, depth, height, width)), (0, 3, 4, 1, 5, 2))
    else:
        parts = ops.transpose(ops.reshape(x, (n, depth, size, size, height, width)), (0, 1, 4, 2, 5, 3))
    return ops.reshape(parts, (n, depth, height * size, width * size))


@operator("SpaceToDepth")
def space_to_depth(x: Any, *, blocksize: int, mode: Literal["DCR", "CRD"] = "DCR") -> Any:
    """Return an image whose channels were blocks of pixels."""
    n, channels, height, width = x.shape
    size = blocksize
    parts = ops.reshape(x, (n, channels, height // size, size, width // size, size))
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return ops.reshape(ops.transpose(parts, order), (n, channels * size**2, height // size, width // size))


# ---- arrays of constants


@operator("ConstantOfShape")
def constant_of_shape(shape: Static, *, value: Any = None) -> Array:
    """Return an array of one number."""
    number = np.zeros(1, np.float32) if value is None else value
    return np.full(allocatable(integers(shape)), number.reshape(()), number.dtype)


@operator("Range")
def range_(start: Static, limit: Static, delta: Static) -> Array:
    """Return numbers from `start` to before `limit`."""
    first, end, step = value_of(start), value_of(limit), value_of(delta)
    allocatable([max(math.ceil((end - first) / step), 0)])
    return np.arange(first, end, step).astype(np.asarray(start).dtype)


@operator("EyeLike")
def eye_like(x: Shaped, *, dtype: Number | None = None, k: int = 0) -> Array:
    """Return a matrix of ones on one diagonal, in the shape of another one."""
    rows, columns = allocatable(x.shape)
    return np.eye(rows, columns, k).astype(x.dtype if dtype is None else dtype_of(dtype))


@operator("Trilu")
def trilu(x: Any, k: Static = None, *, upper: int = 1) -> Any:
    """Return matrices with zeros below or above a diagonal."""
    return (ops.triu if upper else ops.tril)(x, 0 if k is None else value_of(k))
