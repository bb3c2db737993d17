"""Normalization by statistics of channels, of groups of channels, or of neighbouring channels; any axis has these."""

from functools import partial, reduce

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, F64, Array, cast
from mp_core.ops.arrangement import array_of, moveaxis
from mp_core.ops.elementwise import floating, rounded
from mp_core.ops.functions import power
from mp_core.ops.padding import pad
from mp_core.ops.sums import mean as mean_of
from mp_core.utilities.arguments import axis_of, number, positive_integer

__all__ = ["batch_normalization", "group_normalization", "local_response_normalization", "normalized_groups"]


def batch_normalization(
    x: ArrayLike,
    mean: ArrayLike,
    variance: ArrayLike,
    axis: int,
    offset: ArrayLike | None = None,
    scale: ArrayLike | None = None,
    epsilon: float = 1e-3,
) -> Array:
    """Return ``(x - mean) * (scale / sqrt(variance + epsilon)) + offset``, in float32, rounded once.

    Parameters
    ----------
    x : array-like
        Floats; integers become float32.
    mean, variance : array-like, shape (channels,)
        Statistics of each channel.
    axis : int
        The channels axis of `x`.
    offset, scale : array-like, shape (channels,), optional
        Default: 0 and 1.
    epsilon : float

    Returns
    -------
    ndarray
        The shape and type of `x`.

    Raises
    ------
    ValueError
        A vector does not have one number for each channel.

    Examples
    --------
    >>> batch_normalization(np.float32([[2.0, 4.0]]), [1.0, 1.0], [1.0, 9.0], 1, epsilon=0.0)
    array([[1., 1.]], dtype=float32)
    """
    array = floating(array_of(x), F32)
    place, wide = axis_of(axis, array.ndim), _wide(array)
    along = partial(_along, x=array, axis=place, dtype=wide)
    center, spread = along(mean, "mean"), along(variance, "variance")
    beta = None if offset is None else along(offset, "offset")
    gamma = None if scale is None else along(scale, "scale")
    epsilon = number(epsilon, "epsilon")

    def normalized(x: Array) -> Array:
        root = np.sqrt(spread + wide.type(epsilon))
        return _moved((x - center) * (1 / root if gamma is None else gamma / root), beta)

    return rounded(normalized, array)


def group_normalization(
    x: ArrayLike,
    groups: int,
    axis: int = -1,
    scale: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    epsilon: float = 1e-3,
) -> Array:
    """Return ``(x - mean) / sqrt(variance + epsilon) * scale + offset``, in float32, rounded once.

    The statistics are those of each example and group of neighbouring channels. With as many groups as channels it is
    instance normalization.

    Parameters
    ----------
    x : array-like, shape (batch, ...)
        Floats; integers become float32.
    groups : int
        The number of groups, a divisor of the number of channels.
    axis : int
        The channels axis of `x`.
    scale, offset : array-like, shape (channels,), optional
        Default: 1 and 0.
    epsilon : float

    Returns
    -------
    ndarray
        The shape and type of `x`.

    Raises
    ------
    ValueError
        `groups` does not divide the number of channels, or a vector does not have one number for each channel.

    Examples
    --------
    >>> group_normalization(np.array([[1.0, 3.0, 10.0, 30.0]]), 2, epsilon=0.0)
    array([[-1.,  1., -1.,  1.]])
    """
    array = floating(array_of(x), F32)
    place, wide = axis_of(axis, array.ndim), _wide(array)
    channels = array.shape[place]
    if place == 0 or channels % positive_integer(groups, "groups"):
        raise ValueError(f"`groups` must divide the length of an axis after the first one; received {groups} for axis "
                         f"{axis} of shape {array.shape}")  # fmt: skip
    gamma, beta = (None if given is None else _along(given, name, array, place, wide)
                   for name, given in (("scale", scale), ("offset", offset)))  # fmt: skip
    epsilon = number(epsilon, "epsilon")

    def normalized(x: Array) -> Array:
        found = normalized_groups(x, groups, place, epsilon)
        return _moved(found if gamma is None else found * gamma, beta)

    return rounded(normalized, array)


def normalized_groups(x: Array, groups: int, axis: int, epsilon: float) -> Array:
    """Return :func:`group_normalization` of a float32 or float64 array, without scale and offset.

    Examples
    --------
    >>> normalized_groups(np.array([[1.0, 3.0, 10.0, 30.0]]), 1, 1, 0.0).round(2)
    array([[-0.87, -0.7 , -0.09,  1.66]])
    """
    last = moveaxis(x, axis, -1)
    rows = last.reshape(len(x), -1, groups, last.shape[-1] // groups)
    centered = rows - mean_of(rows, (1, 3), keepdims=True)
    variance = mean_of(np.square(centered), (1, 3), keepdims=True)
    found = centered / np.sqrt(variance + x.dtype.type(epsilon))
    return moveaxis(found.reshape(last.shape), -1, axis)


def local_response_normalization(
    x: ArrayLike, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, axis: int = -1
) -> Array:
    """Return ``x / (bias + alpha / size * s)**beta``, where s is the sum of the squares of `size` neighbours.

    The neighbours of channel i are channels ``i - (size - 1) // 2`` to ``i + size // 2``, as far as they exist; their
    squares are added in order, in float32.

    Parameters
    ----------
    x : array-like
        Floats; integers become float32.
    size : int
    alpha, beta, bias : float
    axis : int
        The channels axis of `x`.

    Returns
    -------
    ndarray
        The shape and type of `x`.

    Examples
    --------
    >>> local_response_normalization(np.float32([[1, 2, 3]]), 3, alpha=3.0, beta=1.0)
    array([[0.16666667, 0.13333334, 0.21428572]], dtype=float32)
    """
    array, size = floating(array_of(x), F32), positive_integer(size, "size")
    place = axis_of(axis, array.ndim)
    alpha, beta, bias = (number(*given) for given in ((alpha, "alpha"), (beta, "beta"), (bias, "bias")))
    before, channels = (slice(None),) * place, array.shape[place]
    widths = [((size - 1) // 2, size // 2) if axis == place else (0, 0) for axis in range(array.ndim)]

    def normalized(x: Array) -> Array:
        squares = pad(np.square(x), widths)
        total = reduce(np.add, (squares[(*before, slice(i, i + channels))] for i in range(size)))
        found: Array = x / power(total * (alpha / size) + bias, beta)
        return found

    return rounded(normalized, array)


def _wide(x: Array) -> np.dtype[np.generic]:
    return F64 if x.dtype == F64 else F32


def _along(vector: ArrayLike, name: str, x: Array, axis: int, dtype: np.dtype[np.generic]) -> Array:
    """Return a vector of one number for each channel, shaped so that it broadcasts against `x`."""
    found, channels = array_of(vector), x.shape[axis]
    if found.shape != (channels,):
        raise ValueError(f"`{name}` must have shape {(channels,)}; received {found.shape}")
    return cast(found, dtype).reshape([channels if place == axis else 1 for place in range(x.ndim)])


def _moved(x: Array, offset: Array | None) -> Array:
    return x if offset is None else x + offset
