"""Euclidean norms without overflow or underflow of the squares.

Squares of numbers above 1.8e19 or below 1.1e-19 leave the range of float32. If the sum of squares of a vector is
infinite or tiny, the vector is multiplied by a power of two, which is exact, and squared again. Bits of other vectors
do not change.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, F64, Array, cast
from mp_core.arrays.dtypes import is_float
from mp_core.arrays.recorded import constant, is_recorded
from mp_core.ops import specs
from mp_core.ops.arrangement import array_of
from mp_core.ops.comparisons import equal, greater, less
from mp_core.ops.functions import sqrt, square, where
from mp_core.ops.pairs import divide, maximum, multiply
from mp_core.ops.registry import operation
from mp_core.ops.sums import sum as sum_of
from mp_core.utilities.docstrings import shown

__all__ = ["length", "normalize", "over_length", "squared"]


class _Range(NamedTuple):
    """Sums of squares from `least` to `most` are safe.

    A vector with a smaller sum is multiplied by `below`, one with a larger sum by `above`.
    """

    least: float
    most: float
    below: float
    above: float


_RANGES = {F32: _Range(2.0**-100, 2.0**126, 2.0**100, 2.0**-96), F64: _Range(2.0**-960, 2.0**1020, 2.0**800, 2.0**-768)}


class Squared(NamedTuple):
    """Vectors, each times a power of two, and the sums of their squares."""

    x: Array
    squares: Array  # The summed axes have length 1.
    by: Array | None  # The powers of two; None: all are 1.


def squared(x: Array, axis: Any, epsilon: float = 0.0) -> Squared:
    """Return `x` and the sums of its squares along axes, without overflow and underflow.

    If the sum of squares of a vector is above 2^126 or NaN, the vector is multiplied by 2^-96 and squared again. If the
    sum and `epsilon` are below 2^-100, it is multiplied by 2^100. In float64 they are 2^1020, 2^-768, 2^-960 and 2^800.
    The caller takes the maximum of the sum and `epsilon`. So if `epsilon` is large, small sums need no precision.
    """
    bounds = _RANGES[F64 if x.dtype == F64 else F32]
    with np.errstate(over="ignore", under="ignore"):
        squares = sum_of(square(x), axis, keepdims=True)
        least = bounds.least if epsilon < bounds.least else 0.0
        if not is_recorded(x) and bool(((squares >= least) & (squares <= bounds.most)).all()):
            return Squared(x, squares, None)
        below, above, one = (constant(np.full((1,) * x.ndim, by, x.dtype)) for by in (bounds.below, bounds.above, 1.0))
        by = where(greater(squares, bounds.most), above, where(less(squares, least), below, one))
        scaled = multiply(x, by)
        return Squared(scaled, sum_of(square(scaled), axis, keepdims=True), by)


def length(x: Array, axis: Any = None) -> Array:
    """Return the Euclidean norms of `x` along axes, which are kept with length 1; infinite if the dtype overflows.

    The gradient at a vector of zeros is 0.
    """
    _, squares, by = squared(x, axis)
    is_zero = equal(squares, 0.0)
    root = where(is_zero, 0.0, sqrt(where(is_zero, 1.0, squares)))
    return root if by is None else divide(root, by)


def over_length(x: Array, axis: Any, least: float) -> Array:
    """Return `x` divided by the larger one of its Euclidean norm along axes and `least`."""
    x, squares, by = squared(x, axis, least * least)
    # The maximum is taken before the root, since sqrt has no gradient at 0.
    return divide(x, sqrt(maximum(squares, least * least if by is None else square(multiply(by, least)))))


@operation(
    specs.rows, options="axis epsilon", home="nn", defaults={"epsilon": None}, fixed={"order": (2,)},
    forms={"epsilon": (math.sqrt, lambda length: (1e-7 if length is None else length) ** 2)},  # Keras: of the length
)  # fmt: skip
@shown("{}(np.array([[3.0, 4.0]], np.float32))", "array([[0.6, 0.8]], dtype=float32)")
def normalize(x: ArrayLike, axis: int = -1, epsilon: float = 1e-12) -> Array:
    """Return `x` divided by its Euclidean norm along an axis: ``x / sqrt(maximum(sum(x**2), epsilon))``.

    Squares neither overflow nor underflow: see :func:`mp_core.ops.norms.squared`.

    Parameters
    ----------
    x : array-like
        Any shape with at least one axis; integers become float32. float16 and bfloat16 are computed in float32 and
        rounded at the end.
    axis : int
        The axis along which the squares are summed.
    epsilon : float
        The lower bound of the sum of squares.

    Returns
    -------
    ndarray
        The shape and type of `x`.
    """
    x = array_of(x)
    x = x if is_float(x.dtype) else cast(x, F32)
    wide, squares, by = squared(x if x.dtype == F64 else cast(x, F32), axis, epsilon)
    least: Any = epsilon if by is None else where(equal(by, 1.0), epsilon, square(multiply(by, math.sqrt(epsilon))))
    return cast(divide(wide, sqrt(maximum(squares, least))), x.dtype)
