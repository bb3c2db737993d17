"""Activation functions with Keras' names. Each computes in float32 (float64 for float64) and rounds once."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.arrays.products.operands import ACTIVATIONS
from mp_core.core.names import Activation
from mp_core.ops.activations import activate
from mp_core.ops.elementwise import rounded
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

# Functions of :mod:`mp_core.ops` that Keras has here too.
celu, elu, gelu, glu, hard_shrink = ops.celu, ops.elu, ops.gelu, ops.glu, ops.hard_shrink
hard_sigmoid, hard_silu, hard_swish, hard_tanh = ops.hard_sigmoid, ops.hard_silu, ops.hard_swish, ops.hard_tanh
leaky_relu, log_sigmoid, relu6, selu, sigmoid = ops.leaky_relu, ops.log_sigmoid, ops.relu6, ops.selu, ops.sigmoid
silu, soft_shrink, softsign, sparse_plus = ops.silu, ops.soft_shrink, ops.softsign, ops.sparse_plus
sparse_sigmoid, sparsemax, squareplus, swish = ops.sparse_sigmoid, ops.sparsemax, ops.squareplus, ops.swish
tanh, tanh_shrink, threshold = ops.tanh, ops.tanh_shrink, ops.threshold


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


def gelu_tanh(x: Array) -> Array:
    """Return the tanh approximation of GELU."""
    return ops.gelu(x, approximate=True)


def softplus(x: Array) -> Array:
    """Return ``log(exp(x) + 1)``."""
    return activate("softplus", x)


def exponential(x: Array) -> Array:
    """Return ``exp(x)``."""
    return activate("exponential", x)


def log_softmax(x: Array, axis: int | Sequence[int] = -1) -> Array:
    """Return the logarithm of the softmax over an axis, or jointly over several."""
    return ops.log_softmax(x, axis=axis)


def mish(x: Array) -> Array:
    """Return ``x * tanh(log(exp(x) + 1))``."""
    return function_of("mish", x)


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
