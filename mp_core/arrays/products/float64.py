"""Rows and activations of float64 arrays: float64 throughout, mostly on NumPy's own routines."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core.arrays import F64, Array, cast
from mp_core.core import pointwise as _pointwise

__all__ = ["ACTIVATIONS", "layer_norm", "log_softmax", "rms_norm", "softmax"]


def softmax(x: Array, axis: int, scale: float, keep: Array | None) -> Array:
    """Return ``exp(scale * x)`` where `keep` is true, else 0, divided by its sum."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        y = x * scale if keep is None else np.where(keep, x * scale, -np.inf)
        peak = y.max(axis=axis, keepdims=True, initial=-np.inf)
        e: Array = np.exp(y - np.where(peak == -np.inf, 0.0, peak))
        e /= e.sum(axis=axis, keepdims=True)
    return e if keep is None else np.where(keep, e, 0.0)


def log_softmax(x: Array, axis: int) -> Array:
    """Return the logarithm of the softmax."""
    with np.errstate(all="ignore"):
        lower = x - x.max(axis=axis, keepdims=True)
        result: Array = lower - np.log(np.exp(lower).sum(axis=axis, keepdims=True))
    return result


def layer_norm(x: Array, gamma: Any, beta: Any, epsilon: float) -> Array:
    """Return `x` normalized over the last axis, times `gamma`, plus `beta`."""
    if x.size == 0:
        return x
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        y: Array = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    y = y if gamma is None else y * cast(gamma, F64)
    return y if beta is None else y + cast(beta, F64)


def rms_norm(x: Array, gamma: Array | None, epsilon: float) -> Array:
    """Return `x` divided by the root of the mean of its squares over the last axis, times `gamma`."""
    if x.size == 0:
        return x
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        y: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon)
    return y if gamma is None else y * gamma


def _relu(x: Array) -> Array:
    return np.where(x < 0.0, 0.0, x)  # np.maximum may turn -0 into 0


def _gelu(x: Array) -> Array:
    x = np.asarray(np.maximum(x, -np.finfo(np.float64).max), order="C")  # -Inf times 0 is NaN
    y = np.empty_like(x)
    _pointwise.gelu_float64(x, y)
    return y


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    y: Array = np.where(x < 0.0, e, 1.0) / (1.0 + e)
    return y


def _silu(x: Array) -> Array:
    x = np.maximum(x, -np.finfo(np.float64).max)  # -Inf times 0 is NaN
    return x * _sigmoid(x)


def _elu(x: Array) -> Array:
    with np.errstate(under="ignore", invalid="ignore"):
        return np.where(x < 0.0, np.expm1(np.minimum(x, 0.0)), x)


def _softplus(x: Array) -> Array:
    with np.errstate(under="ignore", invalid="ignore"):
        return np.logaddexp(x, 0.0)


def _exponential(x: Array) -> Array:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.exp(x)


def _gelu_tanh(x: Array) -> Array:
    x = np.maximum(x, -np.finfo(np.float64).max)
    with np.errstate(over="ignore"):
        return x * _sigmoid(math.sqrt(8.0 / math.pi) * (x + 0.044715 * x**3))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": _relu,
    "relu6": lambda x: np.minimum(_relu(x), 6.0),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "elu": _elu,
    "softplus": _softplus,
    "exponential": _exponential,
}
"""Name -> function, by the names that :func:`mp_core.ops.matmul` takes."""
