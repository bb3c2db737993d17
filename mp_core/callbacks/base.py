"""The base of the callbacks, and those of a few lines."""

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["EVENTS", "Callback", "History", "LambdaCallback"]

Logs = Mapping[str, Any] | None

EVENTS = tuple(
    f"on_{what}_{when}"
    for what in ("train", "epoch", "train_batch", "test", "test_batch", "predict", "predict_batch")
    for when in ("begin", "end")
)
"""The names of the methods; those of epochs and batches get a number first, and all of them the logs."""


class Callback:
    """What a subclass overrides is called at that point of training or evaluation.

    Attributes
    ----------
    model : Model
    params : dict
        ``epochs``, ``steps`` and ``verbose``.

    Examples
    --------
    >>> class Losses(Callback):
    ...     def on_train_batch_end(self, batch, logs=None):
    ...         print(batch, logs["loss"])
    """

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}
        self.model: Any = None

    def set_params(self, params: dict[str, Any]) -> None:
        """Take what :meth:`fit` was called with."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Take the model."""
        self.model = model

    def on_train_begin(self, logs: Logs = None) -> None:
        """Do nothing: called before the first epoch."""

    def on_train_end(self, logs: Logs = None) -> None:
        """Do nothing: called after the last epoch, with its logs."""

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Do nothing: called before an epoch."""

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Do nothing: called after an epoch and its validation, with the means of both."""

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Do nothing: called before a batch."""

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Do nothing: called after a batch, with the means so far."""

    def on_test_begin(self, logs: Logs = None) -> None:
        """Do nothing: called before an evaluation."""

    def on_test_end(self, logs: Logs = None) -> None:
        """Do nothing: called after an evaluation, with its means."""

    def on_test_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Do nothing: called before a batch of an evaluation."""

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Do nothing: called after a batch of an evaluation, with the means so far."""

    def on_predict_begin(self, logs: Logs = None) -> None:
        """Do nothing: called before a prediction."""

    def on_predict_end(self, logs: Logs = None) -> None:
        """Do nothing: called after a prediction."""

    def on_predict_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Do nothing: called before a batch of a prediction."""

    def on_predict_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Do nothing: called after a batch of a prediction."""


class History(Callback):
    """The logs of all epochs: ``fit`` returns it.

    Attributes
    ----------
    epoch : list of int
    history : dict of list
        The values of each name in the logs.

    Examples
    --------
    >>> history = History()
    >>> history.on_epoch_end(0, {"loss": 0.5})
    >>> history.epoch, history.history
    ([0], {'loss': [0.5]})
    """

    def __init__(self) -> None:
        super().__init__()
        self.epoch: list[int] = []
        self.history: dict[str, list[Any]] = {}

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Take in the logs of an epoch."""
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)


class LambdaCallback(Callback):
    """Functions in the places of the methods.

    Parameters
    ----------
    **functions : callable
        By the names of the methods, such as ``on_epoch_end=lambda epoch, logs: ...``.

    Raises
    ------
    TypeError
        There is no such method, or a value is no function.

    Examples
    --------
    >>> LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs)).on_epoch_end(3, {"loss": 0.5})
    3 {'loss': 0.5}
    """

    def __init__(self, **functions: Callable[..., Any] | None) -> None:
        super().__init__()
        for name, function in functions.items():
            if name not in EVENTS or not (callable(function) or function is None):
                raise TypeError(f"a function by one of the names {', '.join(EVENTS)}; received {name}={function!r}")
            if function is not None:
                setattr(self, name, function)
