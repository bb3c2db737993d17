"""How ``mp-core`` reads arguments and prints help and errors.

Of argparse's privates it uses two, because no public name does the same: ``_actions``, the list of all arguments,
and ``_check_value``, which decides what an error says about a wrong choice.
"""

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
    """Add a command to the program and return its parser.

    `commands` is what ``add_subparsers`` returned; `run` does the work and returns the exit code; `summary` says in a
    few words what the command does; `examples` are command lines for its help, without ``mp-core``.
    """
    shown = "\n".join(["examples:", *(f"  $ mp-core {line}" for line in examples)])
    description = textwrap.fill(f"{summary[0].upper()}{summary[1:]}.", _width() - 2)
    command: Parser = commands.add_parser(name, help=summary, description=description, epilog=shown)
    command.set_defaults(run=run, parser=command)
    return command


def error_text(program: str, message: str) -> str:
    """Return an error line; if standard error is a terminal, wrap and colour it."""
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
    """Return whether a stream gets colours: it is a terminal and NO_COLOR is not set (https://no-color.org)."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _coloured(text: str) -> str:
    """Return a help text with bold headings and coloured names of options."""
    text = re.sub(r"^\w[\w ]*:(?= |$)", rf"{_BOLD}\g<0>{_PLAIN}", text, flags=re.MULTILINE)
    return re.sub(r"(?<![\w-])--?[a-zA-Z][\w-]*", rf"{_CYAN}\g<0>{_PLAIN}", text)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Format help for the width of the terminal; descriptions and examples keep their line breaks."""

    def __init__(self, prog: str, **rest: Any) -> None:
        super().__init__(prog, **rest | {"width": _width() - 2, "max_help_position": 26})


class _Store(argparse.Action):
    """Store the value of an argument, like argparse's own action."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Store the value. Python 3.11 drops the second "--" of a line and passes []: then the value was "--"."""
        if self.nargs is None and values == []:
            values = self.type("--") if callable(self.type) else "--"
        setattr(namespace, self.dest, values)


def _with_files(words: list[str]) -> list[str]:
    """Return words in which each ``--json`` has a value: "-" (standard output) if no name of a file follows."""
    end = words.index("--") if "--" in words else len(words)
    pairs = zip(words[:end], [*words[1:end], "--"], strict=False)
    given = [
        "--json=-" if word == "--json" and not re.fullmatch(r"|-|.*\.json", after) else word for word, after in pairs
    ]
    return given + words[end:]


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors suggest the right word and end with the command that shows the help."""

    commands: Any = None
    """What :meth:`add_subparsers` returned: its ``choices`` are the parsers of the commands."""

    def __init__(self, **rest: Any) -> None:
        super().__init__(**rest | {"formatter_class": _Formatter})
        self.color = False  # argparse adds its own colours from Python 3.14 on
        self.register("action", None, _Store)
        self.register("action", "store", _Store)
        self._intermixed = False

    def add_subparsers(self, **settings: Any) -> Any:
        """Add commands and store the action as :attr:`commands`."""
        self.commands = super().add_subparsers(**settings)
        return self.commands

    @property
    def arguments(self) -> list[argparse.Action]:
        """All arguments, those of groups too."""
        return self._actions

    @property
    def options(self) -> list[str]:
        """All options, in all spellings."""
        return [option for action in self.arguments for option in action.option_strings]

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and the command that shows the help; exit with the code for usage errors."""
        self.exit(USAGE, f"{error_text(self.prog, message)}\nHelp: {self.prog} --help\n")

    def print_help(self, file: Any = None) -> None:
        """Print the help, in colour if standard output is a terminal."""
        stream = sys.stdout if file is None else file
        if stream is None:
            raise BrokenPipeError
        if stream is not sys.stdout:
            super().print_help(stream)
            return
        text = self.format_help()
        print(_coloured(text) if _has_colour(stream) else text, end="", flush=True)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read arguments. An unknown option is reported before a missing argument."""
        words = sys.argv[1:] if args is None else list(args)
        if self._intermixed:
            return super().parse_known_args(words, namespace)
        if "--json" in self.options:
            words = _with_files(words)
        self._check_options(words)
        if not any(not action.option_strings and action.nargs in ("*", "+") for action in self.arguments):
            return super().parse_known_args(words, namespace)
        self._intermixed = True  # options may come between the files of a list: `embed MODEL a.txt --quiet b.txt`
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
        """End with a usage error about the first of the words that no argument accepted; do nothing if none is left."""
        if words and words[0].startswith("-"):
            self.error(f"unknown option {words[0]}")
        if words:
            hint = "; if it is the file of --json, write --json=FILE" if "--json" in self.options else ""
            self.error(f"unexpected argument {words[0]}{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if action is self.commands:
            self.error(f"unknown command: {not_one_of(value, action.choices)}")
        raise argparse.ArgumentError(action, not_one_of(str(value), map(str, action.choices)))
