"""Activation functions by Keras' names. Each computes in float32 (float64 in float64) and rounds once."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core import dtypes, ops

__all__ = ["FUSED", "get", "serialize"]

Array = np.ndarray[Any, Any]
Function = Callable[[Any], Any]


def _in_float32(x: Array, function: Callable[[Array], Array]) -> Array:
    if x.dtype.kind == "f" and x.dtype.itemsize >= 4:
        return function(x)
    result = function(ops.cast(x, "float32"))
    return ops.cast(result, x.dtype) if dtypes.is_float(x.dtype) else result


def linear(x: Array) -> Array:
    """Return `x`."""
    return x


def softmax(x: Array) -> Array:
    """Return the softmax over the last axis."""
    return ops.softmax(x)


def sigmoid(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))``, by way of tanh, which does not overflow."""
    return _in_float32(x, lambda wide: 0.5 + 0.5 * np.tanh(0.5 * wide))


def tanh(x: Array) -> Array:
    """Return the hyperbolic tangent."""
    return _in_float32(x, np.tanh)


_FUNCTIONS: dict[str, Function] = {
    "linear": linear,
    "relu": ops.relu,
    "gelu": ops.gelu,
    "silu": ops.silu,
    "swish": ops.silu,
    "softmax": softmax,
    "sigmoid": sigmoid,
    "tanh": tanh,
}

FUSED: dict[Function, Any] = {ops.relu: "relu", ops.gelu: "gelu", ops.silu: "silu"}
"""Function -> the name under which :func:`mp_core.ops.matmul` applies it before it rounds."""


def get(identifier: Any) -> Function:
    """Return the function of a name; None is ``linear``, a callable is itself.

    Raises
    ------
    ValueError
        `identifier` is none of these.
    """
    if identifier is None:
        return linear
    if callable(identifier):
        return identifier  # type: ignore[no-any-return]
    if identifier not in _FUNCTIONS:
        raise ValueError(
            f"Could not interpret activation function: {identifier!r}. "
            f"Expected a callable or one of {', '.join(_FUNCTIONS)}"
        )
    return _FUNCTIONS[identifier]


def serialize(function: Function) -> Any:
    """Return the name of a function of this module, any other callable as it is."""
    return next((name for name, known in _FUNCTIONS.items() if known is function), function)
