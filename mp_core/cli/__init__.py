"""The ``mp-core`` command: results go to stdout, progress and one-line errors to stderr.

Its exit codes are those of docs/cli.md.
"""

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import mp_core
from mp_core import benchmark, config, demo
from mp_core.checkpoint import RequestError
from mp_core.cli import checkpoints, choose, completion, embed, plan, profile, serve
from mp_core.cli.common import (
    BAD_INPUT,
    CLOSED_PIPE,
    DONE,
    FAILED,
    INTERRUPTED,
    USAGE,
    as_json,
    check_output,
    path,
    positive,
    printable,
    removable,
    write_json,
)
from mp_core.cli.policies import policy
from mp_core.core.cpu import __commit__

__all__ = ["main"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments without the program's name; those of the process by default.
    """
    parser = _parser()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, for as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of tensors may have characters that it cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = argparse.Namespace(parser=parser)
    try:
        parser.parse_args(argv, arguments)
        if sys.stdout is None:  # the process started with it closed
            return CLOSED_PIPE
        _check_threads(parser)
        with removable():
            code: int = arguments.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return CLOSED_PIPE
    except (argparse.ArgumentError, FileExistsError, NotImplementedError, RequestError, TypeError) as error:
        arguments.parser.error(printable(_message(error)))
    except MemoryError:
        print(f"{parser.prog}: error: not enough memory", file=sys.stderr)
        return BAD_INPUT
    except (OSError, ValueError, ImportError) as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
            _discard_output()
        print(f"{parser.prog}: error: {printable(' '.join(_message(error).split()))}", file=sys.stderr)
        return BAD_INPUT
    return code


def _check_threads(parser: argparse.ArgumentParser) -> None:
    """End with a usage error if the environment asks for a number of threads that cannot be."""
    try:
        config.get_num_threads()
    except ValueError as error:
        parser.error(str(error))


def _discard_output() -> None:
    """Send stdout nowhere: the interpreter writes what is left once more when it ends, and would complain."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _message(error: BaseException) -> str:
    """Return what an error says; of the system's errors the file and the reason."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    name = "standard output" if error.filename is None and error.errno in _FULL else error.filename
    return error.strerror if name is None else f"{name}: {error.strerror}"


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors take one line, and which says if help or version cannot be written."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is None:  # standard output, with which the process started closed
            raise BrokenPipeError
        if file is sys.stdout:
            print(message, end="", file=file, flush=True)
        else:
            super()._print_message(message, file)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="mp-core", description="Mixed-precision numerics on CPUs.")
    built = f"{mp_core.__version__} ({__commit__ or 'commit unknown'})"
    parser.add_argument("--version", action="version", version=f"mp-core {built}", help="print version and commit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    info = commands.add_parser("info", help="report versions, CPU features, the kernels in use and the threads")
    info.add_argument("--json", action="store_true", help="write one JSON object")
    plan.add_options(info)
    info.set_defaults(run=_info)

    embed.add_command(commands)
    serve.add_command(commands)
    choose.add_command(commands)
    profile.add_command(commands)
    checkpoints.add_commands(commands)

    demonstration = commands.add_parser("demo", help="a real model under several policies: speed, memory, quality")
    demonstration.add_argument("--policies", nargs="+", type=policy, default=demo.POLICIES, metavar="POLICY")
    demonstration.add_argument("--threads", type=positive, metavar="N", help="default: as `mp-core info` says")
    demonstration.add_argument("--json", metavar="FILE", help="write the table here too")
    demonstration.set_defaults(run=_demo)

    bench = commands.add_parser("bench", help="what operations cost here, beside NumPy and peers, and what bounds them")
    bench.add_argument("--limits", action="store_true", help="measure the machine only: multiply-adds, reads, copies")
    bench.add_argument("--ops", nargs="+", choices=benchmark.OPERATIONS, default=tuple(benchmark.OPERATIONS))
    bench.add_argument("--quick", action="store_true", help="three samples of each: does it run?")
    bench.add_argument("--peers", action="store_true", help="beside the peers that are installed too, not only NumPy")
    bench.add_argument("--json", metavar="FILE", help="write a record of each rate here")
    bench.add_argument("--plot", metavar="FILE", help="draw it, as .svg or .png (needs matplotlib)")
    bench.set_defaults(run=_bench)

    completion.add_command(commands, parser)
    for action in completion.actions_of(parser):
        if completion.is_path(action) and action.type is None:
            action.type = path
    for command in commands.choices.values():
        command.set_defaults(parser=command)
    return parser


def _info(arguments: argparse.Namespace) -> int:
    if arguments.plan:
        found = plan.described(arguments)
        print(as_json(found) if arguments.json else plan.text(found))
    elif arguments.json:
        print(as_json(config.show_config(as_dict=True)))
    else:
        config.show_config()
    return DONE


def _demo(arguments: argparse.Namespace) -> int:
    _check_json(arguments)
    report = demo.run(arguments.policies, threads=arguments.threads, show_progress=True)
    print(demo.table(report))
    _write_json(arguments, report)
    for failure in report["failed"]:
        print(f"mp-core: failed: {failure}", file=sys.stderr)
    return FAILED if report["failed"] else DONE


def _bench(arguments: argparse.Namespace) -> int:
    _check_json(arguments)
    if arguments.plot is not None:
        check_output("--plot", arguments.plot)
        benchmark.check_plots()
    threads, quick = config.get_num_threads(), arguments.quick
    print(f"version {mp_core.__version__}, isa {config.isa()}, threads {threads}")
    if arguments.limits:
        rows = benchmark.limits(quick=quick)
    else:
        rows = benchmark.run(arguments.ops, quick=quick, peers=arguments.peers)
    print(benchmark.table(rows))
    report = benchmark.Report.here("mp-core bench")
    for record in benchmark.records_of(rows, threads):
        report.add(record)
    _write_json(arguments, report.as_dict())
    if arguments.plot is not None:
        benchmark.plot(report, arguments.plot)
    return DONE


def _check_json(arguments: argparse.Namespace) -> None:
    if arguments.json is not None:
        check_output("--json", arguments.json)


def _write_json(arguments: argparse.Namespace, report: dict[str, Any]) -> None:
    if arguments.json is not None:
        write_json(arguments.json, report)
