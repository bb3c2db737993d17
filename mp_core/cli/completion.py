"""``mp-core completion``: print a script with which a shell completes commands, options, choices and file names."""

import argparse
from collections.abc import Iterator
from typing import Any

from mp_core.cli.common import DONE
from mp_core.cli.grammar import Parser, new_command
from mp_core.cli.policies import WORDS, policy, stored_policy
from mp_core.utilities.extras import needed_by

__all__ = ["actions_of", "add_command", "is_path"]

SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")
_PATHS = {"FILE", "MODEL", "OTHER", "OUT", "REGEX=POLICY|FILE"}  # metavars of arguments that are a file or folder


def add_command(commands: Any, parser: Parser) -> None:
    """Add the command `completion`, which describes the arguments of `parser`."""
    examples = ("completion bash > ~/.local/share/bash-completion/completions/mp-core",)
    command = new_command(
        commands,
        "completion",
        lambda arguments: _completion(parser, arguments.shell),
        "print a script with which a shell completes mp-core commands",
        examples,
    )
    command.add_argument("shell", choices=SHELLS, help="the shell to print a script for")


def _completion(parser: Parser, shell: str) -> int:
    with needed_by("mp-core completion"):
        import shtab
    for action in actions_of(parser):
        if is_path(action):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.type in (policy, stored_policy):
            action.choices = WORDS
    print(shtab.complete(parser, shell))
    return DONE


def is_path(action: argparse.Action) -> bool:
    """Return whether an argument is the name of a file or folder."""
    return action.metavar in _PATHS


def actions_of(parser: Parser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its commands."""
    yield from parser.arguments
    if parser.commands is not None:
        for command in parser.commands.choices.values():
            yield from actions_of(command)
