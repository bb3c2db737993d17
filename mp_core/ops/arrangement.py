"""Rearrange arrays, under Keras' names. Results are views where NumPy returns views; plans need no step for a view.

Arguments are arrays, array-likes and variables of any type. Errors are NumPy's.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import Array, asarray, cast, in_order_of, memory_order
from mp_core.arrays.dtypes import parse, result_type
from mp_core.arrays.recorded import recordable, with_numbers
from mp_core.core.convert import copy_into, empty
from mp_core.ops import elementwise, specs
from mp_core.ops.registry import operation
from mp_core.utilities.arguments import axis_of
from mp_core.utilities.docstrings import shown

__all__ = ["broadcast_to", "concatenate", "expand_dims", "flip", "get_item", "moveaxis", "ones_like", "ravel",
           "reshape", "shape", "split", "squeeze", "stack", "stop_gradient", "swapaxes", "transpose",
           "zeros_like"]  # fmt: skip


def array_of(x: Any) -> Array:
    """Convert to an array: ndarrays and recorded arrays are returned as they are, variables by their value."""
    if hasattr(x, "read_value"):
        x = x.read_value()
    return x if isinstance(x, np.ndarray) else asarray(x, "x")


@operation(specs.reshaped, options="newshape")
@shown("{}([[1, 2], [3, 4]], (-1,))", "array([1, 2, 3, 4])")
def reshape(x: ArrayLike, newshape: int | Sequence[int]) -> Array:
    """Return the elements in another shape; one length may be -1."""
    return array_of(x).reshape(newshape)


@operation(specs.raveled)
@shown("{}([[1, 2], [3, 4]])", "array([1, 2, 3, 4])")
def ravel(x: ArrayLike) -> Array:
    """Return all elements in one axis."""
    return array_of(x).reshape(-1)


@operation(specs.transposed, options="axes")
@shown("{}([[1, 2], [3, 4]])", "array([[1, 3],\n       [2, 4]])")
def transpose(x: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Return the array with permuted axes, by default in reverse order."""
    return np.transpose(array_of(x), axes)


@operation(specs.swapped, options="axis1 axis2")
@shown("{}([[1, 2], [3, 4]], 0, 1)", "array([[1, 3],\n       [2, 4]])")
def swapaxes(x: ArrayLike, axis1: int, axis2: int) -> Array:
    """Return the array with two axes exchanged."""
    return np.swapaxes(array_of(x), axis1, axis2)


@operation(specs.moved, options="source destination")
@shown("{}(np.zeros((2, 3, 4)), 0, -1).shape", "(3, 4, 2)")
def moveaxis(x: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """Return the array with some axes moved to new positions; the other axes keep their order."""
    return np.moveaxis(array_of(x), source, destination)


@operation(specs.expanded, options="axis")
@shown("{}([1, 2], -1).shape", "(2, 1)")
def expand_dims(x: ArrayLike, axis: int | Sequence[int]) -> Array:
    """Return the array with additional axes of length 1."""
    return np.expand_dims(array_of(x), axis if isinstance(axis, int) else tuple(axis))


@operation(specs.squeezed, options="axis")
@shown("{}([[1, 2]], 0)", "array([1, 2])")
def squeeze(x: ArrayLike, axis: int | Sequence[int] | None = None) -> Array:
    """Return the array without the named axes of length 1, by default without all axes of length 1."""
    return np.squeeze(array_of(x), axis if axis is None or isinstance(axis, int) else tuple(axis))


@operation(specs.flipped, options="axis")
@shown("{}([1, 2, 3])", "array([3, 2, 1])")
def flip(x: ArrayLike, axis: int | Sequence[int] | None = None) -> Array:
    """Return the array with the elements in reverse order along the given axes, by default along all."""
    return np.flip(array_of(x), axis if axis is None or isinstance(axis, int) else tuple(axis))


@operation(specs.broadcast_to, options="shape")
@shown("{}([1, 2], (2, 2))", "array([[1, 2],\n       [1, 2]])")
def broadcast_to(x: ArrayLike, shape: Sequence[int]) -> Array:
    """Return the array broadcast to a shape."""
    return np.broadcast_to(array_of(x), tuple(shape))


@operation(specs.split, options="indices_or_sections axis")
@shown("{}([1, 2, 3, 4], 2)", "[array([1, 2]), array([3, 4])]")
def split(x: ArrayLike, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Split an array along an axis: into a number of equal parts, or at indices."""
    return list(np.split(array_of(x), indices_or_sections, axis))


@operation(specs.concatenated, "xs", "axis")
@shown("{}([np.float16([1]), np.float32([2, 3])])", "array([1., 2., 3.], dtype=float32)")
def concatenate(xs: Sequence[ArrayLike], axis: int = 0) -> Array:
    """Concatenate arrays along an axis, in their common type."""
    arrays = [array_of(x) for x in xs]
    if not arrays or arrays[0].ndim == 0:
        raise ValueError(f"`xs` must be arrays with at least one axis; received {len(arrays)} arrays")
    along = axis_of(axis, arrays[0].ndim)
    rest = {x.shape[:along] + x.shape[along + 1 :] for x in arrays}
    if len(rest) > 1 or any(x.ndim != arrays[0].ndim for x in arrays):
        shapes = ", ".join(str(x.shape) for x in arrays)
        raise ValueError(f"`xs` must have the same shape except along axis {axis}; received {shapes}")
    kind = reduce(result_type, (x.dtype for x in arrays))
    return elementwise.concatenated(*(x if x.dtype == kind else cast(x, kind) for x in arrays), axis=along)


@operation(specs.stacked, options="axis")
@shown("{}([[1.0, 2.0], [3.0, 4.0]], axis=1)", "array([[1., 3.],\n       [2., 4.]])")
def stack(x: Sequence[ArrayLike], axis: int = 0) -> Array:
    """Stack arrays of one shape along a new axis."""
    arrays = [array_of(each) for each in x]
    if len({each.shape for each in arrays}) != 1:
        raise ValueError(f"`x` must be arrays of one shape; received {[each.shape for each in arrays]}")
    return concatenate([expand_dims(each, axis) for each in arrays], axis)


@shown("{}([[1, 2]])", "(1, 2)")
def shape(x: ArrayLike) -> tuple[int, ...]:
    """Return the lengths of the axes."""
    lengths: tuple[int, ...] = array_of(x).shape
    return lengths


@operation(specs.converted, options="dtype")
@shown("{}(np.float32([1, 2]))", "array([0., 0.], dtype=float32)")
def zeros_like(x: ArrayLike, dtype: DTypeLike | None = None) -> Array:
    """Return zeros in the shape of `x`, by default of its type."""
    return _filled(x, dtype, 0)


@operation(specs.converted, options="dtype")
@shown("{}(np.float32([1, 2]))", "array([1., 1.], dtype=float32)")
def ones_like(x: ArrayLike, dtype: DTypeLike | None = None) -> Array:
    """Return ones in the shape of `x`, by default of its type."""
    return _filled(x, dtype, 1)


def _filled(x: ArrayLike, dtype: DTypeLike | None, value: int) -> Array:
    array = array_of(x)
    return np.full(array.shape, value, array.dtype if dtype is None else parse(dtype))


@operation(specs.kept, home="core")
@recordable
@with_numbers
@shown("{}(np.float32([1, 2]))", "array([1., 2.], dtype=float32)")
def stop_gradient(x: ArrayLike) -> Array:
    """Return a copy of `x` through which no gradient flows."""
    array = array_of(x)
    order = memory_order(array)
    if order is not None:
        return in_order_of(order, stop_gradient(array.transpose(order)))
    out: Array = empty(array.shape, array.dtype)
    copy_into(out, array)
    return out


@operation(specs.indexed, "x key")
@shown("{}([[1, 2], [3, 4]], (slice(None), 0))", "array([1, 3])")
def get_item(x: ArrayLike, key: Any) -> Array:
    """Return ``x[key]``: the operation that Keras' files have for indexing. As in them, a list in `key` is a tuple."""
    part: Array = array_of(x)[tuple(key) if isinstance(key, list) else key]
    return part
