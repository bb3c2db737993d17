"""Callbacks that write files: the best weights, and all that is needed to go on after an interruption."""

import math
from pathlib import Path
from typing import Any

from mp_core.callbacks.base import Callback, Logs
from mp_core.callbacks.watching import is_maximum, watched
from mp_core.utilities.arguments import boolean, path_of, positive_integer

__all__ = ["BackupAndRestore", "ModelCheckpoint"]


class ModelCheckpoint(Callback):
    """Write the model, or its weights, after epochs or batches.

    Parameters
    ----------
    filepath : str or os.PathLike
        It ends in ``.keras`` or, for weights, ``.weights.h5``; ``{epoch}`` and names in the logs are filled in.
    monitor : str
        What `save_best_only` looks at.
    verbose : int
        Whether to print what is written.
    save_best_only : bool
        Whether to write only if `monitor` is better than ever before.
    save_weights_only : bool
    mode : {"auto", "min", "max"}
        As for :class:`EarlyStopping`.
    save_freq : "epoch" or int
        After each epoch, or after so many batches.
    initial_value_threshold : float, optional
        What `monitor` must be better than, at first.

    Raises
    ------
    TypeError, ValueError
        An argument is not as above, or the logs have no `monitor`.

    Examples
    --------
    >>> import os
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> import mp_core as mp
    >>> model = mp.Sequential([mp.Input((1,)), mp.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> with TemporaryDirectory() as folder:
    ...     keep = ModelCheckpoint(f"{folder}/{{epoch}}.keras")
    ...     history = model.fit(np.ones((4, 1)), np.ones((4, 1)), epochs=2, verbose=0, callbacks=[keep])
    ...     sorted(os.listdir(folder))
    ['1.keras', '2.keras']
    """

    def __init__(
        self,
        filepath: Any,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        initial_value_threshold: float | None = None,
    ) -> None:
        super().__init__()
        self.filepath, self.monitor, self.verbose = str(path_of(filepath, "filepath")), monitor, verbose
        self.save_best_only = boolean(save_best_only, "save_best_only")
        self.save_weights_only = boolean(save_weights_only, "save_weights_only")
        suffix = ".weights.h5" if self.save_weights_only else ".keras"
        if not self.filepath.endswith(suffix):
            raise ValueError(f"`filepath` must end in {suffix}; received {self.filepath}")
        self.save_freq = _frequency(save_freq)
        self._sign = -1.0 if is_maximum(monitor, mode) else 1.0
        self.best = math.inf * self._sign if initial_value_threshold is None else initial_value_threshold
        self._epoch = self._batches = 0

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Note the epoch."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Write after so many batches."""
        self._batches += 1
        if self.save_freq is not None and self._batches % self.save_freq == 0:
            self._save(logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Write after an epoch."""
        if self.save_freq is None:
            self._save(logs)

    def _save(self, logs: Logs) -> None:
        if self.save_best_only:
            value = watched(logs, self.monitor)
            if not self._sign * value < self._sign * self.best:
                return
            self.best = value
        path = Path(self.filepath.format(epoch=self._epoch + 1, **(logs or {})))
        path.parent.mkdir(parents=True, exist_ok=True)
        (self.model.save_weights if self.save_weights_only else self.model.save)(path)
        if self.verbose:
            print(f"Epoch {self._epoch + 1}: saving model to {path}")


class BackupAndRestore(Callback):
    """Keep a file from which ``fit``, called again in another process, goes on as if it had not stopped, bit for bit.

    Parameters
    ----------
    backup_dir : str or os.PathLike
        A folder of this training alone.
    save_freq : "epoch" or int
        After each epoch, or also after so many batches.
    delete_checkpoint : bool
        Whether to remove the file when training is over.

    Raises
    ------
    TypeError, ValueError
        An argument is not as above, or the file is of another model.

    Examples
    --------
    >>> model.fit(x, y, epochs=10, callbacks=[BackupAndRestore("backup")])  # doctest: +SKIP
    """

    def __init__(self, backup_dir: Any, save_freq: Any = "epoch", delete_checkpoint: bool = True) -> None:
        super().__init__()
        self._path = path_of(backup_dir, "backup_dir") / "training.state"
        self.save_freq = _frequency(save_freq)
        self.delete_checkpoint = boolean(delete_checkpoint, "delete_checkpoint")
        self._batches = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        """Take up the state of the file, if there is one."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            self.model.load_training_state(self._path)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Write after so many batches."""
        self._batches += 1
        if self.save_freq is not None and self._batches % self.save_freq == 0:
            self.model.save_training_state(self._path)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Write after an epoch."""
        self.model.save_training_state(self._path)

    def on_train_end(self, logs: Logs = None) -> None:
        """Remove the file."""
        if self.delete_checkpoint:
            self._path.unlink(missing_ok=True)


def _frequency(value: Any) -> int | None:
    """Return after how many batches a file is written, None for each epoch."""
    return None if value == "epoch" else positive_integer(value, "save_freq")
