"""Optimizers that divide by the square root of averaged squared gradients: Adam, AdamW, RMSprop and Adagrad."""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from mp_core.training.optimizers.base import Optimizer
from mp_core.training.optimizers.formulas import power
from mp_core.training.optimizers.state import COMMON, RATE, Common
from mp_core.utilities.arguments import boolean, finite, number, share
from mp_core.utilities.docstrings import documented

__all__ = ["Adagrad", "Adam", "AdamW", "RMSprop", "moment_numbers"]


def moment_numbers(beta_1: float, beta_2: float, epsilon: float, rate: Any, step: int) -> Sequence[Any]:
    """Return the numbers of Adam's rule in the type of `rate`: 1 - beta_1, 1 - beta_2, alpha and epsilon."""
    kind = type(rate)
    first, second = (kind(1) - power(kind(beta), step) for beta in (beta_1, beta_2))
    return kind(1 - beta_1), kind(1 - beta_2), rate * np.sqrt(second) / first, kind(epsilon)


_MOMENTS = documented(RATE, """
    Parameters
    ----------
    beta_1, beta_2 : float
        From 0 to 1.
    epsilon : float
    amsgrad : bool
""", COMMON)  # fmt: skip


@_MOMENTS
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2014, https://arxiv.org/abs/1412.6980), as Keras computes it.

    ``m += (gradient - m) * (1 - beta_1)``, ``v += (gradient**2 - v) * (1 - beta_2)`` and
    ``variable -= alpha * m / (sqrt(v) + epsilon)``, where ``alpha = learning_rate * sqrt(1 - beta_2**t) /
    (1 - beta_1**t)`` in step t. With `amsgrad`, v is replaced by its largest value so far.

    >>> from mp_core import AutoCastVariable
    >>> variable = AutoCastVariable([1.0, 1.0])
    >>> Adam(0.25, epsilon=0.0).apply([np.float32([3.0, -0.1])], [variable])
    >>> variable.numpy().round(4)
    array([0.75, 1.25], dtype=float32)
    """

    slots: tuple[tuple[str, ...], ...] = (("momentum", "velocity"),)
    _arguments = ("beta_1", "beta_2", "epsilon", "amsgrad")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate, **common)
        self.beta_1, self.beta_2 = share(beta_1, "beta_1"), share(beta_2, "beta_2")
        self.epsilon, self.amsgrad = number(epsilon, "epsilon", 0), boolean(amsgrad, "amsgrad")
        if self.amsgrad:
            self.slots = (*type(self).slots, ("velocity_hat",))

    def rule(self) -> str:
        return "amsgrad" if self.amsgrad else "adam"

    def numbers(self, rate: Any, step: int, kind: Any) -> Sequence[Any]:
        return moment_numbers(self.beta_1, self.beta_2, self.epsilon, rate, step)


@_MOMENTS
class AdamW(Adam):
    """Adam with weight decay (Loshchilov and Hutter, 2017, https://arxiv.org/abs/1711.05101).

    Parameters
    ----------
    weight_decay : float
        Before its update, a variable is multiplied by ``1 - weight_decay * learning_rate``.

    Examples
    --------
    >>> from mp_core import AutoCastVariable
    >>> variable = AutoCastVariable([2.0])
    >>> AdamW(0.5, weight_decay=0.5).apply([np.float32([0.0])], [variable])
    >>> variable.numpy()
    array([1.5], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **common: Any,
    ) -> None:
        finite(weight_decay, "weight_decay")  # other optimizers accept None: no decay
        super().__init__(learning_rate, beta_1, beta_2, epsilon, amsgrad, weight_decay=weight_decay, **common)


@documented(RATE, COMMON)
class RMSprop(Optimizer):
    """RMSprop (Tieleman and Hinton, 2012), as Keras computes it.

    ``v = rho * v + (1 - rho) * gradient**2``, ``step = learning_rate * gradient / sqrt(v + epsilon)`` and ``variable -=
    step``. If `centered`, ``mean = rho * mean + (1 - rho) * gradient`` and the root is ``sqrt(v - mean**2 + epsilon)``.
    With momentum, ``m = momentum * m + step`` and ``variable -= m``.

    Parameters
    ----------
    rho, momentum : float
        From 0 to 1.
    epsilon : float
    centered : bool

    Examples
    --------
    >>> from mp_core import AutoCastVariable
    >>> variable = AutoCastVariable([1.0])
    >>> RMSprop(0.5, rho=0.75).apply([np.float32([4.0])], [variable])
    >>> variable.numpy()
    array([0.], dtype=float32)
    """

    slots: tuple[tuple[str, ...], ...] = (("velocity",),)
    _arguments = ("rho", "momentum", "epsilon", "centered")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate, **common)
        self.rho, self.momentum = share(rho, "rho"), share(momentum, "momentum")
        self.epsilon, self.centered = number(epsilon, "epsilon", 0), boolean(centered, "centered")
        if self.momentum:
            self.slots = (*self.slots, ("momentum",))
        if self.centered:
            self.slots = (*self.slots, ("average_gradient",))

    def rule(self) -> str:
        return "rmsprop" + "_centered" * self.centered + "_momentum" * bool(self.momentum)

    def numbers(self, rate: Any, step: int, kind: Any) -> Sequence[Any]:
        return rate, kind(self.rho), kind(1 - self.rho), kind(self.epsilon), kind(self.momentum)


@documented(RATE, COMMON)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al., 2011), as Keras computes it.

    ``v += gradient**2`` and ``variable -= learning_rate * gradient / sqrt(v + epsilon)``.

    Parameters
    ----------
    initial_accumulator_value : float
        The initial v.
    epsilon : float

    Examples
    --------
    >>> from mp_core import AutoCastVariable
    >>> variable = AutoCastVariable([1.0])
    >>> Adagrad(0.5, initial_accumulator_value=0.0, epsilon=0.0).apply([np.float32([4.0])], [variable])
    >>> variable.numpy()
    array([0.5], dtype=float32)
    """

    slots: tuple[tuple[str, ...], ...] = (("accumulator",),)
    _arguments = ("initial_accumulator_value", "epsilon")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(learning_rate, **common)
        self.initial_accumulator_value = number(initial_accumulator_value, "initial_accumulator_value", 0)
        self.epsilon = number(epsilon, "epsilon", 0)

    def rule(self) -> str:
        return "adagrad"

    def numbers(self, rate: Any, step: int, kind: Any) -> Sequence[Any]:
        return rate, kind(self.epsilon)
