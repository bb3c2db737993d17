"""Aligned text: tables and outlines."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["aligned", "outline"]


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (0,), width: int | None = None) -> str:
    """Return rows of cells, the first one the head, as lines with a rule below the head.

    Parameters
    ----------
    rows : sequence of sequence of str
    left : collection of int
        The columns that are set to the left; the others, of numbers, to the right.
    width : int, optional
        If the lines would be longer than this, each row has as many lines as its cells need, indented from the second
        line on. A cell that is wider alone keeps its line.

    Examples
    --------
    >>> print(aligned([["policy", "MB"], ["float32", "90.3"], ["int8", "9"]]))
    policy     MB
    -------------
    float32  90.3
    int8        9
    >>> print(aligned([["policy", "MB", "ms"], ["mixed_bfloat16", "68.6", "2"]], width=16))
    policy
        MB  ms
    --------------
    mixed_bfloat16
      68.6   2
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str], columns: Sequence[int]) -> str:
        cells = [row[i].ljust(widths[i]) if i in left else row[i].rjust(widths[i]) for i in columns]
        return ("  " * bool(columns[0]) + "  ".join(cells)).rstrip()

    groups = _groups(widths, width)
    lines = [line(row, columns) for row in rows for columns in groups]
    lines.insert(len(groups), "-" * max(map(len, lines)))
    return "\n".join(lines)


def _groups(widths: Sequence[int], width: int | None) -> list[list[int]]:
    """Return the columns that share a line, for each line of a row."""
    groups: list[list[int]] = []
    used = 0
    for column, own in enumerate(widths):
        if groups and (width is None or used + 2 + own <= width):
            groups[-1].append(column)
            used += 2 + own
        else:
            used = own + 2 * bool(groups)
            groups.append([column])
    return groups


def outline(report: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    r"""Yield a report as lines of a key and its value, nested reports below their key.

    Examples
    --------
    >>> print(*outline({"isas": ["avx2", "scalar"], "kernels": {"int8": "vpmaddwd"}}), sep="\n")
    isas     avx2 scalar
    kernels
      int8  vpmaddwd
    """
    width = max(map(len, report), default=0)
    for key, value in report.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}"
            yield from outline(value, indent + "  ")
        else:
            text = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
            yield f"{indent}{key:{width}}  {text}"
