"""Arrays arranged otherwise, by Keras' names: views where NumPy has them, which need no steps in plans.

Arguments are arrays, array-likes and variables of any type; errors are NumPy's.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import Array, asarray, cast
from mp_core.arrays.dtypes import parse, result_type
from mp_core.arrays.recorded import recordable
from mp_core.core.convert import copy_into, empty
from mp_core.ops import elementwise, specs
from mp_core.ops.registry import operation
from mp_core.utilities.arguments import axis_of

__all__ = ["broadcast_to", "concatenate", "expand_dims", "flip", "get_item", "moveaxis", "ones_like", "ravel",
           "reshape", "shape", "split", "squeeze", "stack", "stop_gradient", "swapaxes", "transpose",
           "zeros_like"]  # fmt: skip


def array_of(x: Any) -> Array:
    """Return an array, recorded or not, itself; a variable as it reads here, and everything else as an array."""
    if hasattr(x, "read_value"):
        x = x.read_value()
    return x if isinstance(x, np.ndarray) else asarray(x, "x")


@operation(specs.reshaped, options="newshape")
def reshape(x: ArrayLike, newshape: int | Sequence[int]) -> Array:
    """Return the elements in another shape, of which one length may be -1.

    Examples
    --------
    >>> reshape([[1, 2], [3, 4]], (-1,))
    array([1, 2, 3, 4])
    """
    return array_of(x).reshape(newshape)


@operation(specs.raveled)
def ravel(x: ArrayLike) -> Array:
    """Return the elements along one axis.

    Examples
    --------
    >>> ravel([[1, 2], [3, 4]])
    array([1, 2, 3, 4])
    """
    return array_of(x).reshape(-1)


@operation(specs.transposed, options="axes")
def transpose(x: ArrayLike, axes: Sequence[int] | None = None) -> Array:
    """Return the array with its axes in another order, by default in the reverse one.

    Examples
    --------
    >>> transpose([[1, 2], [3, 4]])
    array([[1, 3],
           [2, 4]])
    """
    return np.transpose(array_of(x), axes)


@operation(specs.swapped, options="axis1 axis2")
def swapaxes(x: ArrayLike, axis1: int, axis2: int) -> Array:
    """Return the array with two axes exchanged.

    Examples
    --------
    >>> swapaxes([[1, 2], [3, 4]], 0, 1)
    array([[1, 3],
           [2, 4]])
    """
    return np.swapaxes(array_of(x), axis1, axis2)


@operation(specs.moved, options="source destination")
def moveaxis(x: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Array:
    """Return the array with axes moved to other places, the rest in order.

    Examples
    --------
    >>> moveaxis(np.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    return np.moveaxis(array_of(x), source, destination)


@operation(specs.expanded, options="axis")
def expand_dims(x: ArrayLike, axis: int | Sequence[int]) -> Array:
    """Return the array with axes of length 1 more.

    Examples
    --------
    >>> expand_dims([1, 2], -1).shape
    (2, 1)
    """
    return np.expand_dims(array_of(x), axis if isinstance(axis, int) else tuple(axis))


@operation(specs.squeezed, options="axis")
def squeeze(x: ArrayLike, axis: int | Sequence[int] | None = None) -> Array:
    """Return the array without axes of length 1, by default without all of them.

    Examples
    --------
    >>> squeeze([[1, 2]], 0)
    array([1, 2])
    """
    return np.squeeze(array_of(x), axis if axis is None or isinstance(axis, int) else tuple(axis))


@operation(specs.flipped, options="axis")
def flip(x: ArrayLike, axis: int | Sequence[int] | None = None) -> Array:
    """Return the array with the elements along axes in reverse order, by default along all of them.

    Examples
    --------
    >>> flip([1, 2, 3])
    array([3, 2, 1])
    """
    return np.flip(array_of(x), axis if axis is None or isinstance(axis, int) else tuple(axis))


@operation(specs.broadcast_to, options="shape")
def broadcast_to(x: ArrayLike, shape: Sequence[int]) -> Array:
    """Return the array stretched to a shape.

    Examples
    --------
    >>> broadcast_to([1, 2], (2, 2))
    array([[1, 2],
           [1, 2]])
    """
    return np.broadcast_to(array_of(x), tuple(shape))


@operation(specs.split, options="indices_or_sections axis")
def split(x: ArrayLike, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Array]:
    """Return the parts of an array along an axis: so many equal ones, or those between indices.

    Examples
    --------
    >>> split([1, 2, 3, 4], 2)
    [array([1, 2]), array([3, 4])]
    """
    return list(np.split(array_of(x), indices_or_sections, axis))


@operation(specs.concatenated, "xs", "axis")
def concatenate(xs: Sequence[ArrayLike], axis: int = 0) -> Array:
    """Return arrays behind each other along an axis, in the type that they have in common.

    Raises
    ------
    ValueError
        There is none, or their other axes have different lengths.

    Examples
    --------
    >>> concatenate([np.float16([1]), np.float32([2, 3])])
    array([1., 2., 3.], dtype=float32)
    """
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
def stack(x: Sequence[ArrayLike], axis: int = 0) -> Array:
    """Return arrays of one shape along an axis more.

    Raises
    ------
    ValueError
        There is none, or their shapes differ.

    Examples
    --------
    >>> stack([[1.0, 2.0], [3.0, 4.0]], axis=1)
    array([[1., 3.],
           [2., 4.]])
    """
    arrays = [array_of(each) for each in x]
    if len({each.shape for each in arrays}) != 1:
        raise ValueError(f"`x` must be arrays of one shape; received {[each.shape for each in arrays]}")
    return concatenate([expand_dims(each, axis) for each in arrays], axis)


def shape(x: ArrayLike) -> tuple[int, ...]:
    """Return the lengths of the axes.

    Examples
    --------
    >>> shape([[1, 2]])
    (1, 2)
    """
    lengths: tuple[int, ...] = array_of(x).shape
    return lengths


@operation(specs.converted, options="dtype")
def zeros_like(x: ArrayLike, dtype: DTypeLike | None = None) -> Array:
    """Return zeros in the shape of `x`, by default in its type.

    Examples
    --------
    >>> zeros_like(np.float32([1, 2]))
    array([0., 0.], dtype=float32)
    """
    return _filled(x, dtype, 0)


@operation(specs.converted, options="dtype")
def ones_like(x: ArrayLike, dtype: DTypeLike | None = None) -> Array:
    """Return ones in the shape of `x`, by default in its type.

    Examples
    --------
    >>> ones_like(np.float32([1, 2]))
    array([1., 1.], dtype=float32)
    """
    return _filled(x, dtype, 1)


def _filled(x: ArrayLike, dtype: DTypeLike | None, value: int) -> Array:
    array = array_of(x)
    return np.full(array.shape, value, array.dtype if dtype is None else parse(dtype))


@operation(specs.kept, home="core")
@recordable
def stop_gradient(x: ArrayLike) -> Array:
    """Return a copy of `x` that no gradient passes.

    Examples
    --------
    >>> stop_gradient(np.float32([1, 2]))
    array([1., 2.], dtype=float32)
    """
    array = array_of(x)
    out: Array = empty(array.shape, array.dtype)
    copy_into(out, array)
    return out


@operation(specs.indexed, "x key")
def get_item(x: ArrayLike, key: Any) -> Array:
    """Return the part that an index names, which is Keras' operation for ``x[key]``.

    Parameters
    ----------
    x : array-like
    key : int, slice, None, ``...`` or tuple of them
        A list is a tuple, as in Keras' files.

    Examples
    --------
    >>> get_item([[1, 2], [3, 4]], (slice(None), 0))
    array([1, 3])
    """
    part: Array = array_of(x)[tuple(key) if isinstance(key, list) else key]
    return part
