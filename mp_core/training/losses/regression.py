"""Losses of numbers and vectors: the last axis is reduced to one value per sample."""

import math
from typing import Any

from mp_core import ops
from mp_core.arrays import Array
from mp_core.training.losses.arrays import EPSILON, PAIRS, VALUES, matching_floats
from mp_core.utilities.docstrings import documented

__all__ = [
    "cosine_similarity", "huber", "kl_divergence", "log_cosh", "mean_absolute_error", "mean_absolute_percentage_error",
    "mean_squared_error", "mean_squared_logarithmic_error", "poisson",
]  # fmt: skip

_MEANS = documented(PAIRS, VALUES.format(axes="the last axis"))


@_MEANS
def mean_squared_error(y_true: Any, y_pred: Any) -> Array:
    """Return ``mean((y_true - y_pred)**2)`` along the last axis.

    >>> mean_squared_error([[1.0, 2.0]], [[1.0, 4.0]])
    array([2.], dtype=float32)
    """
    y_true, y_pred = matching_floats(y_true, y_pred)
    return ops.mean(ops.square(y_true - y_pred), axis=-1)


@_MEANS
def mean_absolute_error(y_true: Any, y_pred: Any) -> Array:
    """Return ``mean(abs(y_true - y_pred))`` along the last axis.

    >>> mean_absolute_error([[1.0, 2.0]], [[1.0, 4.0]])
    array([1.], dtype=float32)
    """
    y_true, y_pred = matching_floats(y_true, y_pred)
    return ops.mean(ops.absolute(y_true - y_pred), axis=-1)


@_MEANS
def mean_absolute_percentage_error(y_true: Any, y_pred: Any) -> Array:
    """Return ``100 * mean(abs((y_true - y_pred) / max(abs(y_true), 1e-7)))`` along the last axis.

    >>> mean_absolute_percentage_error([[1.0, 2.0]], [[1.0, 4.0]])
    array([50.], dtype=float32)
    """
    y_true, y_pred = matching_floats(y_true, y_pred)
    share = ops.absolute((y_true - y_pred) / ops.maximum(ops.absolute(y_true), EPSILON))
    return ops.mean(share, axis=-1) * 100.0


@_MEANS
def mean_squared_logarithmic_error(y_true: Any, y_pred: Any) -> Array:
    """Return ``mean((log(1 + y_true) - log(1 + y_pred))**2)`` along the last axis; both are at least 1e-7.

    >>> mean_squared_logarithmic_error([[0.0, 1.0]], [[0.0, 3.0]]).round(4)
    array([0.2402], dtype=float32)
    """
    y_true, y_pred = matching_floats(y_true, y_pred)
    return ops.mean(ops.square(_log_of(y_pred) - _log_of(y_true)), axis=-1)


def _log_of(x: Array) -> Array:
    return ops.log1p(ops.maximum(x, EPSILON))


@documented(PAIRS, VALUES.format(axes="that axis"))
def cosine_similarity(y_true: Any, y_pred: Any, axis: int = -1) -> Array:
    """Return minus the cosine of the angle between vectors: -1 for equal directions, 0 if a vector is zero.

    Parameters
    ----------
    axis : int
        The axis of the vectors.

    Examples
    --------
    >>> cosine_similarity([[1.0, 0.0]], [[2.0, 0.0]])
    array([-1.], dtype=float32)
    """
    y_true, y_pred = matching_floats(y_true, y_pred)
    return -ops.sum(ops.normalize(y_true, axis) * ops.normalize(y_pred, axis), axis=axis)


@_MEANS
def huber(y_true: Any, y_pred: Any, delta: float = 1.0) -> Array:
    """Return the mean of ``e**2 / 2`` for ``e <= delta``, else ``delta * e - delta**2 / 2``; ``e = |y_true - y_pred|``.

    Parameters
    ----------
    delta : float

    Examples
    --------
    >>> huber([[0.0, 0.0]], [[0.5, 3.0]])
    array([1.3125], dtype=float32)
    """
    y_true, y_pred = matching_floats(y_true, y_pred)
    error = ops.absolute(y_pred - y_true)
    inner, outer = ops.square(error) * 0.5, error * delta - 0.5 * delta * delta
    return ops.mean(ops.where(error <= delta, inner, outer), axis=-1)


@_MEANS
def log_cosh(y_true: Any, y_pred: Any) -> Array:
    """Return ``mean(log(cosh(y_pred - y_true)))`` along the last axis, without overflow.

    >>> log_cosh([[0.0, 0.0]], [[0.0, 2000.0]]).round(2)
    array([999.65], dtype=float32)
    """
    y_true, y_pred = matching_floats(y_true, y_pred)
    error = y_pred - y_true
    return ops.mean(error + ops.softplus(error * -2.0) - math.log(2.0), axis=-1)


@_MEANS
def poisson(y_true: Any, y_pred: Any) -> Array:
    """Return ``mean(y_pred - y_true * log(y_pred + 1e-7))`` along the last axis.

    >>> poisson([[1.0, 0.0]], [[1.0, 3.0]]).round(4)
    array([2.], dtype=float32)
    """
    y_true, y_pred = matching_floats(y_true, y_pred)
    return ops.mean(y_pred - y_true * ops.log(y_pred + EPSILON), axis=-1)


@_MEANS
def kl_divergence(y_true: Any, y_pred: Any) -> Array:
    """Return ``sum(y_true * log(y_true / y_pred))`` along the last axis; both are clipped to [1e-7, 1].

    >>> kl_divergence([[0.5, 0.5]], [[0.25, 0.75]]).round(4)
    array([0.1438], dtype=float32)
    """
    y_true, y_pred = matching_floats(y_true, y_pred)
    y_true, y_pred = ops.clip(y_true, EPSILON, 1.0), ops.clip(y_pred, EPSILON, 1.0)
    return ops.sum(y_true * ops.log(y_true / y_pred), axis=-1)
