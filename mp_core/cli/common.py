"""Shared by the commands: exit codes, argument types, output files."""

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

from mp_core.files.checkpoint.output import new_file
from mp_core.utilities.numerals import integer_of, number_of
from mp_core.utilities.suggest import refusal
from mp_core.utilities.system import ENDING

__all__ = ["as_json", "check_output", "cleanup_on_signals", "finite", "path", "positive", "printable", "write_json"]

DONE, FAILED, USAGE, BAD_INPUT, INTERRUPTED, CLOSED_PIPE = 0, 1, 2, 3, 130, 141


@contextmanager
def cleanup_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that unfinished files are removed before the process ends."""
    in_main = threading.current_thread() is threading.main_thread()
    numbers = [number for number in ENDING if in_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def positive(text: str, most: int = 2**31 - 1) -> int:
    """Read an integer of at least 1."""
    number = integer_of(text, 1, most)
    if number is None:
        allowed = f"from 1 to {most}" if text.isdecimal() and text.strip("0") else "of at least 1"
        raise argparse.ArgumentTypeError(refusal(text, f"must be an integer {allowed}"))
    return number


def finite(text: str, least: float = 0.0) -> float:
    """Read a finite number of at least `least`."""
    try:
        number = number_of(text)
    except ValueError:
        number = nan
    if not (least <= number and isfinite(number)):
        bound = f" of at least {least:g}" if least > -inf else ""
        raise argparse.ArgumentTypeError(refusal(text, f"must be a finite number{bound}"))
    return number


def path(text: str) -> str:
    """Return the name of a file or folder; reject "", which pathlib would read as the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty; the working directory is .")
    return text


def check_output(option: str, output: str) -> None:
    """Raise before the work starts if the output cannot be written."""
    parent, real = Path(output).parent, Path(os.path.realpath(output))
    if not (parent.is_dir() and real.parent.is_dir()):
        raise argparse.ArgumentError(None, f"argument {option}: the folder {parent} does not exist")
    if real.is_dir() or output.endswith(os.sep):
        raise argparse.ArgumentError(None, f"argument {option}: {output} is a folder")
    if not os.access(real if real.exists() else real.parent, os.W_OK):
        raise argparse.ArgumentError(None, f"argument {option}: {output} cannot be written")


def as_json(report: Mapping[str, Any]) -> str:
    """Return a report as JSON; infinity and NaN, which JSON lacks, become the strings "inf", "-inf" and "nan"."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, float) and not isfinite(value) else value

    return json.dumps(plain(report), indent=2)


def write_json(path: str, report: Mapping[str, Any]) -> None:
    """Write a report to a file."""
    with new_file(Path(path), force=True) as stream:
        stream.write(f"{as_json(report)}\n".encode())


def printable(text: str) -> str:
    """Escape a text from a file or a user if it has characters that break lines or control a terminal."""
    return text if text.isprintable() else ascii(text)
