"""Callbacks that write files: models or weights, and the state of training for resuming it."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mp_core.training.callbacks.base import BEST, COUNT, Callback, Logs, Rule
from mp_core.training.callbacks.watching import WATCHED, MonitorCallback
from mp_core.utilities.arguments import boolean, path_of, positive_integer
from mp_core.utilities.system import is_present

__all__ = ["BackupAndRestore", "ModelCheckpoint"]


@WATCHED
class ModelCheckpoint(MonitorCallback):
    """Write the model, or its weights, after epochs or batches.

    Parameters
    ----------
    filepath : str or os.PathLike
        Must end in ``.keras`` or, for weights, ``.weights.h5``. ``{epoch}`` and names in the logs are replaced, after
        batches also ``{batch}``. A name that is not in the logs raises KeyError; if it is missing only because this
        epoch had no validation, nothing is written, with a warning.
    verbose : int
        Whether to print a line for each file.
    save_best_only : bool
        Whether to write only if `monitor` is better than all values before. If it is an array or not in the logs, the
        file is written with a warning.
    save_weights_only : bool
    save_freq : "epoch" or int
        Write after each epoch, or after every n batches.
    initial_value_threshold : float, optional
        The initial best value.

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

    state_attributes = ("best", "batches")
    _state_rules: ClassVar[Mapping[str, Rule]] = {"best": BEST, "batches": COUNT}

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
        super().__init__(monitor, mode, initial_value_threshold)
        self.filepath, self.verbose = str(path_of(filepath, "filepath")), verbose
        self.save_best_only = boolean(save_best_only, "save_best_only")
        self.save_weights_only = boolean(save_weights_only, "save_weights_only")
        suffix = ".weights.h5" if self.save_weights_only else ".keras"
        if not self.filepath.endswith(suffix):
            raise ValueError(f"`filepath` must end in {suffix}; received {self.filepath}")
        self.save_freq = _batches_per_save(save_freq)
        self.batches = self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self.batches += 1
        if self.save_freq is not None and self.batches % self.save_freq == 0:
            self._save({"batch": batch + 1, **(logs or {})})

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if self.save_freq is None:
            self._save(dict(logs or {}))

    def _save(self, logs: dict[str, Any]) -> None:
        path = self._path(logs)
        if path is None or not self._is_due(logs, path):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        (self.model.save_weights if self.save_weights_only else self.model.save)(path)

    def _path(self, logs: dict[str, Any]) -> Path | None:
        """Return the path of the file; None if it contains a validation value and this epoch had no validation."""
        try:
            return Path(self.filepath.format(epoch=self._epoch + 1, **logs))
        except KeyError as error:
            name = error.args[0]
            if name.startswith("val_") and name.removeprefix("val_") in logs:
                warnings.warn(
                    f"no validation was due, so {self.filepath} is not written: it needs {name}", stacklevel=5
                )
                return None
            known = ", ".join(("epoch", *logs))
            raise KeyError(f"`filepath` must have names among {known}; {self.filepath} has {name}") from None
        except (IndexError, TypeError, ValueError) as error:
            raise ValueError(f"`filepath` must have names in braces, as {{epoch}}; {self.filepath}: {error}") from None

    def _is_due(self, logs: dict[str, Any], path: Path) -> bool:
        """Return whether to write the file; update the best value."""
        said, is_due = f"saving model to {path}", True
        value: Any = logs.get(self.monitor)
        if self.save_best_only and (value is None or np.size(value) != 1):
            what = "not in the logs" if value is None else f"an array of shape {np.shape(value)}"
            warnings.warn(
                f"`save_best_only` needs a number, but `monitor`={self.monitor!r} is {what}: {path} is written without "
                "comparing",
                stacklevel=5,
            )
        elif self.save_best_only:
            value, before = float(np.ravel(value)[0]), self.best
            is_due = self._is_improvement(value, self.best)
            if is_due:
                self.best = value
            change = f"improved from {before} to {value}, {said}" if is_due else f"did not improve from {before}"
            said = f"{self.monitor} {change}"
        if self.verbose:
            print(f"Epoch {self._epoch + 1}: {said}")
        return is_due


class BackupAndRestore(Callback):
    """Save the state of training, so that ``fit``, called again after an interruption, continues with the same bits.

    The file contains the state of the model, its optimizer and metrics, and all callbacks that have a state
    (:class:`Callback`). The final weights, the history and the files of callbacks equal those of an uninterrupted run.

    Parameters
    ----------
    backup_dir : str or os.PathLike
        A folder that no other training uses.
    save_freq : "epoch" or int
        Save after each epoch; with an integer n, also after every n batches.
    double_checkpoint : bool
        Whether to keep the previous file too. It is read, with a warning, if the last file is damaged.
    delete_checkpoint : bool
        Whether to remove the file at the end of training, and the folder if it is empty. If False, a later ``fit`` with
        more epochs continues from the file.

    Examples
    --------
    >>> model.fit(x, y, epochs=10, callbacks=[BackupAndRestore("backup")])  # doctest: +SKIP
    """

    runs_last = True
    state_attributes = ("batches",)
    _state_rules: ClassVar[Mapping[str, Rule]] = {"batches": COUNT}

    def __init__(
        self, backup_dir: Any, save_freq: Any = "epoch", double_checkpoint: bool = False, delete_checkpoint: bool = True
    ) -> None:
        super().__init__()
        self._path = path_of(backup_dir, "backup_dir") / "training.state"
        self._previous = self._path.with_name("training.state.previous")
        self._stopped_marker = self._path.with_name("training.ended")
        self.save_freq = _batches_per_save(save_freq)
        self.double_checkpoint = boolean(double_checkpoint, "double_checkpoint")
        self.delete_checkpoint = boolean(delete_checkpoint, "delete_checkpoint")
        self.batches = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        if not self.model.built:
            raise ValueError(
                f"BackupAndRestore needs a model that is built before `fit`; '{self.model.name}' is not: call it once, "
                "or give it an Input"
            )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        previous = self.double_checkpoint and is_present(self._previous)
        try:
            if is_present(self._path):
                self.model.load_training_state(self._path)
            elif previous:
                self.model.load_training_state(self._previous)
        except ValueError as error:
            if not previous or not is_present(self._path):
                raise
            self.model.load_training_state(self._previous)
            warnings.warn(f"training continues from {self._previous}: {error}", stacklevel=2)
        if is_present(self._stopped_marker):  # a callback stopped that training, which had ended; continue it now
            self.model.stop_training = False

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self.batches += 1
        if self.save_freq is not None and self.batches % self.save_freq == 0:
            self._save()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._save()

    def _save(self) -> None:
        if self.double_checkpoint and is_present(self._path):
            os.replace(self._path, self._previous)
        self.model.save_training_state(self._path)
        self._stopped_marker.unlink(missing_ok=True)

    def on_train_end(self, logs: Logs = None) -> None:
        if not self.delete_checkpoint:
            if self.model.stop_training:
                self._stopped_marker.touch()
            return
        for path in (self._path, self._previous, self._stopped_marker):
            path.unlink(missing_ok=True)
        if self._path.parent.is_dir() and not any(self._path.parent.iterdir()):
            self._path.parent.rmdir()


def _batches_per_save(value: Any) -> int | None:
    """Return the number of batches between two files; None: one file per epoch."""
    return None if value == "epoch" else positive_integer(value, "save_freq")
