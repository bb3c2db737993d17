"""The formulas of the updates, as NumPy computes them: each operation rounds once, and nothing is fused.

A rule computes the new value of a variable and of its slots from the variable, its gradient, the slots, and numbers
that are the same for all elements. float32 and float64 variables are computed in their own type; those of 16 bits are
widened to float32, computed there, and rounded once. The rules of Keras 3 are restated here element by element.
mp_core/core/kernels/updates/ computes those of float32 in one pass, with the same bits.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import F64, Array, cast
from mp_core.core import updates

__all__ = ["RULES", "Preparation", "applied", "power", "prepared", "updated", "work_type"]

Slots = Sequence[Array]
Numbers = Sequence[Any]
Rule = Callable[[Array, Array, Slots, Numbers], tuple[Array, list[Array]]]


class Preparation(NamedTuple):
    """What happens to the gradient and the variable before the rule, each number in the type of the computation.

    Attributes
    ----------
    divisor : float
        The loss scale: the gradient is divided by it.
    factor : float
        By which the gradient is then multiplied, so that its norm is clipped.
    limit : float
        The gradient is then clipped to the range from ``-limit`` to `limit`.
    decay : float
        The variable loses this share of itself.
    """

    divisor: float = 1.0
    factor: float = 1.0
    limit: float = np.inf
    decay: float = 0.0


def _sgd(w: Array, g: Array, slots: Slots, n: Numbers) -> tuple[Array, list[Array]]:
    return w - g * n[0], []


def _momentum(w: Array, g: Array, slots: Slots, n: Numbers) -> tuple[Array, list[Array]]:
    m = slots[0] * n[1] - g * n[0]
    return w + m, [m]


def _nesterov(w: Array, g: Array, slots: Slots, n: Numbers) -> tuple[Array, list[Array]]:
    m = slots[0] * n[1] - g * n[0]
    return w + (m * n[1] - g * n[0]), [m]


def _adam(w: Array, g: Array, slots: Slots, n: Numbers) -> tuple[Array, list[Array]]:
    m = slots[0] + (g - slots[0]) * n[0]
    v = slots[1] + (g * g - slots[1]) * n[1]
    return w - m * n[2] / (np.sqrt(v) + n[3]), [m, v]


def _amsgrad(w: Array, g: Array, slots: Slots, n: Numbers) -> tuple[Array, list[Array]]:
    m = slots[0] + (g - slots[0]) * n[0]
    v = slots[1] + (g * g - slots[1]) * n[1]
    largest = np.maximum(slots[2], v)
    return w - m * n[2] / (np.sqrt(largest) + n[3]), [m, v, largest]


def _rmsprop(w: Array, g: Array, slots: Slots, n: Numbers) -> tuple[Array, list[Array]]:
    v = slots[0] * n[1] + g * g * n[2]
    return w - g * n[0] / np.sqrt(v + n[3]), [v]


def _rmsprop_momentum(w: Array, g: Array, slots: Slots, n: Numbers) -> tuple[Array, list[Array]]:
    v = slots[0] * n[1] + g * g * n[2]
    m = slots[1] * n[4] + g * n[0] / np.sqrt(v + n[3])
    return w - m, [v, m]


def _rmsprop_centered(w: Array, g: Array, slots: Slots, n: Numbers) -> tuple[Array, list[Array]]:
    v = slots[0] * n[1] + g * g * n[2]
    mean = slots[1] * n[1] + g * n[2]
    return w - g * n[0] / np.sqrt(v - mean * mean + n[3]), [v, mean]


def _rmsprop_centered_momentum(w: Array, g: Array, slots: Slots, n: Numbers) -> tuple[Array, list[Array]]:
    v = slots[0] * n[1] + g * g * n[2]
    mean = slots[2] * n[1] + g * n[2]
    m = slots[1] * n[4] + g * n[0] / np.sqrt(v - mean * mean + n[3])
    return w - m, [v, m, mean]


def _adagrad(w: Array, g: Array, slots: Slots, n: Numbers) -> tuple[Array, list[Array]]:
    total = slots[0] + g * g
    return w - g * n[0] / np.sqrt(total + n[1]), [total]


def _lion(w: Array, g: Array, slots: Slots, n: Numbers) -> tuple[Array, list[Array]]:
    step = np.sign(slots[0] * n[1] + g * n[2])
    return w - step * n[0], [slots[0] * n[3] + g * n[4]]


RULES: dict[str, Rule] = {
    "sgd": _sgd, "momentum": _momentum, "nesterov": _nesterov, "adam": _adam, "amsgrad": _amsgrad,
    "rmsprop": _rmsprop, "rmsprop_momentum": _rmsprop_momentum, "rmsprop_centered": _rmsprop_centered,
    "rmsprop_centered_momentum": _rmsprop_centered_momentum, "adagrad": _adagrad, "lion": _lion,
}  # fmt: skip
"""Name -> formula of variable, gradient, slots and numbers; the optimizers say which numbers these are."""


def work_type(dtype: np.dtype[Any]) -> Any:
    """Return the type in which the update of a variable is computed: float64, or float32 for all others."""
    return np.float64 if dtype == F64 else np.float32


def power(base: Any, exponent: int) -> Any:
    """Return a number to an integral power, rounded once to its type: float64 products, the same on every machine."""
    return type(base)(updates.power(base, exponent))


def prepared(w: Array, g: Array, how: Preparation) -> tuple[Array, Array]:
    """Return the variable after its decay, and the gradient that the rule sees, in the type of the computation."""
    work = work_type(w.dtype)
    w, g = cast(w, work), cast(g, work)
    if how.divisor != 1.0:
        g = g / work(how.divisor)
    if how.factor != 1.0:
        g = g * work(how.factor)
    if how.limit != np.inf:
        g = np.clip(g, work(-how.limit), work(how.limit))
    if how.decay != 0.0:
        w = w - w * work(how.decay)
    return w, g


def updated(
    rule: str, w: Array, g: Array, slots: Slots, numbers: Numbers, how: Preparation
) -> tuple[Array, list[Array], bool]:
    """Return the new value of a variable, those of its slots, and whether the gradient was finite.

    Parameters
    ----------
    rule : str
        Of :data:`RULES`.
    w, g : ndarray
        The variable and its gradient, of one shape.
    slots : sequence of ndarray
        Of the shape and dtype of the variable.
    numbers : sequence of float
        Those of the rule, in the type of the computation.
    how : Preparation
    """
    return applied(RULES[rule], w, g, slots, numbers, how)


def applied(
    rule: Rule, w: Array, g: Array, slots: Slots, numbers: Numbers, how: Preparation
) -> tuple[Array, list[Array], bool]:
    """Return what :func:`updated` returns, by a formula."""
    work = work_type(w.dtype)
    with np.errstate(all="ignore"):
        value, states = rule(*prepared(w, g, how), [cast(slot, work) for slot in slots], numbers)
    finite = bool(np.isfinite(cast(g, work)).all())
    return cast(value, w.dtype), [cast(state, w.dtype) for state in states], finite
