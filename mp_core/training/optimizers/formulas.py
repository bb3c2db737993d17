"""The formulas of the updates in NumPy: each operation rounds once, and nothing is fused.

A rule maps (variable, gradient, slots, numbers) to the new values of variable and slots, element by element, as in
Keras 3; the numbers are the same for all elements.

| variable | computed in | rounding |
|---|---|---|
| float32, float64 | its own type | after each operation |
| 16 bits | float32 | once more at the end |

mp_core/core/kernels/updates/ computes float32 variables in one pass, with the same bits.
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
    """Steps before the rule, in the type of the computation.

    ``gradient = clip(gradient / divisor * factor, -limit, limit)`` and ``variable -= variable * decay``.
    """

    divisor: float = 1.0  # the loss scale
    factor: float = 1.0  # limits the norm of the gradient
    limit: float = np.inf
    decay: float = 0.0  # weight decay times learning rate


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
"""Name -> formula of variable, gradient, slots and numbers; :meth:`Optimizer.numbers` returns the numbers."""


def work_type(dtype: np.dtype[Any]) -> Any:
    """Return the type in which a variable is updated: float64 for float64, otherwise float32."""
    return np.float64 if dtype == F64 else np.float32


def power(base: Any, exponent: int) -> Any:
    """Return ``base ** exponent``, computed by float64 products and rounded once: the same bits on every machine."""
    return type(base)(updates.power(base, exponent))


def prepared(w: Array, g: Array, how: Preparation) -> tuple[Array, Array]:
    """Return the variable after weight decay, and the gradient for the rule, in the type of the computation."""
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
    """Return the new value of a variable, the new values of its slots, and whether the gradient was finite.

    `rule` is a key of :data:`RULES`. Gradient and slots have the shape of the variable; the `numbers` of the rule have
    the type of the computation.
    """
    return applied(RULES[rule], w, g, slots, numbers, how)


def applied(
    rule: Rule, w: Array, g: Array, slots: Slots, numbers: Numbers, how: Preparation
) -> tuple[Array, list[Array], bool]:
    """Return the result of :func:`updated` for a formula."""
    work = work_type(w.dtype)
    with np.errstate(all="ignore"):
        value, states = rule(*prepared(w, g, how), [cast(slot, work) for slot in slots], numbers)
    finite = bool(np.isfinite(cast(g, work)).all())
    return cast(value, w.dtype), [cast(state, w.dtype) for state in states], finite
