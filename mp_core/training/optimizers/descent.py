"""Optimizers with at most one slot per variable: gradient descent, with or without momentum, and Lion."""

from collections.abc import Sequence
from typing import Any, Unpack

from mp_core.training.optimizers.base import Optimizer
from mp_core.training.optimizers.state import COMMON, RATE, Common
from mp_core.utilities.arguments import boolean, share
from mp_core.utilities.docstrings import documented

__all__ = ["SGD", "Lion"]


@documented(RATE, COMMON)
class SGD(Optimizer):
    """Gradient descent, with or without momentum.

    ``variable -= learning_rate * gradient``. With momentum, ``m = momentum * m - learning_rate * gradient`` and
    ``variable += m``; with `nesterov` too, ``variable += momentum * m - learning_rate * gradient``.

    Parameters
    ----------
    momentum : float
        From 0 to 1.
    nesterov : bool

    Examples
    --------
    >>> import numpy as np
    >>> from mp_core import AutoCastVariable
    >>> variable = AutoCastVariable([1.0, 2.0])
    >>> optimizer = SGD(0.5)
    >>> int(optimizer.apply_gradients([(np.array([1.0, 0.0], np.float16), variable)]))
    1
    >>> variable.numpy()
    array([0.5, 2. ], dtype=float32)
    """

    _arguments = ("momentum", "nesterov")

    def __init__(
        self, learning_rate: Any = 0.01, momentum: float = 0.0, nesterov: bool = False, **common: Unpack[Common]
    ) -> None:
        super().__init__(learning_rate, **common)
        self.momentum, self.nesterov = share(momentum, "momentum"), boolean(nesterov, "nesterov")
        if self.momentum:
            self.slots = (("momentum",),)

    def rule(self) -> str:
        return "nesterov" if self.nesterov and self.momentum else "momentum" if self.momentum else "sgd"

    def numbers(self, rate: Any, step: int, kind: Any) -> Sequence[Any]:
        return rate, kind(self.momentum)


@documented(RATE, COMMON)
class Lion(Optimizer):
    """Lion: the step is the sign of a momentum (Chen et al., 2023, https://arxiv.org/abs/2302.06675).

    ``variable -= learning_rate * sign(beta_1 * m + (1 - beta_1) * gradient)``, then
    ``m = beta_2 * m + (1 - beta_2) * gradient``.

    Parameters
    ----------
    beta_1, beta_2 : float
        From 0 to 1; `beta_1` must be above 0.

    Examples
    --------
    >>> import numpy as np
    >>> from mp_core import AutoCastVariable
    >>> variable = AutoCastVariable([1.0, 1.0])
    >>> Lion(0.25).apply([np.float32([3.0, -0.1])], [variable])
    >>> variable.numpy()
    array([0.75, 1.25], dtype=float32)
    """

    slots: tuple[tuple[str, ...], ...] = (("momentum",),)
    _arguments = ("beta_1", "beta_2")

    def __init__(
        self, learning_rate: Any = 0.001, beta_1: float = 0.9, beta_2: float = 0.99, **common: Unpack[Common]
    ) -> None:
        super().__init__(learning_rate, **common)
        self.beta_1, self.beta_2 = share(beta_1, "beta_1"), share(beta_2, "beta_2")
        if not self.beta_1:
            raise ValueError("`beta_1` must be above 0: otherwise only the sign of the gradient counts")

    def rule(self) -> str:
        return "lion"

    def numbers(self, rate: Any, step: int, kind: Any) -> Sequence[Any]:
        first, second = kind(self.beta_1), kind(self.beta_2)
        return rate, first, kind(1) - first, second, kind(1) - second
