"""What the commands share: exit codes, types of arguments, tables."""

import argparse
from collections.abc import Sequence

__all__ = ["positive", "printable", "table"]

DONE, FAILED, USAGE, BAD_INPUT, INTERRUPTED, CLOSED_PIPE, TERMINATED = 0, 1, 2, 3, 130, 141, 143


def positive(text: str) -> int:
    """Read an integer of at least 1."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1; received {text!r}")
    return number


def printable(text: str) -> str:
    """Return a text from elsewhere so that it cannot end a line or steer a terminal."""
    return text if text.isprintable() else ascii(text)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells, of which the first is the head, as text: the first column left, the others right."""
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = [
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], widths, strict=True))])
        for row in rows
    ]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines)
