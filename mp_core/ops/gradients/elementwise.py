"""Gradient rules of elementwise functions, and derivatives of activations."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core.arrays import F32, F64, Array, as_float, as_mask, cast
from mp_core.arrays.dtypes import is_float, result_type
from mp_core.arrays.recorded import recordable, with_numbers
from mp_core.core.pointwise import gelu_float64
from mp_core.ops import arrangement, elementwise, functions, pairs, quotients
from mp_core.ops.activations import activate
from mp_core.ops.elementwise import compared, computed
from mp_core.ops.gradients.registry import gradient_of, wide_type
from mp_core.utilities.arguments import is_number

__all__ = ["FROM_RESULT", "activation_gradient"]

FROM_RESULT = frozenset({"relu", "relu6", "sigmoid", "tanh", "elu", "softplus", "exponential"})
"""The activations whose derivative is computed from their result."""


@recordable
@with_numbers
def activation_gradient(name: str, d: Array, x: Array, dtype: Any) -> Array:
    """Return `d` times the derivative of an activation, computed in float32 and rounded once to `dtype`.

    Parameters
    ----------
    name : str
        A key of ``ACTIVATIONS``.
    d : ndarray of float
        The gradient of the result.
    x : ndarray of float
        The argument of the activation, or its result if `name` is in :data:`FROM_RESULT`. Its type may differ from that
        of `d`.
    dtype : dtype
        The type of the gradient.

    Returns
    -------
    ndarray
        The shape of `d`.

    Notes
    -----
    The derivative of relu is 0 at 0, and that of relu6 at 0 and 6, as in Keras and torch.

    Examples
    --------
    >>> d, y = np.ones(3, np.float32), np.array([0.0, 1.0, 2.0], np.float32)
    >>> activation_gradient("relu", d, y, np.float32)
    array([0., 1., 1.], dtype=float32)
    """
    if np.dtype(dtype) == F64:
        with np.errstate(all="ignore"):
            return np.asarray(cast(d, F64) * _DERIVATIVES[name](cast(x, F64)))
    return computed(f"{name} gradient", d, x, dtype=dtype)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0.0, e, 1.0) / (1.0 + e))


def _gated(x: Array, w: Array, rise: Array) -> Array:
    """Return the derivative of ``x sigmoid(w)``, where `rise` is ``x dw/dx``."""
    s = _sigmoid(w)
    return s * (1.0 + rise * _sigmoid(-w))


def _gelu(x: Array) -> Array:
    """Return the derivative of gelu, ``Phi(x) + x phi(x)``."""
    x = np.clip(x, -40.0, 40.0)
    phi = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    gelu = np.empty_like(x, order="C")
    gelu_float64(np.ascontiguousarray(x), gelu)
    return np.asarray(np.where(x == 0.0, 0.5, gelu / x) + x * phi)


def _silu(x: Array) -> Array:
    x = np.clip(x, -800.0, 800.0)
    return _gated(x, x, x)


def _gelu_tanh(x: Array) -> Array:
    x, c = np.clip(x, -40.0, 40.0), math.sqrt(8.0 / math.pi)
    return _gated(x, c * (x + 0.044715 * x**3), c * (x + 3 * 0.044715 * x**3))


_DERIVATIVES: dict[str, Callable[[Array], Array]] = {
    "relu": lambda y: np.where(y > 0.0, 1.0, 0.0),
    "relu6": lambda y: np.where((y > 0.0) & (y < 6.0), 1.0, 0.0),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
    "sigmoid": lambda y: y * (1.0 - y),
    "tanh": lambda y: 1.0 - y * y,
    "elu": lambda y: 1.0 + np.minimum(y, 0.0),
    "softplus": lambda y: -np.expm1(-y),
    "exponential": lambda y: y,
}
"""Name -> derivative in float64, a function of the argument, or of the result if the name is in :data:`FROM_RESULT`."""


def _wide(d: Array) -> Any:
    """Return the type in which rules with several steps compute, so that they round once, at the end."""
    return wide_type(d.dtype)


def _number(value: float, other: Array) -> Array:
    return np.full(1, value, _wide(other))


def _operand(x: Any, out: Array) -> Array:
    """Return an operand as the operation read it. A Python number takes the type of the result."""
    if type(x) in (int, float):
        return cast(np.full(1, x, F64), out.dtype)
    if not isinstance(x, np.ndarray):
        return as_float(x)
    return x if is_float(x.dtype) else cast(x, F32)


# ---- two operands

Gradient = Array | Callable[[Any], Array]


def _divided(d: Array, x: Array, y: Array) -> Callable[[Any], Array]:
    """Return the gradient of the divisor: ``-(d / y) (x / y)``."""

    def make(dtype: Any) -> Array:
        share = computed("divide", computed("negative", d, dtype=_wide(d)), y, dtype=_wide(d))
        return computed("multiply", share, computed("divide", x, y, dtype=_wide(d)), dtype=dtype)

    return make


def _where_chosen(comparison: str, d: Array, x: Array, y: Array) -> Callable[[Any], Array]:
    """Return ``d`` where a comparison is true, ``d / 2`` where the operands are equal, else 0."""

    def make(dtype: Any) -> Array:
        common = result_type(x.dtype, y.dtype)
        half = computed("multiply", d, _number(0.5, d), dtype=_wide(d))
        equal = elementwise.where(compared("equal", x, y, dtype=common), half, _number(0.0, d), dtype=_wide(d))
        return elementwise.where(compared(comparison, x, y, dtype=common), d, equal, dtype=dtype)

    return make


def _times(d: Array, other: Array) -> Callable[[Any], Array]:
    return lambda dtype: computed("multiply", d, other, dtype=dtype)


def _negative(d: Array) -> Callable[[Any], Array]:
    return lambda dtype: computed("negative", d, dtype=dtype)


_OF_TWO: dict[str, Callable[[Array, Array, Array], tuple[Gradient, Gradient]]] = {
    "add": lambda d, x, y: (d, d),
    "subtract": lambda d, x, y: (d, _negative(d)),
    "multiply": lambda d, x, y: (_times(d, y), _times(d, x)),
    "divide": lambda d, x, y: (lambda dtype: computed("divide", d, y, dtype=dtype), _divided(d, x, y)),
    "maximum": lambda d, x, y: (_where_chosen("greater", d, x, y), _where_chosen("greater", d, y, x)),
    "minimum": lambda d, x, y: (_where_chosen("less", d, x, y), _where_chosen("less", d, y, x)),
}
"""Function of two operands -> the gradients of both."""


def _rule_of_two(name: str, operation: Callable[..., Array]) -> None:
    @gradient_of(operation)
    def _(d: Array, out: Array, x: Any, y: Any) -> dict[str, Any]:
        return dict(zip("xy", _OF_TWO[name](d, _operand(x, out), _operand(y, out)), strict=True))


for _name in _OF_TWO:
    _rule_of_two(_name, getattr(pairs, _name))


@gradient_of(pairs.gate)
def _(d: Array, out: Array, x: Any, y: Any, activation: str) -> dict[str, Any]:
    x, y = _operand(x, out), _operand(y, out)
    if activation == "linear":
        return dict(zip("xy", _OF_TWO["multiply"](d, x, y), strict=True))

    def of_x(dtype: Any) -> Array:
        at = activate(activation, x) if activation in FROM_RESULT else x
        return activation_gradient(activation, computed("multiply", d, y, dtype=_wide(d)), at, dtype)

    def of_y(dtype: Any) -> Array:
        if dtype == result_type(x.dtype, d.dtype):
            return pairs.gate(x, d, activation)
        return computed("multiply", activate(activation, cast(x, _wide(d))), d, dtype=dtype)

    return {"x": of_x, "y": of_y}


# ---- one operand


def _of_absolute(d: Array, out: Array, x: Array, dtype: Any) -> Array:
    zero = _number(0.0, d)
    below = elementwise.where(compared("less", x, zero, dtype=x.dtype), computed("negative", d, dtype=d.dtype), zero,
                              dtype=_wide(d))  # fmt: skip
    return elementwise.where(compared("greater", x, zero, dtype=x.dtype), d, below, dtype=dtype)


def _of_sqrt(d: Array, out: Array, x: Array, dtype: Any) -> Array:
    return computed("divide", computed("multiply", d, _number(0.5, d), dtype=_wide(d)), out, dtype=dtype)


def _of_square(d: Array, out: Array, x: Array, dtype: Any) -> Array:
    return computed("multiply", computed("multiply", d, _number(2.0, d), dtype=_wide(d)), x, dtype=dtype)


def _of_log1p(d: Array, out: Array, x: Array, dtype: Any) -> Array:
    return computed("divide", d, computed("add", x, _number(1.0, d), dtype=_wide(d)), dtype=dtype)


def _scaled(d: Array, factor: float) -> Array:
    return computed("multiply", d, _number(factor, d), dtype=_wide(d))


def _by(name: str, d: Array, other: Array, dtype: Any, factor: float = 1.0) -> Array:
    """Return `d` times or divided by an array, then times a number that is not 1."""
    return computed(name, d if factor == 1.0 else _scaled(d, factor), other, dtype=dtype)


def _plus_one(x: Array, d: Array) -> Array:
    return computed("add", x, _number(1.0, d), dtype=_wide(d))


def _square(x: Array, d: Array) -> Array:
    return computed("square", x, dtype=_wide(d))


def _activated(name: str, x: Array, d: Array) -> Array:
    return activate(name, cast(x, _wide(d)))


def _of_erf(d: Array, out: Array, x: Array, dtype: Any, sign: float = 1.0) -> Array:
    """Return ``2 / sqrt(pi) exp(-x^2) d``, times `sign`."""
    exponential = _activated("exponential", computed("negative", _square(x, d), dtype=_wide(d)), d)
    return _by("multiply", d, exponential, dtype, sign * 2.0 / math.sqrt(math.pi))


def _of_rsqrt(d: Array, out: Array, x: Array, dtype: Any) -> Array:
    return computed("divide", _by("multiply", d, out, _wide(d), -0.5), x, dtype=dtype)


def _of_selu(d: Array, out: Array, x: Array, dtype: Any) -> Array:
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    below = _by("multiply", d, _activated("exponential", x, d), _wide(d), scale * alpha)
    return elementwise.where(
        compared("less", x, _number(0.0, d), dtype=_wide(d)), below, _scaled(d, scale), dtype=dtype
    )


def _of_softsign(d: Array, out: Array, x: Array, dtype: Any) -> Array:
    root = computed("divide", _number(1.0, d), _plus_one(computed("absolute", x, dtype=_wide(d)), d), dtype=_wide(d))
    return _by("multiply", d, _square(root, d), dtype)


def _of_log_sigmoid(d: Array, out: Array, x: Array, dtype: Any) -> Array:
    return _by("multiply", d, _activated("sigmoid", computed("negative", x, dtype=_wide(d)), d), dtype)


def _of_mish(d: Array, out: Array, x: Array, dtype: Any) -> Array:
    """Return ``(t + x s (1 - t^2)) d``, where s is the sigmoid of x and t the tanh of its softplus."""
    t, s = _activated("tanh", _activated("softplus", x, d), d), _activated("sigmoid", x, d)
    x = computed("maximum", x, _number(-1e30, d), dtype=_wide(d))  # -Inf times 0 is NaN
    share = computed("multiply", x, s, dtype=_wide(d))
    slope = computed("multiply", share, activation_gradient("tanh", d, t, _wide(d)), dtype=_wide(d))
    return computed("add", computed("multiply", d, t, dtype=_wide(d)), slope, dtype=dtype)


def _times_plus_one(x: Array, d: Array, factor: float = 1.0) -> Array:
    """Return ``(1 - x) (1 + x)``, or ``(x - 1) (x + 1)`` for the factor -1."""
    below = computed("subtract", _number(1.0, d), x, dtype=_wide(d))
    return computed("multiply", below if factor == 1.0 else _scaled(below, factor), _plus_one(x, d), dtype=_wide(d))


def _by_root(d: Array, square: Array, dtype: Any, factor: float = 1.0) -> Array:
    return _by("divide", d, computed("sqrt", square, dtype=_wide(d)), dtype, factor)


_OF_ONE: dict[str, Callable[[Array, Array, Array, Any], Array]] = {
    "negative": lambda d, out, x, dtype: computed("negative", d, dtype=dtype),
    "absolute": _of_absolute,
    "square": _of_square,
    "sqrt": _of_sqrt,
    "log": lambda d, out, x, dtype: computed("divide", d, x, dtype=dtype),
    "log1p": _of_log1p,
    "expm1": lambda d, out, x, dtype: _by("multiply", d, _activated("exponential", x, d), dtype),
    "exp2": lambda d, out, x, dtype: _by("multiply", d, out, dtype, math.log(2.0)),
    "log2": lambda d, out, x, dtype: _by("divide", d, x, dtype, 1.0 / math.log(2.0)),
    "log10": lambda d, out, x, dtype: _by("divide", d, x, dtype, 1.0 / math.log(10.0)),
    "sinh": lambda d, out, x, dtype: _by("multiply", d, computed("cosh", x, dtype=_wide(d)), dtype),
    "cosh": lambda d, out, x, dtype: _by("multiply", d, computed("sinh", x, dtype=_wide(d)), dtype),
    "sin": lambda d, out, x, dtype: _by("multiply", d, computed("cos", x, dtype=_wide(d)), dtype),
    "cos": lambda d, out, x, dtype: _by("multiply", d, computed("sin", x, dtype=_wide(d)), dtype, -1.0),
    "tan": lambda d, out, x, dtype: _by("multiply", d, _plus_one(_square(out, d), d), dtype),
    "arctan": lambda d, out, x, dtype: _by("divide", d, _plus_one(_square(x, d), d), dtype),
    "arcsin": lambda d, out, x, dtype: _by_root(d, _times_plus_one(x, d), dtype),
    "arccos": lambda d, out, x, dtype: _by_root(d, _times_plus_one(x, d), dtype, -1.0),
    "arcsinh": lambda d, out, x, dtype: _by_root(d, _plus_one(_square(x, d), d), dtype),
    "arccosh": lambda d, out, x, dtype: _by_root(d, _times_plus_one(x, d, -1.0), dtype),
    "arctanh": lambda d, out, x, dtype: _by("divide", d, _times_plus_one(x, d), dtype),
    "erf": _of_erf,
    "erfc": lambda d, out, x, dtype: _of_erf(d, out, x, dtype, -1.0),
    "rsqrt": _of_rsqrt,
    "selu": _of_selu,
    "softsign": _of_softsign,
    "log_sigmoid": _of_log_sigmoid,
    "mish": _of_mish,
}
"""Function of one operand -> its gradient, in a given dtype."""


@gradient_of(functions.function_of)
def _(d: Array, out: Array, name: str, x: Any) -> dict[str, Any]:
    x = _operand(x, out)
    return {"x": lambda dtype: _OF_ONE[name](d, out, x, dtype)}


@gradient_of(computed)
def _(d: Array, out: Array, name: str, *operands: Array, dtype: Any) -> dict[str, Any]:
    if name in _OF_ONE:
        return {"operands": (lambda dtype: _OF_ONE[name](d, out, operands[0], dtype),)}
    return {"operands": _OF_TWO[name](d, *operands)}


@gradient_of(functions.power)
def _(d: Array, out: Array, x: Any, exponent: Any) -> dict[str, Any]:
    """Return ``(d p) x^(p - 1)``, 0 for p = 0."""
    if not is_number(exponent):
        return _of_powers(d, out, _operand(x, out), _operand(exponent, out))
    x, exponent = _operand(x, out), float(exponent)

    def make(dtype: Any) -> Array:
        scaled = computed("multiply", d, _number(exponent, d), dtype=dtype if exponent == 0.0 else _wide(d))
        if exponent == 0.0:
            return scaled
        return computed("multiply", scaled, functions.power(cast(x, _wide(d)), exponent - 1.0), dtype=dtype)

    return {"x": make}


def _of_powers(d: Array, out: Array, x: Array, p: Array) -> dict[str, Any]:
    """Return ``(d p) x^(p - 1)`` (0 where p = 0) for the base, ``(d out) log(x)`` (0 where x = 0) for the exponent."""
    wide, zero, one = _wide(d), _number(0.0, d), _number(1.0, d)

    def of_base(dtype: Any) -> Array:
        lower = computed("power", x, computed("subtract", p, one, dtype=wide), dtype=wide)
        found = computed("multiply", computed("multiply", d, p, dtype=wide), lower, dtype=wide)
        return elementwise.where(compared("equal", p, zero, dtype=wide), zero, found, dtype=dtype)

    def of_exponent(dtype: Any) -> Array:
        base = elementwise.where(compared("equal", x, zero, dtype=wide), one, x, dtype=wide)
        found = computed("multiply", d, out, dtype=wide)
        return computed("multiply", found, computed("log", base, dtype=wide), dtype=dtype)

    return {"x": of_base, "exponent": of_exponent}


def _chosen_by(mask: Array, d: Array) -> tuple[Callable[[Any], Array], Callable[[Any], Array]]:
    zero = _number(0.0, d)
    return (
        lambda dtype: elementwise.where(mask, d, zero, dtype=dtype),
        lambda dtype: elementwise.where(mask, zero, d, dtype=dtype),
    )


@gradient_of(elementwise.where)
def _(d: Array, out: Array, mask: Array, *operands: Array, dtype: Any) -> dict[str, Any]:
    return {"operands": _chosen_by(mask, d)}


@gradient_of(functions.where)
def _(d: Array, out: Array, condition: Any, x: Any, y: Any) -> dict[str, Any]:
    mask = condition if isinstance(condition, np.ndarray) else as_mask(condition)
    return dict(zip("xy", _chosen_by(mask, d), strict=True))


@gradient_of(activate)
def _(d: Array, y: Array, name: str, x: Any, out: None = None) -> dict[str, Any]:
    return {"x": lambda dtype: activation_gradient(name, d, y if name in FROM_RESULT else _operand(x, y), dtype)}


@gradient_of(quotients.floor_divide)
def _(d: Array, out: Array, x1: Any, x2: Any) -> dict[str, Any]:
    return {}


@gradient_of(quotients.mod)
def _(d: Array, out: Array, x1: Any, x2: Any) -> dict[str, Any]:
    """Return ``d`` for `x1`, and ``-d floor_divide(x1, x2)`` for `x2`."""
    whole = quotients.floor_divide(cast(_operand(x1, out), _wide(d)), cast(_operand(x2, out), _wide(d)))
    return {
        "x1": d,
        "x2": lambda dtype: computed("multiply", computed("negative", d, dtype=_wide(d)), whole, dtype=dtype),
    }


@gradient_of(arrangement.stop_gradient)
def _(d: Array, out: Array, x: Any) -> dict[str, Any]:
    return {}
