"""ProgbarLogger: one line per epoch, and a progress bar in terminals and notebooks."""

import sys
import time
from contextlib import AbstractContextManager
from typing import Any

from mp_core.training.callbacks.base import Callback, Logs
from mp_core.utilities.progress import counting

__all__ = ["ProgbarLogger"]


class ProgbarLogger(Callback):
    """Print the progress of training; ``fit`` and ``evaluate`` add it unless ``verbose=0``.

    Each epoch prints a line. With ``verbose="auto"`` or 1, terminals and notebooks show a bar of batches until the end
    of the epoch. See :mod:`mp_core.utilities.progress`.

    >>> bar = ProgbarLogger()
    >>> bar.set_params({"verbose": 2, "epochs": 3})  # as ``fit(..., epochs=3, verbose=2)`` does
    >>> bar.on_epoch_begin(0)
    >>> bar.on_epoch_end(0, {"loss": 0.5})  # doctest: +ELLIPSIS
    Epoch 1/3 - ...s - loss: 0.5
    """

    def __init__(self) -> None:
        super().__init__()
        self._bar: AbstractContextManager[Any] | None = None
        self._update: Any = None
        self._begin = 0.0
        self._in_training = False

    def on_train_begin(self, logs: Logs = None) -> None:
        """Treat evaluations as validations from now on."""
        self._in_training = True

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._begin = time.perf_counter()
        self._open()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        if self._update is not None:
            self._update(1)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._close()
        self._print(f"Epoch {epoch + 1}/{self.params.get('epochs')}", logs)

    def on_test_begin(self, logs: Logs = None) -> None:
        if not self._in_training:
            self._begin = time.perf_counter()
            self._open()

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        if not self._in_training and self._update is not None:
            self._update(1)

    def on_test_end(self, logs: Logs = None) -> None:
        if not self._in_training:
            self._close()
            self._print("Evaluated", logs)

    def on_train_end(self, logs: Logs = None) -> None:
        self._close()

    def _open(self) -> None:
        if self.params.get("verbose") in ("auto", 1, True) and _is_interactive():
            self._bar = counting(show=True, total=self.params.get("steps"), unit="batches", stays=False)
            self._update = self._bar.__enter__()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
        self._bar = self._update = None

    def _print(self, head: str, logs: Logs) -> None:
        if sys.stdout is not None:
            means = " - ".join(f"{name}: {value:.4g}" for name, value in (logs or {}).items() if _is_number(value))
            print(f"{head} - {time.perf_counter() - self._begin:.1f}s - {means}", flush=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_interactive() -> bool:
    """Whether stdout is a terminal or a notebook."""
    stream = sys.stdout
    return stream is not None and (stream.isatty() or type(stream).__module__.startswith("ipykernel."))
