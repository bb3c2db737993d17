"""Callbacks that watch the logs, and stop training or set the learning rate."""

import inspect
import math
from collections.abc import Callable
from typing import Any

from mp_core.callbacks.base import Callback, Logs
from mp_core.utilities.arguments import boolean, integer, number

__all__ = ["EarlyStopping", "LearningRateScheduler", "ReduceLROnPlateau", "TerminateOnNaN", "is_maximum"]

_MODES = ("auto", "min", "max")
_GROWING = ("acc", "auc", "precision", "recall", "f1", "fbeta", "iou", "r2", "cosine", "true")
"""Parts of the names of metrics of which more is better."""


def is_maximum(monitor: str, mode: str) -> bool:
    """Whether more is better of what is watched.

    Raises
    ------
    ValueError
        `mode` is none of "auto", "min" and "max".
    """
    if mode not in _MODES:
        raise ValueError(f"`mode` must be one of {', '.join(_MODES)}; received {mode!r}")
    return mode == "max" or (mode == "auto" and any(part in monitor.lower() for part in _GROWING))


def watched(logs: Logs, monitor: str) -> float:
    """Return the value of a name in the logs.

    Raises
    ------
    ValueError
        There is none.
    """
    if logs is None or monitor not in logs:
        raise ValueError(f"`monitor` must be one of {', '.join(logs or {})}; received {monitor!r}")
    return float(logs[monitor])


class EarlyStopping(Callback):
    """Stop when what is watched has not become better for some epochs.

    Parameters
    ----------
    monitor : str
        A name in the logs.
    min_delta : float
        By how much it must be better, to count.
    patience : int
        How many epochs without that are waited for.
    verbose : int
        Whether to print when it stops.
    mode : {"auto", "min", "max"}
        Which values are better; auto: larger ones of accuracies and their like, smaller ones of all else.
    baseline : float, optional
        What it must be better than, at first.
    restore_best_weights : bool
        Whether the model has the weights of the best epoch in the end.
    start_from_epoch : int
        The first epoch that is watched.

    Attributes
    ----------
    stopped_epoch, best_epoch : int
    best : float

    Raises
    ------
    TypeError, ValueError
        An argument is not as above, or the logs have no `monitor`.

    Examples
    --------
    >>> import numpy as np
    >>> import mp_core as mp
    >>> model = mp.Sequential([mp.Input((1,)), mp.layers.Dense(1, kernel_initializer="ones")])
    >>> model.compile(mp.optimizers.SGD(0.0), "mse")  # whose loss never becomes less
    >>> stop = EarlyStopping("loss", patience=2)
    >>> len(model.fit(np.ones((4, 1)), np.zeros((4, 1)), epochs=9, verbose=0, callbacks=[stop]).epoch)
    3
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
    ) -> None:
        super().__init__()
        self.monitor, self.min_delta = monitor, abs(number(min_delta, "min_delta"))
        self.patience, self.verbose = integer(patience, "patience"), verbose
        self.baseline = None if baseline is None else number(baseline, "baseline")
        self.restore_best_weights = boolean(restore_best_weights, "restore_best_weights")
        self.start_from_epoch = integer(start_from_epoch, "start_from_epoch")
        self._sign = -1.0 if is_maximum(monitor, mode) else 1.0

    def on_train_begin(self, logs: Logs = None) -> None:
        """Begin anew."""
        self.wait, self.stopped_epoch, self.best_epoch = 0, 0, 0
        self.best = math.inf * self._sign if self.baseline is None else self.baseline
        self.best_weights: Any = None

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Look whether the epoch was better."""
        if epoch < self.start_from_epoch:
            return
        value = watched(logs, self.monitor)
        if self.restore_best_weights and self.best_weights is None:
            self.best_weights, self.best_epoch = self.model.get_weights(), epoch
        self.wait += 1
        if self._sign * value < self._sign * self.best - self.min_delta:
            self.best, self.best_epoch, self.wait = value, epoch, 0
            if self.restore_best_weights:
                self.best_weights = self.model.get_weights()
        elif self.wait >= self.patience and epoch > 0:
            self.stopped_epoch = epoch
            self.model.stop_training = True

    def on_train_end(self, logs: Logs = None) -> None:
        """Give the model the best weights."""
        if self.stopped_epoch and self.verbose:
            print(f"Epoch {self.stopped_epoch + 1}: early stopping")
        if self.restore_best_weights and self.best_weights is not None:
            self.model.set_weights(self.best_weights)


class TerminateOnNaN(Callback):
    """Stop when the loss is no number any more, or infinite.

    Examples
    --------
    >>> import mp_core as mp
    >>> stop = TerminateOnNaN()
    >>> stop.set_model(mp.Sequential([mp.layers.Dense(1)]))
    >>> stop.on_train_batch_end(3, {"loss": float("nan")})
    Batch 3: Invalid loss, terminating training
    >>> stop.model.stop_training
    True
    """

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Look at the loss."""
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(loss):
            print(f"Batch {batch}: Invalid loss, terminating training")
            self.model.stop_training = True


class LearningRateScheduler(Callback):
    """Set the learning rate before each epoch.

    Parameters
    ----------
    schedule : callable
        Returns the rate for the number of the epoch and the rate of before, or for the number alone.
    verbose : int
        Whether to print it.

    Raises
    ------
    TypeError, ValueError
        The schedule returns no number, or the optimizer has no learning rate to set.

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
        self.schedule, self.verbose = schedule, verbose
        try:
            inspect.signature(schedule).bind(0, 0.0)
            self._takes_rate = True
        except (TypeError, ValueError):  # it takes one argument, or does not tell
            self._takes_rate = False

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Set the rate."""
        given = (epoch, float(self.model.optimizer.learning_rate)) if self._takes_rate else (epoch,)
        rate = number(self.schedule(*given), "schedule")
        self.model.optimizer.learning_rate = rate
        if self.verbose:
            print(f"Epoch {epoch + 1}: LearningRateScheduler setting learning rate to {rate}.")

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Tell the rate in the logs."""
        if isinstance(logs, dict):
            logs["learning_rate"] = float(self.model.optimizer.learning_rate)


class ReduceLROnPlateau(Callback):
    """Multiply the learning rate when what is watched has not become better for some epochs.

    Parameters
    ----------
    monitor : str
        A name in the logs.
    factor : float
        Below 1: the rate is multiplied by it.
    patience : int
        How many epochs without anything better are waited for.
    verbose : int
        Whether to print the new rate.
    mode : {"auto", "min", "max"}
        As for :class:`EarlyStopping`.
    min_delta : float
        By how much it must be better, to count.
    cooldown : int
        How many epochs after a change do not count.
    min_lr : float
        The least rate.

    Raises
    ------
    TypeError, ValueError
        An argument is not as above, the logs have no `monitor`, or the optimizer has no learning rate to set.

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
        super().__init__()
        self.monitor, self.factor, self.verbose = monitor, number(factor, "factor", 0), verbose
        if self.factor >= 1:
            raise ValueError(f"`factor` must be below 1; received {factor!r}")
        self.patience, self.cooldown = integer(patience, "patience"), integer(cooldown, "cooldown")
        self.min_delta, self.min_lr = number(min_delta, "min_delta", 0), number(min_lr, "min_lr", 0)
        self._sign = -1.0 if is_maximum(monitor, mode) else 1.0

    def on_train_begin(self, logs: Logs = None) -> None:
        """Begin anew."""
        self.best, self.wait, self.cooldown_counter = math.inf * self._sign, 0, 0

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Look whether the epoch was better; tell the rate in the logs."""
        value, rate = watched(logs, self.monitor), float(self.model.optimizer.learning_rate)
        if isinstance(logs, dict):
            logs["learning_rate"] = rate
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.wait = 0
        if self._sign * value < self._sign * self.best - self.min_delta:
            self.best, self.wait = value, 0
        elif self.cooldown_counter <= 0:
            self.wait += 1
            if self.wait >= self.patience and rate > self.min_lr:
                self._reduce(epoch, rate)

    def _reduce(self, epoch: int, rate: float) -> None:
        new = max(rate * self.factor, self.min_lr)
        self.model.optimizer.learning_rate = new
        self.cooldown_counter, self.wait = self.cooldown, 0
        if self.verbose:
            print(f"Epoch {epoch + 1}: ReduceLROnPlateau reducing learning rate to {new}.")
