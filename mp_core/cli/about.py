"""``mp-core help`` and ``mp-core version``."""

import argparse
from typing import Any

import mp_core
from mp_core.cli.common import DONE
from mp_core.cli.grammar import Parser, new_command
from mp_core.cli.policies import table_of_policies
from mp_core.core.cpu import __commit__

__all__ = ["add_commands", "version"]

_POLICIES = "policies"


def add_commands(commands: Any, parser: Parser) -> None:
    """Add the commands `help`, which knows the commands that were added before, and `version`."""
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
    """Return the line about the version."""
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
