"""What the commands share: exit codes, types of arguments."""

import argparse
import json
import os
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

__all__ = ["as_json", "check_output", "positive", "printable"]

DONE, FAILED, USAGE, BAD_INPUT, INTERRUPTED, CLOSED_PIPE, TERMINATED = 0, 1, 2, 3, 130, 141, 143


def positive(text: str) -> int:
    """Read an integer of at least 1."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1; received {text!r}")
    return number


def check_output(option: str, path: Path) -> None:
    """Raise before the work is done if what it gives could not be written here."""
    real = Path(os.path.realpath(path))
    if not (path.parent.is_dir() and real.parent.is_dir()):
        raise argparse.ArgumentError(None, f"argument {option}: no folder {path.parent}")
    if real.is_dir():
        raise argparse.ArgumentError(None, f"argument {option}: {path} is a folder")
    if not os.access(real if real.exists() else real.parent, os.W_OK):
        raise argparse.ArgumentError(None, f"argument {option}: {path} cannot be written")


def as_json(report: Mapping[str, Any]) -> str:
    """Return a report as JSON, which has no infinity: it is the string "inf"."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, float) and not isfinite(value) else value

    return json.dumps(plain(report), indent=2)


def printable(text: str) -> str:
    """Return a text from elsewhere so that it cannot end a line or steer a terminal."""
    return text if text.isprintable() else ascii(text)
