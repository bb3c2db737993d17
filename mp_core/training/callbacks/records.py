"""Callbacks that write the logs: as a CSV file, and as a plot."""

import csv
import io
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mp_core.files.checkpoint.output import naming, new_file
from mp_core.training.callbacks.base import COUNT, Callback, Logs, Rule
from mp_core.utilities.arguments import boolean, path_of
from mp_core.utilities.extras import needed_by

__all__ = ["CSVLogger", "LossCurve"]


class CSVLogger(Callback):
    """Write a CSV file with a line per epoch: its number, and the values of the logs.

    The columns are the names of the first epoch's logs; if that epoch had no validation, the names with ``val_`` are
    added. A missing value is written as ``NA``, an array as ``"[1.0, 2.0]"``.

    Parameters
    ----------
    filename : str or os.PathLike
    separator : str
        One character.
    append : bool
        Whether to append to an existing file.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     log = CSVLogger(Path(folder, "log.csv"))
    ...     log.on_train_begin()
    ...     log.on_epoch_end(0, {"loss": 0.5})
    ...     log.on_epoch_end(1, {"loss": 0.25, "val_loss": 0.75})
    ...     print(Path(folder, "log.csv").read_text())
    epoch,loss,val_loss
    0,0.5,NA
    1,0.25,0.75
    <BLANKLINE>
    """

    _state_rules: ClassVar[Mapping[str, Rule]] = {
        "names": (lambda x: x is None or _are_strings(x), "a list of strings or None"),
        "start": COUNT,
        "lines": (lambda x: isinstance(x, str), "a string"),
    }

    def __init__(self, filename: Any, separator: str = ",", append: bool = False) -> None:
        super().__init__()
        self._path, self.append = path_of(filename, "filename"), boolean(append, "append")
        if not isinstance(separator, str) or len(separator) != 1:
            raise ValueError(f"`separator` must be one character; received {separator!r}")
        self.separator = separator
        self._names: list[str] | None = None
        self._start, self._lines = 0, ""  # size of the file at the start, and the lines written since

    def on_train_begin(self, logs: Logs = None) -> None:
        self._names, self._start, self._lines = None, 0, ""
        if self.append and self._path.exists() and self._path.stat().st_size:
            with self._path.open(newline="") as file:
                self._names = next(csv.reader(file, delimiter=self.separator))[1:]
            self._start = self._path.stat().st_size
            if not _ends_with_newline(self._path):
                self._write("\n")
        else:
            self._path.write_text("")

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        logs = logs or {}
        text = io.StringIO(newline="")
        writer = csv.writer(text, delimiter=self.separator, lineterminator="\n")
        if self._names is None:
            self._names = sorted(logs)
            if not any(name.startswith("val_") for name in self._names):
                self._names += [f"val_{name}" for name in self._names]
            writer.writerow(["epoch", *self._names])
        writer.writerow([epoch, *(_cell(logs.get(name, "NA")) for name in self._names)])
        self._write(text.getvalue())

    def get_state(self) -> dict[str, Any]:
        return {"names": self._names, "start": self._start, "lines": self._lines}

    def set_state(self, state: dict[str, Any]) -> None:
        self._check_state(state)
        self._names, self._start, self._lines = state["names"], state["start"], ""
        os.truncate(self._path, min(self._start, self._path.stat().st_size))
        self._write(state["lines"])

    def _write(self, lines: str) -> None:
        """Append all lines, or none if the disk is full."""
        with naming(self._path):
            before = self._path.stat().st_size if self._path.exists() else 0
            try:
                with self._path.open("a", newline="") as file:
                    file.write(lines)
            except OSError:
                with suppress(OSError):
                    os.truncate(self._path, before)
                raise
        self._lines += lines


def _are_strings(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _ends_with_newline(path: Path) -> bool:
    """Whether the last byte of a non-empty file ends a line."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() in (b"\n", b"\r")


def _cell(value: Any) -> Any:
    """Return a value as a cell; arrays in Keras' format."""
    if isinstance(value, list | tuple | np.ndarray) and np.ndim(value):
        return f'"[{", ".join(map(str, value))}]"'
    return value


class LossCurve(Callback):
    """Plot training and validation loss over the epochs with matplotlib; rewrite the file after each epoch.

    Parameters
    ----------
    filename : str or os.PathLike
        With the suffix ``.svg``, ``.png`` or ``.pdf``.
    monitor : sequence of str
        Names in the logs; each is plotted with its ``val_`` counterpart.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     curve = LossCurve(Path(folder, "loss.svg"))
    ...     curve.on_train_begin()
    ...     curve.on_epoch_end(0, {"loss": 0.5, "val_loss": 0.75})  # as `fit` does after each epoch
    ...     "val_loss" in Path(folder, "loss.svg").read_text()
    True
    """

    state_attributes = ("curves",)
    curves: dict[str, list[list[Any]]]
    """Name -> epochs and values."""

    def __init__(self, filename: Any, monitor: tuple[str, ...] = ("loss",)) -> None:
        super().__init__()
        with needed_by("a loss curve"):
            from matplotlib import figure  # noqa: F401
        self._path, self.monitor = path_of(filename, "filename"), tuple(monitor)
        self.on_train_begin()

    def on_train_begin(self, logs: Logs = None) -> None:
        self.curves = {}

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        from matplotlib.figure import Figure

        for name in (prefix + name for name in self.monitor for prefix in ("", "val_")):
            if logs and name in logs:
                epochs, values = self.curves.setdefault(name, [[], []])
                epochs.append(epoch + 1)
                values.append(float(logs[name]))
        figure = Figure(figsize=(6.5, 4), layout="constrained")
        axes = figure.subplots()
        for name, (epochs, values) in self.curves.items():
            axes.plot(epochs, values, label=name, marker="." if len(epochs) == 1 else None)
        axes.set_xlabel("epoch")
        axes.legend()
        with new_file(self._path, force=True) as stream:
            figure.savefig(stream, format=self._path.suffix[1:] or None, dpi=150)
