"""Shared code of the tests of the `mp-core` command."""

import sys

import processes
import pytest

from mp_core import cli

TEXTS = ["a b c", "", "d \u2028 e", "h"]
"""The lines of the fixture `texts`."""


def usage_error(capsys, *arguments):
    """Run a command that is wrong usage, exit code 2, and return its error.

    That is one line on standard error, after which comes the line with the command that shows the help.
    """
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    out, err = capsys.readouterr()
    assert (stopped.value.code, out, err.count("\n")) == (2, "", 2)
    program = err.partition(": error: ")[0]
    assert err.endswith(f"\nHelp: {program} --help\n")
    return err.partition("\n")[0]


def mp_core(*arguments, **options):
    """Run a command in a process of its own; return what it has written, and its exit code."""
    return processes.run([sys.executable, "-m", "mp_core", *arguments], capture_output=True, check=False, **options)
