"""The options that commands share: one table, in which each has one spelling and one meaning."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from mp_core.cli.common import as_json, check_output, path, positive, write_json
from mp_core.cli.policies import policy
from mp_core.policies import config
from mp_core.utilities.extras import needed_by

__all__ = [
    "add",
    "add_model",
    "check_address",
    "check_model",
    "check_outputs",
    "client_of",
    "prints_text",
    "show",
    "shows_progress",
    "tell",
    "threads_of",
]

_MOST_THREADS = 1024
_STANDARD_OUTPUT = "-"


def _threads(text: str) -> int:
    return positive(text, _MOST_THREADS)


_TABLE: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "policy": (
        ("--policy",),
        {"type": policy, "metavar": "POLICY", "help": "such as int8 or mixed_bfloat16 (default: as MODEL is stored)"},
    ),
    "policies": (("--policies", "--policy"), {"nargs": "+", "type": policy, "metavar": "POLICY"}),
    "output": (("-o", "--output"), {"metavar": "OUT", "type": path}),
    "force": (("--force",), {"action": "store_true", "help": "replace OUT if it exists"}),
    "json": (
        ("--json",),
        {
            "nargs": "?",
            "const": _STANDARD_OUTPUT,
            "type": path,
            "metavar": "FILE",
            "help": "print one JSON object; or write it to FILE, whose name ends in .json (else: --json=FILE)",
        },
    ),
    "plot": (("--plot",), {"metavar": "FILE", "help": "draw it, as .svg or .png (needs matplotlib)"}),
    "all": (("--all",), {"action": "store_true", "help": "list every tensor, also those that are alike or exact"}),
    "threads": (
        ("--threads",),
        {"type": _threads, "metavar": "N", "help": "threads that compute (default: as `mp-core info` says)"},
    ),
    "quiet": (("--quiet",), {"action": "store_true", "help": "print errors only, and what --json or OUT asks for"}),
    "no-progress": (("--no-progress",), {"action": "store_true", "help": "show no progress"}),
}
"""Option -> its names and what argparse is told about it."""


class Arguments(Protocol):
    """A command, or a group of its arguments."""

    def add_argument(self, *flags: str, **told: Any) -> Any:
        """Add an argument."""


def add(command: Arguments, *names: str, **changes: Any) -> None:
    """Add options of the table to a command, with what is special about them there.

    Parameters
    ----------
    command : argparse.ArgumentParser, or a group of its arguments
    *names : str
        Keys of the table.
    **changes
        Other values for what argparse is told about all of them.
    """
    for name in names:
        flags, told = _TABLE[name]
        command.add_argument(*flags, **told | changes)


def add_model(command: argparse.ArgumentParser, help: str = "folder of an encoder") -> None:
    """Add the model that a command is about: its first argument."""
    command.add_argument("model", metavar="MODEL", type=path, help=help)


def check_model(arguments: argparse.Namespace) -> None:
    """Raise if the model is a file, where a folder is needed: mostly the model was forgotten."""
    if Path(arguments.model).is_file():
        raise argparse.ArgumentError(None, f"argument MODEL: {arguments.model} is a file; must be a folder of a model")


def check_outputs(arguments: argparse.Namespace, *others: str) -> None:
    """Raise before the work if --json or --plot could not be written, or would overwrite what it is about.

    Parameters
    ----------
    arguments : argparse.Namespace
    *others : str
        The files and folders that the command reads or writes besides.
    """
    for name in ("json", "plot"):
        file = getattr(arguments, name, None)
        if file in (None, _STANDARD_OUTPUT):
            continue
        check_output(f"--{name}", file)
        path = Path(os.path.realpath(file))
        for other in others:
            if Path(os.path.realpath(other)) in (path, *path.parents):
                raise argparse.ArgumentError(None, f"argument --{name}: {file} is {other}, or in it")


def check_address(arguments: argparse.Namespace) -> None:
    """Raise if --dask names no scheduler."""
    if not arguments.dask:
        raise argparse.ArgumentError(None, "argument --dask: must be the address of a scheduler; received ''")


def client_of(arguments: argparse.Namespace) -> Any:
    """Return a client of the scheduler that --dask names, as a context."""
    with needed_by("--dask"):
        from distributed import Client
    return Client(arguments.dask)


def prints_text(arguments: argparse.Namespace) -> bool:
    """Whether a command tells on standard output, in words, what it does and finds."""
    return arguments.json != _STANDARD_OUTPUT and not getattr(arguments, "quiet", False)


def show(arguments: argparse.Namespace, report: Mapping[str, Any], text: Callable[[], str]) -> None:
    """Print what a command found, as text or JSON, and write it to the file of --json."""
    if arguments.json == _STANDARD_OUTPUT:
        print(as_json(report))
        return
    if prints_text(arguments):
        print(text())
    if arguments.json is not None:
        write_json(arguments.json, report)


def shows_progress(arguments: argparse.Namespace) -> bool:
    """Whether a command shows how far it is: a bar in a terminal, elsewhere a line now and then."""
    return not (arguments.quiet or arguments.no_progress)


def tell(arguments: argparse.Namespace, step: str) -> None:
    """Say on standard error which step of a long command begins."""
    if shows_progress(arguments):
        print(f"mp-core: {step}", file=sys.stderr, flush=True)


def threads_of(arguments: argparse.Namespace) -> AbstractContextManager[None]:
    """Return the scope in which a command computes on as many threads as --threads says."""
    number = getattr(arguments, "threads", None)
    return nullcontext() if number is None else config.num_threads(number)
