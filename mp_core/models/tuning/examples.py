"""Read training examples, texts and labels, from lists, dictionaries, tables and files.

Columns keep their order. A column named ``label``, ``labels``, ``score`` or ``scores`` contains labels, as in
sentence-transformers; all other columns contain texts.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from mp_core.arrays import F32, Array
from mp_core.files.checkpoint.header import open_regular, unique
from mp_core.files.checkpoint.output import naming
from mp_core.models.texts import encodable, in_order
from mp_core.utilities.arguments import path_of
from mp_core.utilities.numerals import number_of

__all__ = ["LABELS", "Examples", "read_examples"]

LABELS = ("label", "labels", "score", "scores")
"""The names of columns of labels."""

_LONGEST = 2**31 - 1  # the most characters of a field of a CSV file


@dataclass(frozen=True, slots=True)
class Examples:
    """Examples, stored by columns."""

    names: tuple[str, ...]  # The names of the text columns.
    texts: tuple[list[str], ...]  # The text columns, all of the same length.
    labels: Any  # The label of each example: a number, a row of numbers, or the name of a class.
    where: Callable[[int], str]  # Index of an example -> a description of its location, for error messages.

    def __len__(self) -> int:
        return len(self.texts[0])

    def numbers(self, argument: str) -> Array:
        """Return the labels as finite float32 numbers or vectors of one length; raise ValueError if they are not."""
        rows: list[Any] = []
        for index, label in enumerate(self.labels):
            try:
                row = np.asarray(label, np.float64)
            except (TypeError, ValueError, OverflowError):
                row = np.array(["?"])
            if row.dtype.kind != "f" or row.ndim > 1 or isinstance(label, str):
                what = self._label(argument, index)
                raise ValueError(f"{what} must be a number or a list of them; {_received(label)}")
            if not (np.abs(row) <= np.finfo(F32).max).all():
                raise ValueError(f"{self._label(argument, index)} must be finite in float32; {_received(label)}")
            if rows and row.shape != rows[0].shape:
                raise ValueError(
                    f"{self._label(argument, index)} must have {rows[0].size} numbers as the first; received {row.size}"
                )
            rows.append(row)
        return np.array(rows, F32)

    def _label(self, argument: str, index: int) -> str:
        return f"the label of {self.where(index)} of `{argument}`"


def read_examples(data: Any, argument: str = "data") -> Examples:
    """Read examples from a list, a dictionary of columns, a data set or a file; errors call them `argument`.

    A row is a sequence of texts, optionally followed by a label; a mapping of column names; or an object with the
    attributes ``texts`` and ``label``. A path ends in ``.jsonl``, with an object or a list in each line, or in ``.csv``
    or ``.tsv``, with column names in the first line. Blank lines are skipped. Raise ValueError if there are no
    examples, rows have other columns than the first, a text is not a str, is empty or has a character that UTF-8 cannot
    encode, or a line is damaged; TypeError for rows of another type.

    Examples
    --------
    >>> examples = read_examples([{"question": "Who eats?", "answer": "A man eats."}])
    >>> examples.names, examples.texts
    (('question', 'answer'), (['Who eats?'], ['A man eats.']))
    >>> read_examples([("A man eats.", "Someone eats.", 0.9)]).labels
    [0.9]
    """
    if isinstance(data, Examples):
        return data
    where, rows = _rows(data, argument)
    first: Any = None
    columns: dict[Any, list[Any]] = {}
    for index, row in enumerate(rows):
        named = _named(row, f"{where(index)} of `{argument}`", first)
        if first is None:
            first = row
            columns = {name: [] for name in named}
        if named.keys() != columns.keys():
            raise ValueError(
                f"{where(index)} of `{argument}` must have the columns {_listed(columns)} as the first; received "
                f"{_listed(named)}"
            )
        for name, value in named.items():
            columns[name].append(value)
    if not columns or not next(iter(columns.values())):
        raise ValueError(f"`{argument}` must have at least one example; received none")
    return _checked(columns, where, argument)


def _checked(columns: dict[Any, list[Any]], where: Callable[[int], str], argument: str) -> Examples:
    """Check columns of texts and labels, and return them as examples."""
    found = [name for name in columns if name in LABELS]
    if len(found) > 1:
        raise ValueError(f"`{argument}` must have one column of labels; received {_listed(found)}")
    labels = columns.pop(found[0]) if found else None
    if not columns:
        raise ValueError(f"`{argument}` must have a column of texts; received labels alone")
    for name, texts in columns.items():
        for index, text in enumerate(texts):
            what = f"{name!r} in {where(index)} of `{argument}`" if isinstance(name, str) else (
                f"text {name} in {where(index)} of `{argument}`")  # fmt: skip
            if not isinstance(text, str):
                raise ValueError(f"{what} must be a text; {_received(text)}")
            if not text.strip():
                raise ValueError(f"{what} must not be empty")
            encodable(text, what)
    return Examples(tuple(map(str, columns)), tuple(columns.values()), labels, where)


# ---- rows


def _rows(data: Any, argument: str) -> tuple[Callable[[int], str], Iterable[Any]]:
    """Return a function that describes the location of example i, and the rows."""
    if isinstance(data, str | PathLike):
        path = path_of(data, argument)
        reader = _READERS.get(path.suffix.lower())
        if reader is None:
            raise ValueError(f"`{argument}` must end in {', '.join(_READERS)}; received {path.name!r}")
        lines: list[int] = []
        return (lambda index: f"line {lines[index]}"), _noting(reader(path), lines)
    if isinstance(data, Mapping):
        return (lambda index: f"row {index}"), _transposed(data, argument)
    rows = in_order(data, argument, "an iterable of examples, a mapping of columns, or a path")
    return (lambda index: f"row {index}"), rows


def _noting(rows: Iterator[tuple[int, Any]], lines: list[int]) -> Iterator[Any]:
    """Yield rows, and append their line numbers to `lines`."""
    for line, row in rows:
        lines.append(line)
        yield row


def _transposed(data: Mapping[Any, Any], argument: str) -> Iterator[dict[Any, Any]]:
    """Yield the rows of a mapping of columns."""
    columns = {name: list(column) for name, column in data.items() if not isinstance(column, str)}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(columns) < len(data) or len(set(lengths.values())) > 1:
        raise ValueError(f"`{argument}` must have columns of one length; received {lengths or list(data)}")
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _named(row: Any, what: str, first: Any) -> dict[Any, Any]:
    """Return column -> value of a row; in a row without names, columns are numbered from 0."""
    if isinstance(row, Mapping):
        return dict(row)
    if hasattr(row, "texts") and hasattr(row, "label"):
        row = [*row.texts, *([] if row.label is None else [row.label])]
    if isinstance(row, str) or not isinstance(row, Sequence | np.ndarray):
        raise TypeError(f"{what} must be a sequence of texts, or a mapping; {_received(row)}")
    if isinstance(first, Mapping):
        raise ValueError(f"{what} must have the columns {_listed(first)} as the first; {_received(row)}")
    values = list(row)
    if len(values) > 1 and not isinstance(values[-1], str) and values[-1] is not None:
        return dict(enumerate(values[:-1])) | {LABELS[0]: values[-1]}
    return dict(enumerate(values))


# ---- files


def _text(path: Path) -> str:
    """Return the content of a regular file, without a byte-order mark. Pipes are refused: they might never end."""
    with naming(path), open_regular(path) as file:
        content = file.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line} must be UTF-8: {error.reason} at byte {error.start}") from None


def _of_jsonl(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=unique)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number} must be a JSON object: {_reason(error)}") from None
        if not isinstance(row, dict | list):
            raise ValueError(f"{path}, line {number} must be a JSON object or list; {_received(row)}")
        yield number, row


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else "it is nested too deeply"


def _of_table(delimiter: str) -> Callable[[Path], Iterator[tuple[int, Any]]]:
    def rows(path: Path) -> Iterator[tuple[int, Any]]:
        lines = StringIO(_text(path), newline="")
        limit = csv.field_size_limit(_LONGEST)
        try:
            found = csv.reader(lines, delimiter=delimiter, strict=True)
            table = [(found.line_num, row) for row in found if any(cell.strip() for cell in row)]
        except csv.Error as error:
            raise ValueError(f"{path}, line {found.line_num} must be a row of CSV: {error}") from None
        finally:
            csv.field_size_limit(limit)
        yield from _with_names(path, table)

    return rows


def _with_names(path: Path, table: list[tuple[int, list[str]]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, column -> cell) of a table with a header line; labels become numbers if possible."""
    if not table:
        return
    (line, header), *rows = table
    names = [name.strip() for name in header]
    if len(set(names)) < len(names) or not all(names):
        raise ValueError(f"{path}, line {line} must have the names of all columns, each once; received {names}")
    for number, cells in rows:
        if len(cells) != len(names):
            raise ValueError(f"{path}, line {number} must have {len(names)} cells; received {len(cells)}")
        yield number, {name: _value(cell) if name in LABELS else cell for name, cell in zip(names, cells, strict=True)}


def _value(cell: str) -> Any:
    """Return the number or the JSON list in a cell, or else the cell itself."""
    try:
        found = json.loads(cell) if cell.lstrip().startswith("[") else number_of(cell)
    except (ValueError, RecursionError):
        return cell
    return found


_READERS: dict[str, Callable[[Path], Iterator[tuple[int, Any]]]] = {
    ".jsonl": _of_jsonl,
    ".csv": _of_table(","),
    ".tsv": _of_table("\t"),
}
"""Suffix of a file -> its reader, which yields (line number, row)."""


# ---- messages


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _received(value: Any) -> str:
    text = repr(value)
    return f"received {text if len(text) <= 60 else f'{text[:57]}...'}"
