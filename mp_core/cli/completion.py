"""``mp-core completion``: a script that lets a shell complete commands, options, choices and names of files."""

import argparse
from collections.abc import Iterator
from typing import Any

from mp_core.cli.common import DONE
from mp_core.extras import needed_by

__all__ = ["actions_of", "add_command", "is_path"]

SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")
_FILES = {"FILE", "IN", "OUT", "A", "B", "REGEX=POLICY|FILE"}  # what the usage calls an argument that is a file
_FOLDERS = {"DIR", "MODEL"}


def add_command(commands: Any, parser: argparse.ArgumentParser) -> None:
    """Add the command `completion`, which describes the arguments of `parser`."""
    command = commands.add_parser("completion", help="print a script for a shell that completes what is typed")
    command.add_argument("shell", choices=SHELLS)
    command.set_defaults(run=lambda arguments: _completion(parser, arguments.shell))


def _completion(parser: argparse.ArgumentParser, shell: str) -> int:
    with needed_by("mp-core completion"):
        import shtab
    for action in actions_of(parser):
        if is_path(action):
            action.complete = shtab.FILE if action.metavar in _FILES else shtab.DIR  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell))
    return DONE


def is_path(action: argparse.Action) -> bool:
    """Whether an argument is the name of a file or folder."""
    return action.metavar in _FILES | _FOLDERS


def actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from actions_of(command)
