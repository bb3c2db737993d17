"""The loss scales of experimental policies: mutable objects with an immutable state of :mod:`mp_core.loss_scale`."""

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np

from mp_core.arrays.finite import are_finite
from mp_core.training.optimizers import scales as states
from mp_core.training.optimizers.scales import FLOAT32_MAX, scale_number
from mp_core.utilities.arguments import float_of, is_number, number, positive_integer, whole
from mp_core.utilities.registry import check_depth, class_and_config, own_config

__all__ = ["DynamicLossScale", "FixedLossScale", "LossScale", "get", "serialize"]


class LossScale(ABC):
    """The base class of loss scales: calling it returns the value; :meth:`update` adapts it to gradients.

    >>> class Halving(LossScale):
    ...     value = 8.0
    ...     def __call__(self):
    ...         return np.float32(self.value)
    ...     def update(self, grads):
    ...         self.value /= 2
    ...         return None, True
    ...     def get_config(self):
    ...         return {}
    >>> loss_scale = Halving()
    >>> loss_scale.update(np.ones(1)), loss_scale()
    ((None, True), np.float32(4.0))
    """

    @abstractmethod
    def __call__(self) -> np.float32:
        """Return the current value."""

    @abstractmethod
    def update(self, grads: Any) -> tuple[None, bool]:
        """Adapt the scale to the gradients of a step: an array or nested arrays; None is skipped.

        Return (None, whether to apply the gradients); TensorFlow returns an operation instead of None.
        """

    @abstractmethod
    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the loss scale with the arguments `config`."""
        return cls(**own_config(config, "loss scale"))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value}' for key, value in self.get_config().items())})"


class _WithState(LossScale):
    """A loss scale that holds a state and replaces it at each update."""

    state: states.LossScale

    def __call__(self) -> np.float32:
        return np.float32(self.state.loss_scale)

    def update(self, grads: Any) -> tuple[None, bool]:
        """Adapt the scale; return (None, whether to apply the gradients): a dynamic scale rejects infinity and NaN."""
        finite = not self.state.skips or are_finite(grads, "grads")
        self.state = self.state.adjust(finite)
        return None, finite


class FixedLossScale(_WithState):
    """A constant loss scale.

    Parameters
    ----------
    loss_scale_value : int or float
        A float32 number of at least 1.

    Examples
    --------
    >>> loss_scale = FixedLossScale(2)
    >>> loss_scale, loss_scale(), loss_scale.update(np.array([np.inf]))
    (FixedLossScale(2.0), np.float32(2.0), (None, True))
    """

    def __init__(self, loss_scale_value: float) -> None:
        if not is_number(loss_scale_value):
            raise ValueError(f"loss_scale_value must be a Python int or float. Received: {loss_scale_value!r}")
        value = float_of(loss_scale_value)
        if not 1 <= value <= FLOAT32_MAX:
            raise ValueError(
                f"loss_scale_value must be at least 1, and finite in float32. Received: {loss_scale_value}"
            )
        self.state = states.LossScale(value)

    def get_config(self) -> dict[str, Any]:
        return {"loss_scale_value": self.state.loss_scale}

    def __repr__(self) -> str:
        return f"FixedLossScale({self.state.loss_scale})"


class DynamicLossScale(_WithState):
    """A loss scale that grows after a period of finite gradients, and shrinks (not below 1) after others.

    Parameters
    ----------
    initial_loss_scale : float
        A float32 number above 0.
    increment_period : int
        The scale grows after so many steps in a row with finite gradients, unless it would exceed float32.
    multiplier : float
        The factor by which it grows and shrinks, above 1.

    Examples
    --------
    >>> loss_scale = DynamicLossScale(4, increment_period=2)
    >>> loss_scale.update([np.array([1.0, np.nan]), None])
    (None, False)
    >>> loss_scale()
    np.float32(2.0)
    """

    def __init__(
        self, initial_loss_scale: float = 2.0**15, increment_period: int = 2000, multiplier: float = 2.0
    ) -> None:
        self.initial_loss_scale = scale_number(initial_loss_scale, "initial_loss_scale")
        self.increment_period = positive_integer(whole(increment_period), "increment_period")
        self.multiplier = number(multiplier, "multiplier")
        self.state = states.DynamicLossScale(
            self.initial_loss_scale, period=self.increment_period, factor=self.multiplier
        )

    def get_config(self) -> dict[str, Any]:
        return {
            "initial_loss_scale": self.initial_loss_scale,
            "increment_period": self.increment_period,
            "multiplier": self.multiplier,
        }

    def __repr__(self) -> str:
        progress = f"current_loss_scale={self.state.loss_scale}, num_good_steps={self.state.counter}"
        return super().__repr__().replace("(", f"({progress}, ", 1)


def get(identifier: Any) -> LossScale | None:
    """Return the loss scale of an identifier.

    Parameters
    ----------
    identifier : LossScale, int, float, str, dict or None
        A loss scale (returned unchanged), the value of a fixed one, ``"dynamic"``, a configuration, or None.
    """
    if identifier is None or isinstance(identifier, LossScale):
        return identifier
    if is_number(identifier):
        return FixedLossScale(identifier)
    if isinstance(identifier, str) and identifier == "dynamic":
        return DynamicLossScale()
    check_depth(identifier)
    classes: dict[str, type[LossScale]] = {cls.__name__: cls for cls in (FixedLossScale, DynamicLossScale)}
    name = identifier.get("class_name") if isinstance(identifier, dict) else None
    if isinstance(name, str) and name in classes:
        found, own = class_and_config(identifier, classes, "loss scale")
        return found.from_config(own)
    raise ValueError(f"Could not interpret loss scale identifier: {identifier}")


def serialize(loss_scale: LossScale | None) -> dict[str, Any] | None:
    """Return the configuration of a loss scale, for :func:`get`."""
    if loss_scale is not None and not isinstance(loss_scale, LossScale):
        raise TypeError(f"`loss_scale` must be a LossScale or None; received {loss_scale!r}")
    return None if loss_scale is None else {"class_name": type(loss_scale).__name__, "config": loss_scale.get_config()}
