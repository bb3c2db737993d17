"""Activation functions with Keras' names. Each computes in float32 (float64 for float64) and rounds once."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.arrays.floats import as_float
from mp_core.arrays.products.operands import ACTIVATIONS
from mp_core.core.names import Activation
from mp_core.layers.elementwise import rounded
from mp_core.ops.activations import activate
from mp_core.ops.functions import function_of
from mp_core.utilities.registry import custom_object_scope, named_function

__all__ = [
    "celu",
    "deserialize",
    "elu",
    "exponential",
    "gelu",
    "get",
    "glu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "leaky_relu",
    "linear",
    "log_sigmoid",
    "log_softmax",
    "mish",
    "relu",
    "relu6",
    "selu",
    "serialize",
    "sigmoid",
    "silu",
    "soft_shrink",
    "softmax",
    "softplus",
    "softsign",
    "sparse_plus",
    "sparse_sigmoid",
    "sparsemax",
    "squareplus",
    "swish",
    "tanh",
    "tanh_shrink",
    "threshold",
]


def __dir__() -> list[str]:
    return __all__


Function = Callable[..., Any]


def linear(x: Array) -> Array:
    """Return `x`."""
    return x


def relu(x: Array, negative_slope: float = 0.0, max_value: float | None = None, threshold: float = 0.0) -> Array:
    """Return ``min(x, max_value)`` where ``x > threshold``, else ``negative_slope * (x - threshold)``."""
    if negative_slope == threshold == 0.0 and max_value in (None, 6.0):
        return ops.relu(x) if max_value is None else ops.relu6(x)

    def piecewise(x: Array) -> Any:
        above = x if max_value is None else np.minimum(x, x.dtype.type(max_value))
        low = x if negative_slope else np.maximum(x, np.finfo(np.float32).min)  # avoids 0 * inf = NaN
        return np.where(x > threshold, above, negative_slope * (low - threshold))

    return rounded(piecewise, x)


def softmax(x: Array, axis: int | Sequence[int] = -1) -> Array:
    """Return the softmax over an axis, or jointly over several."""
    return ops.softmax(x, axis=axis)


def threshold(x: Array, threshold: float, default_value: float) -> Array:
    """Return `x` where ``x > threshold``, else `default_value`."""
    return rounded(lambda x: np.where(x > threshold, x, default_value), x)


def gelu_tanh(x: Array) -> Array:
    """Return the tanh approximation of GELU."""
    return ops.gelu(x, approximate=True)


def elu(x: Array, alpha: float = 1.0) -> Array:
    """Return `x` where ``x >= 0``, else ``alpha * (exp(x) - 1)``."""
    if alpha == 1.0:
        return activate("elu", x)
    return rounded(lambda x: np.where(x >= 0, x, alpha * activate("elu", x)), x)


def leaky_relu(x: Array, negative_slope: float = 0.2) -> Array:
    """Return `x` where ``x >= 0``, else ``negative_slope * x``."""
    return rounded(lambda x: np.where(x >= 0, x, negative_slope * x), x)


def softplus(x: Array) -> Array:
    """Return ``log(exp(x) + 1)``."""
    return activate("softplus", x)


def exponential(x: Array) -> Array:
    """Return ``exp(x)``."""
    return activate("exponential", x)


def hard_sigmoid(x: Array) -> Array:
    """Return ``x / 6 + 1 / 2``, clipped to 0 and 1."""
    return rounded(_hard_sigmoid, x)


def hard_silu(x: Array) -> Array:
    """Return `x` times its hard sigmoid."""

    def product(x: Array) -> Any:
        x = np.maximum(x, -3)  # below -3 the hard sigmoid is 0; avoids 0 * -inf = NaN
        return x * np.minimum(x / 6 + 0.5, 1)

    return rounded(product, x)


def _hard_sigmoid(x: Array) -> Any:
    return np.minimum(np.maximum(x / 6 + 0.5, 0), 1)


def celu(x: Array, alpha: float = 1.0) -> Array:
    """Return `x` where ``x >= 0``, else ``alpha * (exp(x / alpha) - 1)``."""
    return rounded(lambda x: np.where(x >= 0, x, alpha * activate("elu", x / alpha)), x)


def glu(x: Array, axis: int = -1) -> Array:
    """Return the first half of an axis, whose length is even, times the sigmoid of the second half."""
    x = x if hasattr(x, "shape") else as_float(x)
    if x.shape[axis] % 2:
        raise ValueError(f"the length of axis {axis} must be even; received shape {x.shape}")
    half = x.shape[axis] // 2
    lines = np.moveaxis(x, axis, -1)
    gated = rounded(lambda x: x[..., :half] * ops.sigmoid(x[..., half:]), lines)
    return np.moveaxis(gated, -1, axis)


def hard_shrink(x: Array, threshold: float = 0.5) -> Array:
    """Return `x` where ``abs(x) > threshold``, else 0."""
    return rounded(lambda x: np.where(np.abs(x) > threshold, x, 0), x)


def hard_tanh(x: Array) -> Array:
    """Return `x`, clipped to -1 and 1."""
    return rounded(lambda x: np.minimum(np.maximum(x, -1), 1), x)


def log_softmax(x: Array, axis: int | Sequence[int] = -1) -> Array:
    """Return the logarithm of the softmax over an axis, or jointly over several."""
    return ops.log_softmax(x, axis=axis)


def mish(x: Array) -> Array:
    """Return ``x * tanh(log(exp(x) + 1))``."""
    return function_of("mish", x)


def soft_shrink(x: Array, threshold: float = 0.5) -> Array:
    """Return `x` moved towards 0 by `threshold`; 0 where ``abs(x) <= threshold``."""
    return rounded(lambda x: np.where(x > threshold, x - threshold, np.where(x < -threshold, x + threshold, 0)), x)


def sparse_plus(x: Array) -> Array:
    """Return 0 where ``x <= -1``, `x` where ``x >= 1``, else ``(x + 1) ** 2 / 4``."""
    return rounded(lambda x: np.where(x <= -1, 0, np.where(x < 1, np.square(x + 1) / 4, x)), x)


def sparse_sigmoid(x: Array) -> Array:
    """Return ``(x + 1) / 2``, clipped to 0 and 1."""
    return rounded(lambda x: np.minimum(np.maximum((x + 1) / 2, 0), 1), x)


def sparsemax(x: Array, axis: int = -1) -> Array:
    """Return the Euclidean projection of `x` onto the probability simplex along an axis; many results are 0."""

    def nearest(x: Array) -> Any:
        lines = np.moveaxis(x, axis, -1)
        ordered = -np.sort(-lines, axis=-1)
        sums = np.cumsum(ordered, axis=-1) - 1
        count = np.arange(1, lines.shape[-1] + 1, dtype=x.dtype)
        support = np.sum(ordered > sums / count, axis=-1, keepdims=True)
        least = np.take_along_axis(sums, support - 1, axis=-1) / support.astype(x.dtype)
        return np.moveaxis(np.maximum(lines - least, 0), -1, axis)

    return rounded(nearest, x)


def squareplus(x: Array, b: float = 4) -> Array:
    """Return ``(x + sqrt(x ** 2 + b)) / 2``."""

    def half(x: Array) -> Any:
        return (x + np.sqrt(np.square(x) + x.dtype.type(b))) / 2

    return rounded(lambda x: np.where(x < np.finfo(x.dtype).min, 0, half(x)), x)


def tanh_shrink(x: Array) -> Array:
    """Return ``x - tanh(x)``."""
    return rounded(lambda x: x - ops.tanh(x), x)


class NamedActivation:
    """An activation without a function in :mod:`mp_core.ops`; kernels know it by its name."""

    def __init__(self, name: Activation) -> None:
        self.name = name

    def __call__(self, x: Array) -> Array:
        """Return the activation, element by element."""
        return activate(self.name, x)

    def __reduce__(self) -> tuple[Function, tuple[str]]:
        return get, (self.name,)


FUSED: dict[Function, Activation] = {
    ops.relu: "relu",
    relu: "relu",
    ops.relu6: "relu6",
    ops.gelu: "gelu",
    gelu_tanh: "gelu_tanh",
    ops.silu: "silu",
    ops.sigmoid: "sigmoid",
    ops.tanh: "tanh",
    elu: "elu",
    softplus: "softplus",
    exponential: "exponential",
}
_names = cast("list[Activation]", list(ACTIVATIONS)[1:])
FUSED |= {NamedActivation(name): name for name in _names if name not in FUSED.values()}
"""Function -> its name as the argument `activation` of :func:`mp_core.ops.matmul`, which applies it before rounding."""

# Functions of :mod:`mp_core.ops` that Keras has here, and Keras' aliases.
gelu, relu6, sigmoid, silu, tanh = ops.gelu, ops.relu6, ops.sigmoid, ops.silu, ops.tanh
log_sigmoid, selu, softsign = ops.log_sigmoid, ops.selu, ops.softsign
swish, hard_swish = silu, hard_silu

_FUNCTIONS: dict[str, Function] = {
    "linear": linear,
    "swish": swish,
    "softmax": softmax,
    "selu": selu,
    "leaky_relu": leaky_relu,
    "softsign": softsign,
    "hard_sigmoid": hard_sigmoid,
    "hard_silu": hard_silu,
    "hard_swish": hard_swish,
    "celu": celu,
    "glu": glu,
    "hard_shrink": hard_shrink,
    "hard_tanh": hard_tanh,
    "log_sigmoid": log_sigmoid,
    "log_softmax": log_softmax,
    "mish": mish,
    "soft_shrink": soft_shrink,
    "sparse_plus": sparse_plus,
    "sparse_sigmoid": sparse_sigmoid,
    "sparsemax": sparsemax,
    "squareplus": squareplus,
    "tanh_shrink": tanh_shrink,
    "threshold": threshold,
    **{name: function for function, name in FUSED.items()},  # if a name occurs twice, the last function wins
}


def get(identifier: Any) -> Function:
    """Return an activation by its name or Keras' configuration; callables stay, None is ``linear``."""
    if identifier is None:
        return linear
    identifier = named_function(identifier)
    if callable(identifier):
        return identifier  # type: ignore[no-any-return]
    if not isinstance(identifier, str) or identifier not in _FUNCTIONS:
        raise ValueError(
            f"Could not interpret activation function: {identifier!r}. "
            f"Expected a callable, one of {', '.join(_FUNCTIONS)}, or what "
            "mp_core.saving.register_keras_serializable registered"
        )
    return _FUNCTIONS[identifier]


def deserialize(config: Any, custom_objects: dict[str, Any] | None = None) -> Function:
    """Return an activation function as :func:`get` does; names in `custom_objects` are known too."""
    with custom_object_scope(custom_objects):
        return get(config)


def keeps_shape(function: Function) -> bool:
    """Return whether results certainly have the shape of the argument: not for glu and users' functions."""
    return function is not glu and isinstance(serialize(function), str)


def serialize(function: Function) -> Any:
    """Return the name of a function of this module; return any other callable unchanged."""
    return FUSED.get(function) or next((name for name, known in _FUNCTIONS.items() if known is function), function)
