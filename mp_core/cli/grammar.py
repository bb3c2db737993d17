"""The grammar of the command line: how arguments are read, how help and errors look."""

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from mp_core.cli.common import USAGE
from mp_core.utilities.suggest import not_one_of, suggestion

__all__ = ["Parser", "error_text", "new_command"]

_BOLD, _CYAN, _RED, _PLAIN = "\x1b[1m", "\x1b[36m", "\x1b[1;31m", "\x1b[0m"
_WIDEST = 100


def new_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], summary: str, examples: Sequence[str]
) -> "Parser":
    """Add a command to the program's and return its parser.

    Parameters
    ----------
    commands : argparse action
        The commands of the program.
    name : str
    run : callable
        What does the work and returns the exit code.
    summary : str
        What the command does, in a few words.
    examples : sequence of str
        Command lines, without the name of the program, for its help.
    """
    shown = "\n".join(["examples:", *(f"  $ mp-core {line}" for line in examples)])
    command: Parser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=shown
    )
    command.set_defaults(run=run, parser=command)
    return command


def error_text(program: str, message: str) -> str:
    """Return an error as it is printed on standard error: in colour and wrapped if that is a terminal."""
    text = f"{program}: error: {message}"
    if not sys.stderr.isatty():
        return text
    wrapped = textwrap.fill(
        text, _width(), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    return wrapped.replace("error:", f"{_RED}error:{_PLAIN}", 1) if _has_colour(sys.stderr) else wrapped


def _width() -> int:
    return max(40, min(_WIDEST, shutil.get_terminal_size().columns))


def _has_colour(stream: Any) -> bool:
    """Whether to colour what is written to a stream: it is a terminal, and nobody objects (https://no-color.org)."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _coloured(text: str) -> str:
    """Return a help text with bold headings and coloured names of options."""
    text = re.sub(r"^\w[\w ]*:(?= |$)", rf"{_BOLD}\g<0>{_PLAIN}", text, flags=re.MULTILINE)
    return re.sub(r"(?<![\w-])--?[a-zA-Z][\w-]*", rf"{_CYAN}\g<0>{_PLAIN}", text)


class _Formatter(argparse.HelpFormatter):
    """Help in the width of the terminal, whose examples keep their lines."""

    def __init__(self, prog: str, **rest: Any) -> None:
        super().__init__(prog, **rest | {"width": _width() - 2, "max_help_position": 26})

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def _with_files(words: list[str]) -> list[str]:
    """Return words in which each --json has a file: "-", unless the next word is one by its name."""
    end = words.index("--") if "--" in words else len(words)
    pairs = zip(words[:end], [*words[1:end], "--"], strict=False)
    given = [
        "--json=-" if word == "--json" and not re.fullmatch(r"|-|.*\.json", after) else word for word, after in pairs
    ]
    return given + words[end:]


class Parser(argparse.ArgumentParser):
    """An argument parser that says what was meant, and whose errors end with the command that shows the help."""

    commands: Any = None
    """The action that :meth:`add_subparsers` has returned: its ``choices`` are the parsers of the commands."""

    def __init__(self, **rest: Any) -> None:
        super().__init__(**rest | {"formatter_class": _Formatter})
        self.color = False  # from Python 3.14 on argparse colours by itself, by other rules
        self._intermixed = False

    def add_subparsers(self, **told: Any) -> Any:
        """Add commands, and remember the action as :attr:`commands`."""
        self.commands = super().add_subparsers(**told)
        return self.commands

    @property
    def arguments(self) -> list[argparse.Action]:
        """The arguments, those of groups too: argparse has no public list of them."""
        return self._actions

    @property
    def options(self) -> list[str]:
        """The options in all their spellings."""
        return [option for action in self.arguments for option in action.option_strings]

    def error(self, message: str) -> NoReturn:
        """End with a usage error: what is wrong, then the command that shows the help."""
        self.exit(USAGE, f"{error_text(self.prog, message)}\nHelp: {self.prog} --help\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read arguments; an unknown option is the first thing that is said, also where others are missing."""
        words = sys.argv[1:] if args is None else list(args)
        if self._intermixed:
            return super().parse_known_args(words, namespace)
        if "--json" in self.options:
            words = _with_files(words)
        self._check_options(words)
        if not any(not action.option_strings and action.nargs in ("*", "+") for action in self.arguments):
            return super().parse_known_args(words, namespace)
        self._intermixed = True  # so that options may stand between the first and the last of many arguments
        try:
            return self.parse_known_intermixed_args(words, namespace)
        finally:
            self._intermixed = False

    def _check_options(self, words: list[str]) -> None:
        known = self.options
        for word in words:
            name = word.partition("=")[0]
            if word == "--" or (self.commands is not None and not word.startswith("-")):
                return
            if re.fullmatch(r"--[\w-]+", name) and not any(option.startswith(name) for option in known):
                self.error(f"unknown option {name}{suggestion(name, known)}")

    def refuse(self, words: list[str]) -> None:
        """End with a usage error about the first of the words that no argument takes, if there are any."""
        if words and words[0].startswith("-"):
            self.error(f"unknown option {words[0]}")
        if words:
            hint = "; a file of another name than .json is --json=FILE" if "--json" in self.options else ""
            self.error(f"unexpected argument {words[0]}{hint}")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Return the value of an argument; the second "--" of a line, which Python 3.11 drops, is one as any other."""
        value = super()._get_values(action, arg_strings)
        return self._get_value(action, "--") if action.nargs is None and value == [] else value

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if action is self.commands:
            self.error(f"unknown command: {not_one_of(value, action.choices)}")
        raise argparse.ArgumentError(action, not_one_of(str(value), map(str, action.choices)))

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is None:  # standard output, with which the process started closed
            raise BrokenPipeError
        if file is sys.stdout:
            print(_coloured(message) if _has_colour(file) else message, end="", file=file, flush=True)
        else:
            super()._print_message(message, file)
