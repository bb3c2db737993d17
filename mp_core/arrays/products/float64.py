"""Softmax, norms, activations and functions in float64, mostly by NumPy."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core.arrays import F64, Array, cast
from mp_core.core import pointwise as _pointwise

__all__ = ["ACTIVATIONS", "FUNCTIONS", "layer_norm", "log_softmax", "rms_norm", "softmax"]


def softmax(x: Array, axis: int, scale: float, keep: Array | None) -> Array:
    """Return ``exp(scale * x)`` divided by its sum, over the elements where `keep` is true; 0 elsewhere."""
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
"""Name of an activation, as :func:`mp_core.ops.matmul` takes it -> its float64 function."""


def _error_function(x: Array, is_complement: bool) -> Array:
    x = np.asarray(x, order="C")
    y = np.empty_like(x)
    _pointwise.erf_float64(x, y, is_complement)
    return y


def _rsqrt(x: Array) -> Array:
    return np.asarray(1.0 / np.sqrt(x))


def _selu(x: Array) -> Array:
    return 1.0507009873554805 * np.where(x < 0.0, 1.6732632423543772 * np.expm1(np.minimum(x, 0.0)), x)


def _softsign(x: Array) -> Array:
    x = np.clip(x, -np.finfo(np.float64).max, np.finfo(np.float64).max)  # Inf / Inf is NaN
    return np.asarray(x / (1.0 + np.abs(x)))


def _mish(x: Array) -> Array:
    """With e = exp(-abs(x)): x (1 + 2 e) / (1 + 2 e + 2 e^2), or x e (e + 2) / (e (e + 2) + 2) where x < 0."""
    x = np.maximum(x, -np.finfo(np.float64).max)  # -Inf times 0 is NaN
    e = np.exp(-np.abs(x))
    above, below = 1.0 + 2.0 * e, e * (e + 2.0)
    return np.asarray(x * np.where(x < 0.0, below / (below + 2.0), above / (above + 2.0 * e * e)))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "erf": lambda x: _error_function(x, False),
    "erfc": lambda x: _error_function(x, True),
    "rsqrt": _rsqrt,
    "selu": _selu,
    "softsign": _softsign,
    "log_sigmoid": lambda x: -_softplus(-x),
    "mish": _mish,
}
"""Name of a function of one array that NumPy lacks, as :func:`mp_core.ops.elementwise.computed` takes it."""
