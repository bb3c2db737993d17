"""What the commands share: exit codes, types of arguments."""

import argparse

__all__ = ["positive", "printable"]

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
