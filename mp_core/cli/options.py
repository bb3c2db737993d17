"""The options that commands share: one table gives each option one spelling and one meaning."""

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
    "announce",
    "check_address",
    "check_model",
    "check_outputs",
    "client_of",
    "prints_text",
    "show",
    "shows_progress",
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
    "inputs": (
        ("--inputs",),
        {
            "metavar": "FILE",
            "type": path,
            "help": "if MODEL is a graph: .npz file with an array for each input, by "
            "name (default: drawn numbers in the declared shapes)",
        },
    ),
    "output": (("-o", "--output"), {"metavar": "OUT", "type": path}),
    "force": (("--force",), {"action": "store_true", "help": "replace OUT if it exists"}),
    "json": (
        ("--json",),
        {
            "nargs": "?",
            "const": _STANDARD_OUTPUT,
            "type": path,
            "metavar": "FILE",
            "help": "print one JSON object, or write it to FILE (write --json=FILE if FILE does not end in .json)",
        },
    ),
    "plot": (("--plot",), {"metavar": "FILE", "help": "draw the result as .svg or .png (needs matplotlib)"}),
    "all": (("--all",), {"action": "store_true", "help": "list every tensor: no shared rows, and exact ones too"}),
    "threads": (
        ("--threads",),
        {"type": _threads, "metavar": "N", "help": "number of threads (default: see `mp-core info`)"},
    ),
    "quiet": (("--quiet",), {"action": "store_true", "help": "print only errors and the output of --json or OUT"}),
    "no-progress": (("--no-progress",), {"action": "store_true", "help": "do not show progress"}),
}
"""Option -> its names and its settings for ``add_argument``."""


class Arguments(Protocol):
    """A command, or a group of its arguments."""

    def add_argument(self, *flags: str, **settings: Any) -> Any:
        """Add an argument."""


def add(command: Arguments, *names: str, **changes: Any) -> None:
    """Add options of the table, by their `names`, to a command or a group of its arguments.

    `changes` are settings that differ from the table for all of these options.
    """
    for name in names:
        flags, settings = _TABLE[name]
        command.add_argument(*flags, **settings | changes)


def add_model(command: argparse.ArgumentParser, help: str = "folder of an encoder") -> None:
    """Add MODEL, the first argument of a command."""
    command.add_argument("model", metavar="MODEL", type=path, help=help)


def check_model(arguments: argparse.Namespace) -> None:
    """Raise if MODEL is another file than GGUF: usually MODEL was forgotten, and a file of texts took its place."""
    if Path(arguments.model).is_file() and Path(arguments.model).suffix != ".gguf":
        expected = "must be a folder of a model, or a .gguf file"
        raise argparse.ArgumentError(None, f"argument MODEL: {arguments.model} is a file; {expected}")


def check_outputs(arguments: argparse.Namespace, *others: str) -> None:
    """Raise before the work starts if --json or --plot cannot be written or would overwrite another file.

    `others` are the other files and folders that the command reads or writes.
    """
    for name in ("json", "plot"):
        file = getattr(arguments, name, None)
        if file in (None, _STANDARD_OUTPUT):
            continue
        check_output(f"--{name}", file)
        path = Path(os.path.realpath(file))
        for other in others:
            if Path(os.path.realpath(other)) in (path, *path.parents):
                raise argparse.ArgumentError(
                    None, f"argument --{name}: {file} would overwrite {other}, or a file in it; choose another name"
                )


def check_address(arguments: argparse.Namespace) -> None:
    """Raise if --dask is empty."""
    if not arguments.dask:
        raise argparse.ArgumentError(None, "argument --dask: must be the address of a scheduler; received ''")


def client_of(arguments: argparse.Namespace) -> Any:
    """Return a client of the dask scheduler at --dask; use it as a context manager."""
    with needed_by("--dask"):
        from distributed import Client
    return Client(arguments.dask)


def prints_text(arguments: argparse.Namespace) -> bool:
    """Return whether a command prints its results as text."""
    return arguments.json != _STANDARD_OUTPUT and not getattr(arguments, "quiet", False)


def show(arguments: argparse.Namespace, report: Mapping[str, Any], text: Callable[[], str]) -> None:
    """Print the report of a command as text or JSON, and write it to the file of --json."""
    if arguments.json == _STANDARD_OUTPUT:
        print(as_json(report))
        return
    if prints_text(arguments):
        print(text())
    if arguments.json is not None:
        write_json(arguments.json, report)


def shows_progress(arguments: argparse.Namespace) -> bool:
    """Return whether a command shows progress: a bar in a terminal, otherwise a line every few seconds."""
    return not (arguments.quiet or arguments.no_progress)


def announce(arguments: argparse.Namespace, step: str) -> None:
    """Print on standard error which step of a long command starts."""
    if shows_progress(arguments):
        print(f"mp-core: {step}", file=sys.stderr, flush=True)


def threads_of(arguments: argparse.Namespace) -> AbstractContextManager[None]:
    """Return a context manager that applies --threads."""
    number = getattr(arguments, "threads", None)
    return nullcontext() if number is None else config.num_threads(number)
