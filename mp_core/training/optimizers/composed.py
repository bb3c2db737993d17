"""Optimizers that NumPy operations compute, with Keras' formulas: Adadelta, Adamax, Ftrl, Lamb and Nadam."""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.ops.norms import length
from mp_core.policies.autocast import AutoCastVariable
from mp_core.training.optimizers import formulas
from mp_core.training.optimizers.base import Optimizer
from mp_core.training.optimizers.formulas import power
from mp_core.training.optimizers.state import COMMON, RATE, Common
from mp_core.utilities.arguments import number, share
from mp_core.utilities.docstrings import documented

__all__ = ["Adadelta", "Adamax", "Ftrl", "Lamb", "Nadam"]


class _Composed(Optimizer):
    """An optimizer whose update is a Python method instead of a fused kernel."""

    def formula(self, w: Array, g: Array, slots: Sequence[Array], numbers: Sequence[Any]) -> tuple[Array, list[Array]]:
        """Return the new values of a variable and its slots; each operation rounds once."""
        raise NotImplementedError

    def updated(
        self, w: Array, g: Array, slots: Sequence[Array], numbers: Sequence[Any], how: formulas.Preparation
    ) -> tuple[Array, list[Array], bool]:
        return formulas.applied(self.formula, w, g, slots, numbers, how)


@documented(RATE, COMMON)
class Adadelta(_Composed):
    """Adadelta (Zeiler, 2012, https://arxiv.org/abs/1212.5701).

    ``v = rho * v + (1 - rho) * gradient**2``, ``step = -sqrt(d + epsilon) * gradient / sqrt(v + epsilon)``,
    ``d = rho * d + (1 - rho) * step**2`` and ``variable += learning_rate * step``.

    Parameters
    ----------
    rho : float
        From 0 to 1.
    epsilon : float

    Examples
    --------
    >>> from mp_core import AutoCastVariable
    >>> variable = AutoCastVariable([1.0])
    >>> Adadelta(1.0, rho=0.0, epsilon=0.25).apply([np.float32([2.0])], [variable])
    >>> variable.numpy().round(4)
    array([0.5149], dtype=float32)
    """

    slots: tuple[tuple[str, ...], ...] = (("accumulated_grad", "accumulated_delta_var"),)
    _arguments = ("rho", "epsilon")

    def __init__(
        self, learning_rate: Any = 0.001, rho: float = 0.95, epsilon: float = 1e-7, **common: Unpack[Common]
    ) -> None:
        super().__init__(learning_rate, **common)
        self.rho, self.epsilon = share(rho, "rho"), number(epsilon, "epsilon", 0)

    def numbers(self, rate: Any, step: int, kind: Any) -> Sequence[Any]:
        return rate, kind(self.rho), kind(1 - self.rho), kind(self.epsilon)

    def formula(self, w: Array, g: Array, slots: Sequence[Array], numbers: Sequence[Any]) -> tuple[Array, list[Array]]:
        rate, rho, rest, epsilon = numbers
        v = slots[0] * rho + g * g * rest
        step = -(np.sqrt(slots[1] + epsilon) * g / np.sqrt(v + epsilon))
        return w + step * rate, [v, slots[1] * rho + step * step * rest]


_MOMENTS = documented(RATE, """
    Parameters
    ----------
    beta_1, beta_2 : float
        From 0 to 1.
    epsilon : float
""", COMMON)  # fmt: skip


class _WithMoments(_Composed):
    """An optimizer with the arguments of Adam."""

    _arguments = ("beta_1", "beta_2", "epsilon")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate, **common)
        self.beta_1, self.beta_2 = share(beta_1, "beta_1"), share(beta_2, "beta_2")
        self.epsilon = number(epsilon, "epsilon", 0)


@_MOMENTS
class Adamax(_WithMoments):
    """Adam with the infinity norm (Kingma and Ba, 2014, https://arxiv.org/abs/1412.6980, section 7.1).

    ``m += (gradient - m) * (1 - beta_1)``, ``u = max(beta_2 * u, |gradient|)`` and in step t
    ``variable -= learning_rate * m / ((1 - beta_1**t) * (u + epsilon))``.

    >>> from mp_core import AutoCastVariable
    >>> variable = AutoCastVariable([1.0, 1.0])
    >>> Adamax(0.25, epsilon=0.0).apply([np.float32([3.0, -0.1])], [variable])
    >>> variable.numpy().round(4)
    array([0.75, 1.25], dtype=float32)
    """

    slots: tuple[tuple[str, ...], ...] = (("momentum", "norm"),)

    def numbers(self, rate: Any, step: int, kind: Any) -> Sequence[Any]:
        left = kind(1) - power(kind(self.beta_1), step)
        return rate, kind(1 - self.beta_1), kind(self.beta_2), left, kind(self.epsilon)

    def formula(self, w: Array, g: Array, slots: Sequence[Array], numbers: Sequence[Any]) -> tuple[Array, list[Array]]:
        rate, share, beta, left, epsilon = numbers
        m = slots[0] + (g - slots[0]) * share
        u = np.maximum(slots[1] * beta, np.abs(g))
        return w - m * rate / ((u + epsilon) * left), [m, u]


@_MOMENTS
class Nadam(_WithMoments):
    """Adam with Nesterov's momentum (Dozat, 2016, https://cs229.stanford.edu/proj2015/054_report.pdf).

    With ``u_t = beta_1 * (1 - 0.96**t / 2)``, ``p_t = u_1 * ... * u_t``, and m and v as in :class:`Adam`:
    ``variable -= learning_rate * (u_{t+1} * m / (1 - p_{t+1}) + (1 - u_t) * gradient / (1 - p_t)) /
    (sqrt(v / (1 - beta_2**t)) + epsilon)``.

    >>> from mp_core import AutoCastVariable
    >>> variable = AutoCastVariable([1.0, 1.0])
    >>> Nadam(0.25, epsilon=0.0).apply([np.float32([3.0, -0.1])], [variable])
    >>> variable.numpy().round(4)
    array([0.7343, 1.2657], dtype=float32)
    """

    slots: tuple[tuple[str, ...], ...] = (("momentum", "velocity"),)

    def build(self, trainable_variables: Sequence[AutoCastVariable]) -> None:
        """Create the slots of these variables, and the product of the momentums."""
        if not self.built:
            super().build(trainable_variables)
            self._product = self.add_variable((), "ones", name="u_product")

    def _update(self, pairs: Any, scale: float, rate: float, values: Any) -> None:
        step = (int(self._iterations) + 1) // (self.gradient_accumulation_steps or 1)
        values[self._product] = np.asarray(self._momentum_product(step), self._product.true_dtype)
        super()._update(pairs, scale, rate, values)

    def _momentum(self, step: int) -> Any:
        return np.float32(self.beta_1) * (np.float32(1) - np.float32(0.5) * power(np.float32(0.96), step))

    def _momentum_product(self, step: int) -> Any:
        return np.float32(self._product.numpy()) * self._momentum(step)

    def numbers(self, rate: Any, step: int, kind: Any) -> Sequence[Any]:
        now, following, product = self._momentum(step), self._momentum(step + 1), self._momentum_product(step)
        of_m, of_g = following / (1 - product * following), (1 - now) / (1 - product)
        left = kind(1) - power(kind(self.beta_2), step)
        return rate, kind(1 - self.beta_1), kind(1 - self.beta_2), kind(of_m), kind(of_g), left, kind(self.epsilon)

    def formula(self, w: Array, g: Array, slots: Sequence[Array], numbers: Sequence[Any]) -> tuple[Array, list[Array]]:
        rate, first, second, of_m, of_g, left, epsilon = numbers
        m = slots[0] + (g - slots[0]) * first
        v = slots[1] + (g * g - slots[1]) * second
        return w - (m * of_m + g * of_g) * rate / (np.sqrt(v / left) + epsilon), [m, v]


@_MOMENTS
class Lamb(_WithMoments):
    """Lamb: Adam with steps scaled to the norm of the variable (You et al., 2019, https://arxiv.org/abs/1904.00962).

    With m and v as in :class:`Adam`, ``step = m / (1 - beta_1**t) / (sqrt(v / (1 - beta_2**t)) + epsilon)`` and
    ``variable -= learning_rate * step * |variable| / |step|``. If a norm is 0, the ratio is 1. Norms are computed by
    :func:`mp_core.sum`.

    >>> from mp_core import AutoCastVariable
    >>> variable = AutoCastVariable([3.0, 4.0])
    >>> Lamb(0.2).apply([np.float32([1.0, 0.0])], [variable])
    >>> variable.numpy().round(4)
    array([2., 4.], dtype=float32)
    """

    slots: tuple[tuple[str, ...], ...] = (("momentum", "velocity"),)

    def numbers(self, rate: Any, step: int, kind: Any) -> Sequence[Any]:
        left = (kind(1) - power(kind(beta), step) for beta in (self.beta_1, self.beta_2))
        return rate, kind(1 - self.beta_1), kind(1 - self.beta_2), *left, kind(self.epsilon)

    def formula(self, w: Array, g: Array, slots: Sequence[Array], numbers: Sequence[Any]) -> tuple[Array, list[Array]]:
        rate, first, second, first_left, second_left, epsilon = numbers
        m = slots[0] + (g - slots[0]) * first
        v = slots[1] + (g * g - slots[1]) * second
        step = m / first_left / (np.sqrt(v / second_left) + epsilon)
        of_variable, of_step = (length(x).reshape(()) for x in (w, step))
        ratio = of_variable / of_step if of_variable > 0 and of_step > 0 else w.dtype.type(1)
        return w - step * (ratio * rate), [m, v]


@documented(RATE, COMMON)
class Ftrl(_Composed):
    """Follow the regularized leader (McMahan et al., 2013, https://research.google.com/pubs/archive/41159.pdf).

    With ``p = -learning_rate_power`` and ``n' = n + gradient**2``: ``z += gradient + 2 * l2_shrinkage * variable -
    (n'**p - n**p) / learning_rate * variable``, then ``variable = (clip(z, -l1, l1) - z) / (n'**p / learning_rate +
    2 * (l2 + beta / (2 * learning_rate)))``. A learning rate of 0 raises ValueError, because the formula divides by it.

    Parameters
    ----------
    learning_rate_power : float
        At most 0.
    initial_accumulator_value : float
        The initial n.
    l1_regularization_strength, l2_regularization_strength, l2_shrinkage_regularization_strength : float
    beta : float

    Examples
    --------
    >>> from mp_core import AutoCastVariable
    >>> variable = AutoCastVariable([0.0])
    >>> Ftrl(0.5, initial_accumulator_value=0.0).apply([np.float32([4.0])], [variable])
    >>> variable.numpy()
    array([-0.5], dtype=float32)
    """

    slots: tuple[tuple[str, ...], ...] = (("accumulator", "linear"),)
    _arguments = (
        "learning_rate_power", "initial_accumulator_value", "l1_regularization_strength", "l2_regularization_strength",
        "l2_shrinkage_regularization_strength", "beta",
    )  # fmt: skip

    def __init__(
        self,
        learning_rate: Any = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate, **common)
        self.learning_rate_power = number(learning_rate_power, "learning_rate_power")
        if self.learning_rate_power > 0:
            raise ValueError(f"`learning_rate_power` must be at most 0; received {learning_rate_power}")
        self.initial_accumulator_value = number(initial_accumulator_value, "initial_accumulator_value", 0)
        self.l1_regularization_strength = number(l1_regularization_strength, "l1_regularization_strength", 0)
        self.l2_regularization_strength = number(l2_regularization_strength, "l2_regularization_strength", 0)
        self.l2_shrinkage_regularization_strength = number(
            l2_shrinkage_regularization_strength, "l2_shrinkage_regularization_strength", 0
        )
        self.beta = number(beta, "beta")

    def numbers(self, rate: Any, step: int, kind: Any) -> Sequence[Any]:
        if not float(rate):
            raise ValueError(f"`learning_rate` of Ftrl must not be 0, which Ftrl divides by; it is 0 in step {step}")
        twice = 2 * (self.l2_regularization_strength + self.beta / (2 * float(rate)))
        shrinkage = kind(2 * self.l2_shrinkage_regularization_strength)
        return rate, -self.learning_rate_power, shrinkage, kind(self.l1_regularization_strength), kind(twice)

    def formula(self, w: Array, g: Array, slots: Sequence[Array], numbers: Sequence[Any]) -> tuple[Array, list[Array]]:
        rate, exponent, shrinkage, most, twice = numbers
        total = slots[0] + g * g
        old, new = (ops.power(x, exponent) for x in (slots[0], total))
        z = slots[1] + (g + w * shrinkage - (new - old) / rate * w)
        return (np.clip(z, -most, most) - z) / (new / rate + twice), [total, z]
