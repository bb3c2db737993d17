"""Callbacks that keep what the logs say: as lines of a file, and as a picture."""

import csv
from typing import Any

from mp_core.callbacks.base import Callback, Logs
from mp_core.checkpoint.output import new_file
from mp_core.utilities.arguments import boolean, path_of
from mp_core.utilities.extras import needed_by

__all__ = ["CSVLogger", "LossCurve"]


class CSVLogger(Callback):
    """Write a line after each epoch: its number, and the logs by their names in the first line.

    Parameters
    ----------
    filename : str or os.PathLike
    separator : str
        One character.
    append : bool
        Whether the lines follow those that the file has.

    Raises
    ------
    TypeError, ValueError
        An argument is not as above.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     log = CSVLogger(Path(folder, "log.csv"))
    ...     log.on_train_begin()
    ...     log.on_epoch_end(0, {"loss": 0.5})
    ...     print(Path(folder, "log.csv").read_text())
    epoch,loss
    0,0.5
    <BLANKLINE>
    """

    def __init__(self, filename: Any, separator: str = ",", append: bool = False) -> None:
        super().__init__()
        self._path, self.append = path_of(filename, "filename"), boolean(append, "append")
        if not isinstance(separator, str) or len(separator) != 1:
            raise ValueError(f"`separator` must be one character; received {separator!r}")
        self.separator = separator

    def on_train_begin(self, logs: Logs = None) -> None:
        """Empty the file, unless lines are to follow those that it has."""
        self._names: list[str] | None = None
        if self.append and self._path.exists() and self._path.stat().st_size:
            with self._path.open(newline="") as file:
                self._names = next(csv.reader(file, delimiter=self.separator))[1:]
        else:
            self._path.write_text("")

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Write the line of an epoch, which is in the file then; a name that is missing is NA."""
        logs = logs or {}
        with self._path.open("a", newline="") as file:
            writer = csv.writer(file, delimiter=self.separator, lineterminator="\n")
            if self._names is None:
                self._names = sorted(logs)
                writer.writerow(["epoch", *self._names])
            writer.writerow([epoch, *(logs.get(name, "NA") for name in self._names)])


class LossCurve(Callback):
    """Draw the loss, and that of validation, over the epochs, into a file that is written anew after each.

    Parameters
    ----------
    filename : str or os.PathLike
        Its suffix says what it will be: ``.svg``, ``.png`` or ``.pdf``.
    monitor : sequence of str
        Which names of the logs are drawn, each with its ``val_`` too.

    Raises
    ------
    ImportError
        matplotlib is missing (extra ``plot``).
    TypeError, ValueError
        `filename` is no path.

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

    def __init__(self, filename: Any, monitor: tuple[str, ...] = ("loss",)) -> None:
        super().__init__()
        with needed_by("a loss curve"):
            from matplotlib import figure  # noqa: F401
        self._path, self.monitor = path_of(filename, "filename"), tuple(monitor)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Begin anew."""
        self._curves: dict[str, tuple[list[int], list[float]]] = {}

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Draw all epochs so far."""
        from matplotlib.figure import Figure

        for name in (prefix + name for name in self.monitor for prefix in ("", "val_")):
            if logs and name in logs:
                epochs, values = self._curves.setdefault(name, ([], []))
                epochs.append(epoch + 1)
                values.append(float(logs[name]))
        figure = Figure(figsize=(6.5, 4), layout="constrained")
        axes = figure.subplots()
        for name, (epochs, values) in self._curves.items():
            axes.plot(epochs, values, label=name, marker="." if len(epochs) == 1 else None)
        axes.set_xlabel("epoch")
        axes.legend()
        with new_file(self._path, force=True) as stream:
            figure.savefig(stream, format=self._path.suffix[1:] or None, dpi=150)
