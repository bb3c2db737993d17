"""Create arrays from numbers, under Keras' names. Only `one_hot` depends on the elements of an array."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import F32, Array, cast
from mp_core.arrays.dtypes import floatx, parse
from mp_core.arrays.recorded import constant
from mp_core.ops import choosing_specs as specs
from mp_core.ops.arrangement import array_of, expand_dims, moveaxis
from mp_core.ops.comparisons import equal
from mp_core.ops.conversion import convert_to_tensor
from mp_core.ops.registry import operation
from mp_core.utilities.arguments import axis_of, positive_integer
from mp_core.utilities.docstrings import shown

__all__ = ["arange", "eye", "full", "full_like", "linspace", "one_hot", "ones", "zeros"]


@shown("{}((2,))", "array([0., 0.], dtype=float32)")
def zeros(shape: int | Sequence[int], dtype: DTypeLike | None = None) -> Array:
    """Return zeros, by default of type :func:`mp_core.config.floatx`."""
    return full(shape, 0, dtype)


@shown('{}(2, "int32")', "array([1, 1], dtype=int32)")
def ones(shape: int | Sequence[int], dtype: DTypeLike | None = None) -> Array:
    """Return ones, by default of type :func:`mp_core.config.floatx`."""
    return full(shape, 1, dtype)


@shown("{}((2,), 0.5)", "array([0.5, 0.5], dtype=float32)")
def full(shape: int | Sequence[int], fill_value: ArrayLike, dtype: DTypeLike | None = None) -> Array:
    """Return an array filled with one value, by default of type :func:`mp_core.config.floatx`."""
    return np.full(shape, cast(fill_value, _type(dtype)))


@operation(specs.alike, "x fill_value", "dtype")
@shown("{}(np.float32([1, 2]), 3)", "array([3., 3.], dtype=float32)")
def full_like(x: ArrayLike, fill_value: ArrayLike, dtype: DTypeLike | None = None) -> Array:
    """Return an array filled with one value, in the shape of `x`, by default of its type."""
    array = array_of(x)
    return full(array.shape, fill_value, array.dtype if dtype is None else dtype)


@shown("{}(3), arange(0.0, 1.0, 0.5)", "(array([0, 1, 2], dtype=int32), array([0. , 0.5], dtype=float32))")
def arange(start: float, stop: float | None = None, step: float | None = None, dtype: DTypeLike | None = None) -> Array:
    """Return evenly spaced numbers from `start` to below `stop`. With one argument, it is `stop` and they start at 0.

    Parameters
    ----------
    start, stop, step : number
    dtype : dtype, optional
        Default: int32 for integers, otherwise float32.
    """
    first, end = (0, start) if stop is None else (start, stop)
    numbers = convert_to_tensor(np.arange(first, end, 1 if step is None else step).tolist())
    return cast(numbers, dtype) if dtype is not None else numbers


@shown("{}(0, 1, 5)", "array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)")
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int = 50,
    endpoint: bool = True,
    dtype: DTypeLike | None = None,
    axis: int = 0,
) -> Array:
    """Return `num` evenly spaced numbers from `start` to `stop`, by default in float32."""
    return cast(np.linspace(array_of(start), array_of(stop), num, endpoint, axis=axis), dtype or F32)


@shown("{}(2, 3, k=1)", "array([[0., 1., 0.],\n       [0., 0., 1.]], dtype=float32)")
def eye(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike | None = None) -> Array:  # noqa: N803 - Keras' names
    """Return a matrix with ones on a diagonal and zeros elsewhere, by default of type :func:`mp_core.config.floatx`."""
    return cast(np.eye(N, M, k), _type(dtype))


@operation(specs.classes, options="num_classes axis dtype", home="nn", fixed={"sparse": (False,)})
@shown("{}([0, 2, -1], 3)", "array([[1., 0., 0.],\n       [0., 0., 1.],\n       [0., 0., 0.]], dtype=float32)")
def one_hot(x: ArrayLike, num_classes: int, axis: int = -1, dtype: DTypeLike | None = None) -> Array:
    """Return one-hot vectors of class numbers along a new axis. A number outside of the classes gives zeros.

    Parameters
    ----------
    x : array-like of int
    num_classes : int
        At most 2^24.
    axis : int
        The position of the new axis.
    dtype : dtype, optional
        Default: :func:`mp_core.config.floatx`.
    """
    array = array_of(x)
    specs.check_integers(array.dtype)
    if positive_integer(num_classes, "num_classes") > 2**24:  # plans compare in float32, exact up to 2^24
        raise ValueError(f"`num_classes` must be at most {2**24}; received {num_classes}")
    place = axis_of(axis, array.ndim + 1)
    found = equal(expand_dims(cast(array, F32), -1), constant(np.arange(num_classes, dtype=F32)))
    return moveaxis(cast(found, _type(dtype)), -1, place)


def _type(dtype: DTypeLike | None) -> np.dtype[np.generic]:
    return parse(floatx() if dtype is None else dtype)
