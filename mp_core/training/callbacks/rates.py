"""Callbacks that set the learning rate."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from mp_core.training.callbacks.base import BEST, COUNT, Callback, Logs, Rule
from mp_core.training.callbacks.watching import WATCHED, MonitorCallback
from mp_core.utilities.arguments import integer, number

__all__ = ["LearningRateScheduler", "ReduceLROnPlateau"]


class LearningRateScheduler(Callback):
    """Set the learning rate before each epoch.

    Parameters
    ----------
    schedule : callable
        ``schedule(epoch, rate)`` or ``schedule(epoch)`` returns the new rate.
    verbose : int
        Whether to print the rate.

    Examples
    --------
    >>> import numpy as np
    >>> import mp_core as mp
    >>> model = mp.Sequential([mp.Input((1,)), mp.layers.Dense(1)])
    >>> model.compile(mp.optimizers.SGD(0.5), "mse")
    >>> halve = LearningRateScheduler(lambda epoch, rate: rate / 2)
    >>> model.fit(np.ones((4, 1)), np.ones((4, 1)), epochs=3, verbose=0, callbacks=[halve]).history["learning_rate"]
    [0.25, 0.125, 0.0625]
    """

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        super().__init__()
        if not callable(schedule):
            raise TypeError(f"`schedule` must be a function of the epoch number; received {schedule!r}")
        self.schedule, self.verbose = schedule, verbose
        try:
            inspect.signature(schedule).bind(0, 0.0)
            self._takes_rate = True
        except (TypeError, ValueError):  # it takes one argument, or has no signature
            self._takes_rate = False

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        given = (epoch, float(self.model.optimizer.learning_rate)) if self._takes_rate else (epoch,)
        rate = number(self.schedule(*given), "schedule")
        self.model.optimizer.learning_rate = rate
        if self.verbose:
            print(f"Epoch {epoch + 1}: LearningRateScheduler setting learning rate to {rate}.")

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        _add_rate_to(self.model.optimizer, logs)


@WATCHED
class ReduceLROnPlateau(MonitorCallback):
    """Reduce the learning rate when the monitored value has not improved for some epochs.

    Parameters
    ----------
    factor : float
        Below 1: the rate is multiplied by it.
    patience : int
        The number of epochs without improvement before the rate is reduced.
    verbose : int
        Whether to print the new rate.
    cooldown : int
        After a reduction, this number of epochs does not count towards `patience`.
    min_lr : float
        Lower limit of the rate.

    Attributes
    ----------
    wait, cooldown_counter : int
        The epochs without improvement, and the remaining epochs of the cooldown.

    Examples
    --------
    >>> import numpy as np
    >>> import mp_core as mp
    >>> model = mp.Sequential([mp.Input((1,)), mp.layers.Dense(1)])
    >>> model.compile(mp.optimizers.SGD(0.25), "mse")
    >>> watch = ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1e9)  # nothing is better by so much
    >>> model.fit(np.ones((4, 1)), np.ones((4, 1)), epochs=3, verbose=0, callbacks=[watch]).history["learning_rate"]
    [0.25, 0.25, 0.125]
    """

    state_attributes = ("best", "wait", "cooldown_counter")
    _state_rules: ClassVar[Mapping[str, Rule]] = {"best": BEST, "wait": COUNT, "cooldown_counter": COUNT}

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        super().__init__(monitor, mode, min_delta=min_delta)
        self.factor, self.verbose = number(factor, "factor", 0), verbose
        if self.factor >= 1:
            raise ValueError(f"`factor` must be below 1; received {factor!r}")
        self.patience, self.cooldown = integer(patience, "patience"), integer(cooldown, "cooldown")
        self.min_lr = number(min_lr, "min_lr", 0)
        self.on_train_begin()

    def on_train_begin(self, logs: Logs = None) -> None:
        self.best, self.wait, self.cooldown_counter = None, 0, 0

    def in_cooldown(self) -> bool:
        """Whether a cooldown is running."""
        return self.cooldown_counter > 0

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        _add_rate_to(self.model.optimizer, logs)
        value = self._monitored_value(logs)
        if value is None:
            return
        if self.in_cooldown():
            self.cooldown_counter -= 1
            self.wait = 0
        if self._is_improvement(value, self.best):
            self.best, self.wait = value, 0
        elif not self.in_cooldown():
            self.wait += 1
            rate = float(self.model.optimizer.learning_rate)
            if self.wait >= self.patience and rate > np.float32(self.min_lr):  # rates are float32
                self._reduce(epoch, rate)

    def _reduce(self, epoch: int, rate: float) -> None:
        new = max(rate * self.factor, self.min_lr)
        self.model.optimizer.learning_rate = new
        self.cooldown_counter, self.wait = self.cooldown, 0
        if self.verbose:
            print(f"Epoch {epoch + 1}: ReduceLROnPlateau reducing learning rate to {new}.")


def _add_rate_to(optimizer: Any, logs: Logs) -> None:
    """Add the learning rate to the logs."""
    if isinstance(logs, dict):
        logs["learning_rate"] = float(optimizer.learning_rate)
