"""Aligned text: tables and outlines."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["aligned", "outline"]


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Return rows of cells, the first one the head, as lines with a rule below the head.

    Parameters
    ----------
    rows : sequence of sequence of str
    left : collection of int
        The columns that are set to the left; the others, of numbers, to the right.

    Examples
    --------
    >>> print(aligned([["policy", "MB"], ["float32", "90.3"], ["int8", "9"]]))
    policy     MB
    -------------
    float32  90.3
    int8        9
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


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
