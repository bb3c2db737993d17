"""Format aligned text: tables and outlines."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["aligned", "outline"]


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (0,), width: int | None = None) -> str:
    """Return a table as text, with a rule below the first row, the head.

    The columns `left` are aligned left, the others right. A row longer than `width` characters is wrapped between
    cells, and continuation lines are indented. A cell that is wider gets a line of its own.

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
    """Return for each line of a wrapped row the columns in it."""
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
    r"""Yield a report as lines "key  value"; nested reports are indented below their key.

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
