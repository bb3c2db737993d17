"""``mp-core help`` and ``mp-core version``."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import mp_core
from mp_core.cli.common import DONE
from mp_core.cli.grammar import Parser, new_command
from mp_core.cli.policies import table_of_policies
from mp_core.core.cpu import __commit__

__all__ = ["Version", "add_commands", "version"]

_POLICIES = "policies"


class Version(argparse.Action):
    """The action of ``--version``: print the version and exit."""

    def __init__(self, option_strings: Sequence[str], dest: str, **rest: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, **rest)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Print the version; raise BrokenPipeError if the process started with standard output closed."""
        if sys.stdout is None:
            raise BrokenPipeError
        print(version(), flush=True)
        parser.exit()


def add_commands(commands: Any, parser: Parser) -> None:
    """Add the commands `help` and `version`. Call it last: `help` offers the commands that exist then."""
    examples = "help", "help convert", f"help {_POLICIES}"
    command = new_command(commands, "help", lambda given: _help(commands, parser, given), "show help", examples)
    new_command(commands, "version", _version, "print version and commit", ["version"])
    command.add_argument(
        "topic",
        nargs="?",
        choices=(*commands.choices, _POLICIES),
        metavar="COMMAND",
        help=f"a command, or {_POLICIES} (default: all commands)",
    )


def version() -> str:
    """Return the line that ``mp-core version`` prints."""
    return f"mp-core {mp_core.__version__} ({__commit__ or 'commit unknown'})"


def _help(commands: Any, parser: Parser, arguments: argparse.Namespace) -> int:
    if arguments.topic == _POLICIES:
        print(table_of_policies())
    elif arguments.topic is None:
        parser.print_help()
    else:
        commands.choices[arguments.topic].print_help()
    return DONE


def _version(arguments: argparse.Namespace) -> int:
    print(version())
    return DONE
