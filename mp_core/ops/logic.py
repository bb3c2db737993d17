"""Logic of the elements of arrays, by NumPy's and Keras' names: what is not 0 is true, NaN too."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, Array, cast
from mp_core.arrays.dtypes import is_float
from mp_core.ops import choosing_specs, specs
from mp_core.ops.arrangement import array_of
from mp_core.ops.comparisons import equal, greater, less, not_equal
from mp_core.ops.functions import absolute
from mp_core.ops.pairs import maximum, minimum, subtract
from mp_core.ops.registry import operation
from mp_core.ops.sums import sum as sum_of

__all__ = ["all", "any", "isfinite", "isinf", "isnan", "logical_and", "logical_not", "logical_or", "logical_xor"]


def _truth(x: ArrayLike) -> Array:
    """Return 1 for elements that are true and 0 for others, in float32: plans see how that is computed."""
    array = array_of(x)
    return cast(array if array.dtype == np.bool_ else not_equal(array, 0), F32)


@operation(specs.both, "x1 x2")
def logical_and(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return where both elements are true.

    Parameters
    ----------
    x1, x2 : array-like
        Of any type, of shapes that broadcast against each other.

    Returns
    -------
    ndarray of bool

    Raises
    ------
    TypeError
        An operand is not numeric.
    ValueError
        The shapes do not broadcast.

    Examples
    --------
    >>> logical_and([True, True, False], [2, 0, 1])
    array([ True, False, False])
    """
    return greater(minimum(_truth(x1), _truth(x2)), 0.0)


@operation(specs.both, "x1 x2")
def logical_or(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return where one of two elements is true: see :func:`logical_and`.

    Examples
    --------
    >>> logical_or([True, True, False], [2, 0, 0])
    array([ True,  True, False])
    """
    return greater(maximum(_truth(x1), _truth(x2)), 0.0)


@operation(specs.both, "x1 x2")
def logical_xor(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return where just one of two elements is true: see :func:`logical_and`.

    Examples
    --------
    >>> logical_xor([True, True, False], [2, 0, 0])
    array([False,  True, False])
    """
    return not_equal(_truth(x1), _truth(x2))


@operation(specs.truths)
def logical_not(x: ArrayLike) -> Array:
    """Return where an element is not true: see :func:`logical_and`.

    Examples
    --------
    >>> logical_not([2.0, 0.0])
    array([False,  True])
    """
    return equal(_truth(x), 0.0)


@operation(choosing_specs.judged, options="axis keepdims")
def all(x: ArrayLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """Return whether all elements along axes are true.

    Examples
    --------
    >>> all([[True, True], [True, False]], axis=1)
    array([ True, False])
    """
    return equal(sum_of(subtract(1.0, _truth(x)), axis, keepdims=keepdims), 0.0)


@operation(choosing_specs.judged, options="axis keepdims")
def any(x: ArrayLike, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """Return whether one of the elements along axes is true.

    Examples
    --------
    >>> any([[True, False], [False, False]], axis=1)
    array([ True, False])
    """
    return greater(sum_of(_truth(x), axis, keepdims=keepdims), 0.0)


def _magnitude(x: ArrayLike) -> Array:
    """Return magnitudes; of integers, which are all finite, zeros."""
    array = array_of(x)
    return absolute(array) if is_float(array.dtype) else np.zeros(array.shape, F32)


@operation(specs.truths)
def isnan(x: ArrayLike) -> Array:
    """Return where an element is NaN.

    Examples
    --------
    >>> isnan(np.float32([1, np.nan, np.inf]))
    array([False,  True, False])
    """
    magnitude = _magnitude(x)
    return not_equal(magnitude, magnitude)


@operation(specs.truths)
def isinf(x: ArrayLike) -> Array:
    """Return where an element is infinite.

    Examples
    --------
    >>> isinf(np.float32([1, np.nan, -np.inf]))
    array([False, False,  True])
    """
    return equal(_magnitude(x), np.inf)


@operation(specs.truths)
def isfinite(x: ArrayLike) -> Array:
    """Return where an element is neither infinite nor NaN.

    Examples
    --------
    >>> isfinite(np.float32([1, np.nan, -np.inf]))
    array([ True, False, False])
    """
    return less(_magnitude(x), np.inf)
