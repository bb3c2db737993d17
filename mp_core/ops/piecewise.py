"""Activations that are composed of other operations, under Keras' names.

Each is computed in float32, or float64 for float64, and rounded once to the type of its argument.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, Array
from mp_core.ops import specs
from mp_core.ops.activations import FLOATS, activate, sigmoid, silu, tanh
from mp_core.ops.arrangement import array_of
from mp_core.ops.elementwise import floating, rounded
from mp_core.ops.registry import operation
from mp_core.utilities.arguments import axis_of, number
from mp_core.utilities.docstrings import documented

__all__ = ["celu", "elu", "glu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "leaky_relu",
           "soft_shrink", "sparse_plus", "sparse_sigmoid", "sparsemax", "squareplus", "swish", "tanh_shrink",
           "threshold"]  # fmt: skip

_ELEMENTS = documented(FLOATS)


def _of(x: ArrayLike, function: Callable[[Any], Any]) -> Array:
    return rounded(function, floating(array_of(x), F32))


@operation(specs.floating, options="alpha", home="nn")
@_ELEMENTS
def elu(x: ArrayLike, alpha: float = 1.0) -> Array:
    """Return `x` where ``x >= 0``, else ``alpha * (exp(x) - 1)``.

    Parameters
    ----------
    alpha : float

    Examples
    --------
    >>> elu([-1, 0, 2])
    array([-0.63212055,  0.        ,  2.        ], dtype=float32)
    """
    if number(alpha, "alpha") == 1.0:
        return activate("elu", x)
    return _of(x, lambda x: np.where(x >= 0, x, alpha * activate("elu", x)))


@operation(specs.floating, options="alpha", home="nn")
@_ELEMENTS
def celu(x: ArrayLike, alpha: float = 1.0) -> Array:
    """Return `x` where ``x >= 0``, else ``alpha * (exp(x / alpha) - 1)``.

    Parameters
    ----------
    alpha : float

    Examples
    --------
    >>> celu([-1, 0, 2], 2.0)
    array([-0.78693867,  0.        ,  2.        ], dtype=float32)
    """
    return _of(x, lambda x: np.where(x >= 0, x, alpha * activate("elu", x / alpha)))


@operation(specs.floating, options="negative_slope", home="nn")
@_ELEMENTS
def leaky_relu(x: ArrayLike, negative_slope: float = 0.2) -> Array:
    """Return `x` where ``x >= 0``, else ``negative_slope * x``.

    Parameters
    ----------
    negative_slope : float

    Examples
    --------
    >>> leaky_relu([-1, 0, 2])
    array([-0.2,  0. ,  2. ], dtype=float32)
    """
    return _of(x, lambda x: np.where(x >= 0, x, negative_slope * x))


@operation(specs.floating, options="threshold default_value", home="nn")
@_ELEMENTS
def threshold(x: ArrayLike, threshold: float, default_value: float) -> Array:
    """Return `x` where ``x > threshold``, else `default_value`.

    Parameters
    ----------
    threshold, default_value : float

    Examples
    --------
    >>> threshold([-1, 0, 2], 0.0, 5.0)
    array([5., 5., 2.], dtype=float32)
    """
    return _of(x, lambda x: np.where(x > threshold, x, default_value))


@operation(specs.floating, home="nn")
@_ELEMENTS
def hard_sigmoid(x: ArrayLike) -> Array:
    """Return ``x / 6 + 1 / 2``, clipped to 0 and 1.

    Examples
    --------
    >>> hard_sigmoid([-4, 0, 1.5])
    array([0.  , 0.5 , 0.75])
    """
    return _of(x, lambda x: np.minimum(np.maximum(x / 6 + 0.5, 0), 1))


@operation(specs.floating, home="nn")
@_ELEMENTS
def hard_silu(x: ArrayLike) -> Array:
    """Return `x` times its hard sigmoid.

    Examples
    --------
    >>> hard_silu([-4, 0, 1.5, 5])
    array([-0.   ,  0.   ,  1.125,  5.   ])
    """

    def product(x: Array) -> Any:
        x = np.maximum(x, -3)  # below -3 the hard sigmoid is 0; avoids 0 * -inf = NaN
        return x * np.minimum(x / 6 + 0.5, 1)

    return _of(x, product)


@operation(specs.floating, home="nn")
@_ELEMENTS
def hard_tanh(x: ArrayLike) -> Array:
    """Return `x`, clipped to -1 and 1.

    Examples
    --------
    >>> hard_tanh([-4, 0.5, 2])
    array([-1. ,  0.5,  1. ])
    """
    return _of(x, lambda x: np.minimum(np.maximum(x, -1), 1))


@operation(specs.floating, options="threshold", home="nn")
@_ELEMENTS
def hard_shrink(x: ArrayLike, threshold: float = 0.5) -> Array:
    """Return `x` where ``abs(x) > threshold``, else 0.

    Parameters
    ----------
    threshold : float

    Examples
    --------
    >>> hard_shrink([-2, 0.5, 1])
    array([-2.,  0.,  1.])
    """
    return _of(x, lambda x: np.where(np.abs(x) > threshold, x, 0))


@operation(specs.floating, options="threshold", home="nn")
@_ELEMENTS
def soft_shrink(x: ArrayLike, threshold: float = 0.5) -> Array:
    """Return `x` moved towards 0 by `threshold`; 0 where ``abs(x) <= threshold``.

    Parameters
    ----------
    threshold : float

    Examples
    --------
    >>> soft_shrink([-2, 0.5, 1])
    array([-1.5,  0. ,  0.5])
    """
    return _of(x, lambda x: np.where(x > threshold, x - threshold, np.where(x < -threshold, x + threshold, 0)))


@operation(specs.floating, home="nn")
@_ELEMENTS
def tanh_shrink(x: ArrayLike) -> Array:
    """Return ``x - tanh(x)``.

    Examples
    --------
    >>> tanh_shrink([-1, 0, 2])
    array([-0.23840582,  0.        ,  1.0359724 ], dtype=float32)
    """
    return _of(x, lambda x: x - tanh(x))


@operation(specs.floating, home="nn")
@_ELEMENTS
def sparse_plus(x: ArrayLike) -> Array:
    """Return 0 where ``x <= -1``, `x` where ``x >= 1``, else ``(x + 1) ** 2 / 4``.

    Examples
    --------
    >>> sparse_plus([-2, 0, 2])
    array([0.  , 0.25, 2.  ], dtype=float32)
    """
    return _of(x, lambda x: np.where(x <= -1, 0, np.where(x < 1, np.square(x + 1) / 4, x)))


@operation(specs.floating, home="nn")
@_ELEMENTS
def sparse_sigmoid(x: ArrayLike) -> Array:
    """Return ``(x + 1) / 2``, clipped to 0 and 1.

    Examples
    --------
    >>> sparse_sigmoid([-2, 0, 2])
    array([0. , 0.5, 1. ], dtype=float32)
    """
    return _of(x, lambda x: np.minimum(np.maximum((x + 1) / 2, 0), 1))


@operation(specs.floating, options="b", home="nn")
@_ELEMENTS
def squareplus(x: ArrayLike, b: float = 4) -> Array:
    """Return ``(x + sqrt(x ** 2 + b)) / 2``.

    Parameters
    ----------
    b : float

    Examples
    --------
    >>> squareplus([-1.5, 0])
    array([0.5, 1. ])
    """

    def half(x: Array) -> Any:
        return (x + np.sqrt(np.square(x) + x.dtype.type(b))) / 2

    return _of(x, lambda x: np.where(x < np.finfo(x.dtype).min, 0, half(x)))


@operation(specs.halved, options="axis", home="nn")
@_ELEMENTS
def glu(x: ArrayLike, axis: int = -1) -> Array:
    """Return the first half of an axis, whose length is even, times the sigmoid of the second half.

    Parameters
    ----------
    axis : int

    Returns
    -------
    ndarray
        The axis has half of its length.

    Examples
    --------
    >>> glu([2.0, 4.0, 0.0, 0.0])
    array([1., 2.])
    """
    array = floating(array_of(x), F32)
    lines = np.moveaxis(array, axis_of(axis, array.ndim), -1)
    if lines.shape[-1] % 2:
        raise ValueError(f"the length of axis {axis} must be even; received shape {array.shape}")
    half = lines.shape[-1] // 2
    gated = rounded(lambda x: x[..., :half] * sigmoid(x[..., half:]), lines)
    return np.moveaxis(gated, -1, axis)


@operation(specs.rows, options="axis", home="nn")
@_ELEMENTS
def sparsemax(x: ArrayLike, axis: int = -1) -> Array:
    """Return the Euclidean projection of `x` onto the probability simplex along an axis; many results are 0.

    NumPy sorts, so plans cannot record it.

    Parameters
    ----------
    axis : int

    Examples
    --------
    >>> sparsemax([0.0, 2.0, 2.5])
    array([0.  , 0.25, 0.75])
    """

    def nearest(x: Array) -> Any:
        lines = np.moveaxis(x, axis, -1)
        ordered = -np.sort(-lines, axis=-1)
        sums = np.cumsum(ordered, axis=-1) - 1
        count = np.arange(1, lines.shape[-1] + 1, dtype=x.dtype)
        support = np.sum(ordered > sums / count, axis=-1, keepdims=True)
        least = np.take_along_axis(sums, support - 1, axis=-1) / support.astype(x.dtype)
        return np.moveaxis(np.maximum(lines - least, 0), -1, axis)

    return _of(x, nearest)


swish, hard_swish = silu, hard_silu  # Keras' other names
