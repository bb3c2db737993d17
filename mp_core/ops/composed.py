"""Functions that other operations make up, by Keras' names: each of them rounds to the type of its arguments.

float16 and bfloat16 are computed in float32 and rounded at the end.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, F64, Array, as_float, cast
from mp_core.arrays.recorded import takes_symbols
from mp_core.dtypes import is_float
from mp_core.ops.arrangement import array_of, squeeze
from mp_core.ops.comparisons import equal
from mp_core.ops.functions import absolute, exp, log, max, sqrt, square, where
from mp_core.ops.pairs import divide, subtract
from mp_core.ops.sums import mean
from mp_core.ops.sums import sum as sum_of

__all__ = ["abs", "logsumexp", "reciprocal", "rsqrt", "std", "var"]

Axes = int | Sequence[int] | None

abs = absolute  # Keras' other name


def _floating(x: ArrayLike) -> Array:
    array = array_of(x)
    return array if is_float(array.dtype) else as_float(array)


def _wide(x: ArrayLike) -> tuple[Array, np.dtype[np.generic]]:
    """Return an array in the type in which it is computed, and its own type."""
    array = _floating(x)
    return (array if array.dtype == F64 else cast(array, F32)), array.dtype


@takes_symbols
def var(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """Return the variance along axes: the mean of the squares of what differs from the mean.

    Examples
    --------
    >>> var(np.float32([1, 3]))
    array(1., dtype=float32)
    """
    wide, kind = _wide(x)
    return cast(mean(square(subtract(wide, mean(wide, axis, keepdims=True))), axis, keepdims=keepdims), kind)


@takes_symbols
def std(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """Return the standard deviation along axes: the root of the variance.

    Examples
    --------
    >>> std(np.float32([1, 3]))
    array(1., dtype=float32)
    """
    wide, kind = _wide(x)
    return cast(sqrt(var(wide, axis, keepdims)), kind)


@takes_symbols
def logsumexp(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """Return the logarithm of the sum of the exponentials along axes, without overflow.

    Examples
    --------
    >>> logsumexp(np.float32([1000, 1000])).round(3)
    np.float32(1000.693)
    """
    wide, kind = _wide(x)
    largest = max(wide, axis, keepdims=True)
    largest = where(equal(absolute(largest), np.inf), 0.0, largest)  # of infinities alone, what they are
    total = log(sum_of(exp(subtract(wide, largest)), axis, keepdims=True)) + largest
    return cast(total if keepdims else squeeze(total, axis), kind)


@takes_symbols
def rsqrt(x: ArrayLike) -> Array:
    """Return ``1 / sqrt(x)``.

    Examples
    --------
    >>> rsqrt(np.float32([4]))
    array([0.5], dtype=float32)
    """
    wide, kind = _wide(x)
    return cast(divide(1.0, sqrt(wide)), kind)


@takes_symbols
def reciprocal(x: ArrayLike) -> Array:
    """Return ``1 / x``.

    Examples
    --------
    >>> reciprocal(np.float32([4]))
    array([0.25], dtype=float32)
    """
    return divide(1.0, _floating(x))
