"""The tables that ``mp-core convert``, ``inspect`` and ``verify`` print. Similar tensors share one row."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf, isnan
from shutil import get_terminal_size
from typing import Any

from mp_core.cli.common import printable
from mp_core.files import checkpoint
from mp_core.utilities.tables import aligned

__all__ = ["contents", "losses", "sizes"]

_WORST = 5  # tensors that are listed again because their losses are largest
_LONGEST = 200  # characters of a name
_Row = Mapping[str, Any]


def _lowest(values: Sequence[float]) -> float:
    """Return the lowest value; NaN counts as lower than all others."""
    return min(values, key=lambda value: -inf if isnan(value) else value)


def _highest(values: Sequence[float]) -> float:
    """Return the highest value; NaN counts as higher than all others."""
    return max(values, key=lambda value: inf if isnan(value) else value)


_FOLDED: dict[str, Callable[[Sequence[Any]], Any]] = {
    **dict.fromkeys(("bytes", "new_bytes", "overflow", "flushed", "nan"), sum),
    **dict.fromkeys(("above_float16", "below_float16", "infinite"), sum),
    **dict.fromkeys(("sqnr", "cosine"), _lowest),
    **dict.fromkeys(("rel_rmse", "max_abs_error", "max_abs"), _highest),
}
"""Column -> how the values of several rows become one: their sum, or the worst."""


def _fold(rows: Sequence[_Row]) -> list[_Row]:
    """Merge the rows of tensors with the same shape and types whose names differ only in numbers."""
    groups: dict[tuple[Any, ...], list[_Row]] = {}
    for row in rows:
        name = re.sub(r"(?<![^./_])\d+(?![^./_])", "*", row["name"])
        groups.setdefault((name, *row["shape"], row["dtype"], row.get("new_dtype")), []).append(row)
    folded: list[_Row] = []
    for (name, *_), group in groups.items():
        known = [key for key in _FOLDED if key in group[0]]
        values = {key: _FOLDED[key]([row[key] for row in group]) for key in known}
        one = {**group[0], "name": name, "number": len(group), **values}
        folded.append(one if len(group) > 1 else group[0])
    return folded


def _head(row: _Row) -> list[str]:
    shape = " x ".join(map(str, row["shape"]))
    new = row.get("new_dtype", row["dtype"])
    sizes = [f"{row[key] / 1e6:.3f}" for key in ("bytes", "new_bytes") if key in row]
    number = f"{row['number']} of " if "number" in row else ""
    return [
        _short(printable(row["name"])),
        f"{number}{shape}",
        row["dtype"] if new == row["dtype"] else f"{row['dtype']} > {new}",
        *sizes,
    ]


def _short(name: str) -> str:
    """Shorten a name of a tensor to `_LONGEST` characters: the longest name sets the width of the column."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST // 2]}...{name[-_LONGEST // 2 :]}"


_HEAD = ["tensor", "shape", "type", "MB", "new MB"]
_MEASURES: dict[str, Callable[[Any], str]] = {
    "sqnr": lambda value: "exact" if value == inf else f"{value:.1f}",
    "rel_rmse": "{:.2e}".format,
    "max_abs_error": "{:.2e}".format,
    "cosine": "{:.6f}".format,
    "overflow": str,
    "flushed": str,
    "nan": str,
}


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a table, wrapped to the width of the terminal if there is one."""
    return aligned(rows, width=get_terminal_size().columns if sys.stdout.isatty() else None)


def sizes(report: _Row, *, every: bool) -> str:
    """Return a table of types and sizes of tensors before and after a conversion; `every` is as in :func:`losses`."""
    rows = report["tensors"]
    kept = [] if every else [row for row in rows if row["new_dtype"] == row["dtype"]]
    shown = rows if every else _fold([row for row in rows if row["new_dtype"] != row["dtype"]])
    parts = [_table([_HEAD, *map(_head, shown)])] if shown else []
    return "\n".join([*parts, *_total(report), *_types("not converted", kept)]).lstrip("\n")


def losses(report: _Row, *, every: bool) -> str:
    """Return a table of the errors of tensors that changed, then a table of the worst.

    `every` lists each tensor. Otherwise similar tensors share a row, and exact tensors are only counted.
    """
    rows = report["tensors"]
    lossy = [row for row in rows if row["sqnr"] != inf]
    exact = [] if every else [row for row in rows if row["sqnr"] == inf]
    shown = rows if every else _fold(lossy)
    worst = sorted(lossy, key=lambda row: -inf if isnan(row["sqnr"]) else row["sqnr"])[:_WORST]
    parts = [_measured(shown)] if shown else []
    parts += [*_total(report), *_types("exact", exact)]
    if len(shown) < len(lossy) or (len(rows) > _WORST and every and worst):
        parts += ["", "worst:", _measured(worst)]
    return "\n".join(parts).lstrip("\n")


def _measured(rows: Sequence[_Row]) -> str:
    heads = [*_HEAD, "SQNR dB", "rel RMSE", "max error", "cosine", "overflow", "flushed", "NaN"]
    return _table([heads, *([*_head(row), *(form(row[key]) for key, form in _MEASURES.items())] for row in rows)])


def _total(report: _Row) -> list[str]:
    old, new = (sum(row[key] for row in report["tensors"]) / 1e6 for key in ("bytes", "new_bytes"))
    return ["", f"{len(report['tensors'])} tensors: {old:.1f} MB > {new:.1f} MB"]


def _types(what: str, rows: Sequence[_Row]) -> Iterator[str]:
    """Yield one line that counts the tensors that are not listed, if any."""
    types = Counter(_head(row)[2] for row in rows)
    if types:
        yield f"{what}: {', '.join(f'{number} of {name}' for name, number in types.items())} (--all lists them)"


def contents(report: _Row, *, every: bool) -> Iterator[str]:
    """Yield the lines of an inspection. Similar tensors share a row, unless `every` is True."""
    heads = ["tensor", "shape", "type", "MB", "max abs", "> 65504", "< 2^-14", "inf", "NaN"]
    counts = ("above_float16", "below_float16", "infinite", "nan")
    rows = report["tensors"]
    shown = rows if every else _fold(rows)
    yield _table(
        [heads, *([*_head(row), f"{row['max_abs']:.4g}", *(str(row[key]) for key in counts)] for row in shown)]
    )
    folded = " (* replaces numbers; --all lists every tensor)" if len(shown) < len(rows) else ""
    yield f"\n{len(rows)} tensors: {report['bytes'] / 1e6:.1f} MB{folded}"
    for tool, number in Counter(row["tool"] for row in rows if row["tool"]).items():
        yield f"{number} tensors are of {printable(tool)}, whose codes mp_core cannot read; they are listed undecoded"
    for layout, number in Counter(row["layout"] for row in rows if row["layout"]).items():
        yield f"{number} tensors are codes in the layout {layout}, which mp_core reads; the values are listed decoded"
    for note, number in Counter(row["note"] for row in rows if row["note"]).items():
        yield f"{number} tensors: {note}"
    foreign = [row["name"] for row in rows if row["quantization"] and "blocks" in row["quantization"]]
    if foreign:
        yield f"{len(foreign)} tensors are float8 with scales of another tool; the values are listed decoded"
    if report["left_out"]:
        yield f"left out: {', '.join(map(printable, report['left_out']))}"
    for file, metadata in report["metadata"].items():
        for key, value in metadata.items():
            if key != checkpoint.QUANTIZATION:
                yield f"{printable(file)}: {printable(key)} = {printable(value)}"
