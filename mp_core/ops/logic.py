"""Elementwise logic, under NumPy's and Keras' names. Every element except 0 is true, NaN too."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, Array, cast
from mp_core.arrays.dtypes import is_float
from mp_core.ops import choosing_specs, specs
from mp_core.ops.arrangement import array_of
from mp_core.ops.comparisons import equal, greater, less, not_equal
from mp_core.ops.functions import absolute
from mp_core.ops.pairs import maximum, minimum
from mp_core.ops.registry import operation
from mp_core.ops.sums import sum as sum_of
from mp_core.utilities.docstrings import shown

__all__ = ["all", "any", "isfinite", "isinf", "isnan", "logical_and", "logical_not", "logical_or", "logical_xor"]


def _truth(x: ArrayLike) -> Array:
    """Return whether elements are true."""
    array = array_of(x)
    return array if array.dtype == np.bool_ else not_equal(array, 0)


@operation(specs.both, "x1 x2")
@shown("{}([True, True, False], [2, 0, 1])", "array([ True, False, False])")
def logical_and(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return for each pair of elements whether both are true.

    Parameters
    ----------
    x1, x2 : array-like
        Of any type, of shapes that broadcast against each other.

    Returns
    -------
    ndarray of bool
    """
    return minimum(_truth(x1), _truth(x2))


@operation(specs.both, "x1 x2")
@shown("{}([True, True, False], [2, 0, 0])", "array([ True,  True, False])")
def logical_or(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return for each pair of elements whether at least one is true: see :func:`logical_and`."""
    return maximum(_truth(x1), _truth(x2))


@operation(specs.both, "x1 x2")
@shown("{}([True, True, False], [2, 0, 0])", "array([False,  True, False])")
def logical_xor(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return for each pair of elements whether exactly one is true: see :func:`logical_and`."""
    return not_equal(_truth(x1), _truth(x2))


@operation(specs.truths)
@shown("{}([2.0, 0.0])", "array([False,  True])")
def logical_not(x: ArrayLike) -> Array:
    """Return for each element whether it is 0: see :func:`logical_and`."""
    return equal(_truth(x), False)


@operation(choosing_specs.judged, options="axis keepdims")
@shown("{}([[True, True], [True, False]], axis=1)", "array([ True, False])")
def all(x: ArrayLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """Return whether all elements along axes are true."""
    return equal(sum_of(cast(logical_not(x), F32), axis, keepdims=keepdims), 0.0)


@operation(choosing_specs.judged, options="axis keepdims")
@shown("{}([[True, False], [False, False]], axis=1)", "array([ True, False])")
def any(x: ArrayLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """Return whether any element along axes is true."""
    return greater(sum_of(cast(_truth(x), F32), axis, keepdims=keepdims), 0.0)


def _magnitude(x: ArrayLike) -> Array:
    array = array_of(x)
    return absolute(array) if is_float(array.dtype) else np.zeros(array.shape, F32)


@operation(specs.truths)
@shown("{}(np.float32([1, np.nan, np.inf]))", "array([False,  True, False])")
def isnan(x: ArrayLike) -> Array:
    """Return for each element whether it is NaN."""
    magnitude = _magnitude(x)
    return not_equal(magnitude, magnitude)


@operation(specs.truths)
@shown("{}(np.float32([1, np.nan, -np.inf]))", "array([False, False,  True])")
def isinf(x: ArrayLike) -> Array:
    """Return for each element whether it is infinite."""
    return equal(_magnitude(x), np.inf)


@operation(specs.truths)
@shown("{}(np.float32([1, np.nan, -np.inf]))", "array([ True, False, False])")
def isfinite(x: ArrayLike) -> Array:
    """Return for each element whether it is neither infinite nor NaN."""
    return less(_magnitude(x), np.inf)
