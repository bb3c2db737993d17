"""Callbacks that monitor a value of the logs, and may stop training."""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from mp_core import ops
from mp_core.training.callbacks.base import BEST, COUNT, Callback, Logs, Rule
from mp_core.utilities.arguments import boolean, integer, number
from mp_core.utilities.docstrings import documented

__all__ = ["WATCHED", "EarlyStopping", "MonitorCallback", "TerminateOnNaN"]

_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "min": ops.less, "max": ops.greater, "down": ops.less, "up": ops.greater,
}  # fmt: skip
"""Mode or direction of a metric -> comparison that is true if the first value is better."""


WATCHED = documented("""
    Parameters
    ----------
    monitor : str
        A name in the logs; an epoch without it is skipped with a warning.
    min_delta : float
        The smallest change that counts as an improvement.
    mode : {"auto", "min", "max"}
        Whether smaller or larger values are better. "auto": smaller for a loss; for a metric, its direction. Other
        strings are treated as "auto", with a warning.
    baseline : float, optional
        The initial value of :attr:`best`.

    Attributes
    ----------
    best : float or None
        The best value so far.
    monitor_op : callable or None
        ``mp_core.ops.less`` or ``mp_core.ops.greater``; None before the first value.
""")
"""The parameters and attributes of the callbacks that monitor a value."""


@WATCHED
class MonitorCallback(Callback):
    """The base of the callbacks that monitor one value of the logs.

    >>> from mp_core import ops
    >>> class Best(MonitorCallback):
    ...     def on_epoch_end(self, epoch, logs=None):
    ...         if self._is_improvement(logs[self.monitor], self.best):
    ...             self.best = logs[self.monitor]
    >>> watch = Best("val_loss")
    >>> for epoch, loss in enumerate([0.5, 0.25, 0.75]):
    ...     watch.on_epoch_end(epoch, {"val_loss": loss})
    >>> watch.best, watch.monitor_op is ops.less
    (0.25, True)
    """

    def __init__(
        self, monitor: str = "val_loss", mode: str = "auto", baseline: float | None = None, min_delta: float = 0
    ) -> None:
        super().__init__()
        if mode not in ("auto", "min", "max"):
            warnings.warn(
                f"{type(self).__name__} mode {mode!r} is unknown, not 'auto', 'min' or 'max': using 'auto'",
                stacklevel=3,
            )
            mode = "auto"
        self.monitor, self.mode = monitor, mode
        self.best = None if baseline is None else number(baseline, "baseline")
        self.min_delta = abs(number(min_delta, "min_delta"))
        self.monitor_op: Callable[[Any, Any], Any] | None = None

    def _set_monitor_op(self) -> None:
        """Set :attr:`monitor_op`; the first batch must be over, because it creates the model's metrics."""
        is_loss = self.monitor in ("loss", "val_loss")
        direction = self.mode if self.mode != "auto" else "down" if is_loss else self.model.direction_of(self.monitor)
        if direction is None:
            raise ValueError(
                f"`mode` of {type(self).__name__} must be 'min' or 'max': it is unknown which values of "
                f"`monitor`={self.monitor!r} are better. No loss or metric of `compile` has this name, or the "
                "metric has no direction"
            )
        self.monitor_op = _OPERATIONS[direction]

    def _is_improvement(self, monitor_value: float, reference_value: float | None) -> bool:
        """Whether a value is better than the reference by more than `min_delta`.

        True if the reference is None, or if the reference is NaN and the value is not.
        """
        if self.monitor_op is None:
            self._set_monitor_op()
        if reference_value is None or math.isnan(reference_value):
            return reference_value is None or not math.isnan(monitor_value)
        margin = -self.min_delta if self.monitor_op is ops.greater else self.min_delta
        return bool(self.monitor_op(np.float64(monitor_value + margin), np.float64(reference_value)))  # type: ignore[misc]

    def _monitored_value(self, logs: Logs) -> float | None:
        """Return the monitored value; None, with a warning, if it is not in the logs."""
        if self.monitor_op is None:
            self._set_monitor_op()
        value = (logs or {}).get(self.monitor)
        if value is None:
            warnings.warn(
                f"{type(self).__name__} does nothing: the logs have no `monitor`={self.monitor!r}, but "
                f"{', '.join(logs or {}) or 'nothing'}",
                stacklevel=2,
            )
            return None
        if np.size(value) != 1:
            raise ValueError(
                f"`monitor` must be the name of a number in the logs; {self.monitor!r} is an array of shape "
                f"{np.shape(value)}"
            )
        return float(np.ravel(value)[0])


@WATCHED
class EarlyStopping(MonitorCallback):
    """Stop training when the monitored value has not improved for some epochs.

    Parameters
    ----------
    patience : int
        The number of epochs without improvement before training stops.
    verbose : int
        Whether to print when training stops.
    baseline : float, optional
        Values that are not better than it do not count as improvements.
    restore_best_weights : bool
        Whether to restore the weights of the best epoch at the end, even if it did not reach `baseline`.
    start_from_epoch : int
        The first monitored epoch.

    Attributes
    ----------
    stopped_epoch, best_epoch, wait : int
        The epoch that stopped training (0: none), the epoch of the best value, and the epochs without improvement.
    best_weights : list of ndarray or None

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

    state_attributes = ("wait", "stopped_epoch", "best_epoch", "best", "best_weights")
    _state_rules: ClassVar[Mapping[str, Rule]] = dict.fromkeys(state_attributes[:3], COUNT) | {"best": BEST}
    best_weights: Any

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
        super().__init__(monitor, mode, min_delta=min_delta)
        self.patience, self.verbose = integer(patience, "patience"), verbose
        self.baseline = None if baseline is None else number(baseline, "baseline")
        self.restore_best_weights = boolean(restore_best_weights, "restore_best_weights")
        self.start_from_epoch = integer(start_from_epoch, "start_from_epoch")
        self.on_train_begin()

    def on_train_begin(self, logs: Logs = None) -> None:
        self.wait, self.stopped_epoch, self.best_epoch = 0, 0, 0
        self.best, self.best_weights = None, None

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state; the best weights must have the shapes of the model's weights."""
        weights = state.get("best_weights")
        if weights is not None:
            shapes, wanted = [np.shape(x) for x in weights], [x.shape for x in self.model.get_weights()]
            if shapes != wanted:
                raise ValueError(f"`best_weights` of `state` must have the shapes {wanted}; received {shapes}")
        super().set_state(state)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        value = self._monitored_value(logs)
        if value is None or epoch < self.start_from_epoch:
            return
        self.wait += 1
        if self._is_improvement(value, self.best):
            self.best, self.best_epoch = value, epoch
            if self.restore_best_weights:
                self.best_weights = self.model.get_weights()
            if self.baseline is None or self._is_improvement(value, self.baseline):
                self.wait = 0
        elif self.wait >= self.patience and epoch > 0:
            self.stopped_epoch = epoch
            self.model.stop_training = True

    def on_train_end(self, logs: Logs = None) -> None:
        if self.stopped_epoch and self.verbose:
            print(f"Epoch {self.stopped_epoch + 1}: early stopping")
        if self.restore_best_weights and self.best_weights is not None:
            if self.verbose:
                print(f"Restoring model weights from the end of the best epoch: {self.best_epoch + 1}.")
            self.model.set_weights(self.best_weights)


class TerminateOnNaN(Callback):
    """Stop training when the loss is NaN or infinite.

    Parameters
    ----------
    raise_error : bool
        Raise RuntimeError instead of ending the training normally; then no ``on_train_end`` is called.

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

    def __init__(self, raise_error: bool = False) -> None:
        super().__init__()
        self.raise_error = boolean(raise_error, "raise_error")

    def on_batch_end(self, batch: int, logs: Logs = None) -> None:
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(loss):
            if self.raise_error:
                raise RuntimeError(f"the loss of batch {batch} is {loss}: training ends")
            print(f"Batch {batch}: Invalid loss, terminating training")
            self.model.stop_training = True
