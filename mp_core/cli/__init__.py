"""The ``mp-core`` command: results go to stdout, progress and one-line errors to stderr.

It imports all other rooms; no room imports it.

docs/cli.md lists the exit codes.
"""

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence

import mp_core
from mp_core.cli import (
    about,
    benchmark,
    checkpoints,
    choose,
    completion,
    demo,
    embed,
    generate,
    graphs,
    options,
    perplexity,
    product_plan,
    profile,
    serve,
    tune,
    vectors,
)
from mp_core.cli.common import (
    BAD_INPUT,
    CLOSED_PIPE,
    DONE,
    FAILED,
    INTERRUPTED,
    USAGE,
    cleanup_on_signals,
    path,
    printable,
)
from mp_core.cli.grammar import Parser, error_text, new_command
from mp_core.files.checkpoint import RequestError
from mp_core.policies import config
from mp_core.utilities.tables import outline

__all__ = ["main"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` are the arguments without the program's name."""
    parser = _parser()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, for as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of tensors may have characters that the encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = argparse.Namespace(parser=parser)
    try:
        given = sys.argv[1:] if argv is None else list(argv)
        if not given:
            parser.print_help(sys.stderr)
            return USAGE
        _, beyond = parser.parse_known_args(given, arguments)
        arguments.parser.refuse(beyond)
        if sys.stdout is None:  # it was closed when the process started
            return CLOSED_PIPE
        _check_threads(parser)
        with cleanup_on_signals(), options.threads_of(arguments):
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
        print(error_text(parser.prog, "not enough memory for this command"), file=sys.stderr)
        return BAD_INPUT
    except (OSError, ValueError, ImportError) as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:
            _discard_output()
        print(error_text(parser.prog, printable(" ".join(_message(error).split()))), file=sys.stderr)
        return BAD_INPUT
    return code


def _check_threads(parser: argparse.ArgumentParser) -> None:
    """End with a usage error if the environment sets an invalid number of threads."""
    try:
        config.get_num_threads()
    except ValueError as error:
        parser.error(str(error))


def _discard_output() -> None:
    """Redirect stdout to the null device: the interpreter flushes it at exit, and that would fail again."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _message(error: BaseException) -> str:
    """Return the text of an error; for errors of the operating system, "file: reason"."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    name = "standard output" if error.filename is None and error.errno in _FULL else error.filename
    return error.strerror if name is None else f"{name}: {error.strerror}"


def _parser() -> Parser:
    parser = Parser(prog="mp-core", description="Mixed-precision numerics on CPUs.", epilog=_EPILOG)
    parser.add_argument("-V", "--version", action=about.Version, help="print version and commit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    examples = ["info", "info --json", "info --plan 16x4096x4096 --dtype bfloat16 --threads 1"]
    info = new_command(commands, "info", _info, "show versions, CPU features, kernels and threads", examples)
    options.add(info, "json")
    product_plan.add_options(info)

    embed.add_command(commands)
    generate.add_command(commands)
    perplexity.add_command(commands)
    serve.add_command(commands)
    choose.add_command(commands)
    graphs.add_command(commands)
    profile.add_command(commands)
    tune.add_command(commands)
    checkpoints.add_commands(commands)

    examples = ["demo", "demo --policies int8 int4/64 --threads 1"]
    demonstration = new_command(
        commands, "demo", _demo, "compare policies on a real model: speed, memory, quality", examples
    )
    options.add(demonstration, "policies", default=demo.POLICIES, help=f"default: {' '.join(demo.POLICIES)}")
    options.add(demonstration, "json", "threads", "quiet", "no-progress")

    examples = ["bench --quick", "bench --ops matmul --peers --json bench.json", "bench --limits"]
    bench = new_command(
        commands, "bench", _bench, "compare the speed of operations with NumPy and this machine's limits", examples
    )
    bench.add_argument("--limits", action="store_true", help="measure only the machine: multiply-adds, reads, copies")
    bench.add_argument(
        "--ops",
        nargs="+",
        choices=benchmark.OPERATIONS,
        default=tuple(benchmark.OPERATIONS),
        metavar="OP",
        help=f"any of {', '.join(benchmark.OPERATIONS)} (default: all)",
    )
    bench.add_argument("--quick", action="store_true", help="take three samples of each, to see whether it runs")
    bench.add_argument("--peers", action="store_true", help="compare with other installed libraries too")
    options.add(bench, "json", "plot", "threads", "quiet")

    vectors.add_command(commands)
    completion.add_command(commands, parser)
    about.add_commands(commands, parser)
    for action in completion.actions_of(parser):
        if completion.is_path(action) and action.type is None:
            action.type = path
    return parser


_EPILOG = """\
examples:
  $ mp-core info                                  this machine
  $ mp-core demo                                  speed, memory and quality
  $ mp-core convert MODEL -o small --policy int8  a smaller model and its errors
  $ mp-core embed small news.txt > vectors.jsonl  texts in, vectors out

mp-core help COMMAND shows the options of a command; mp-core help policies
lists the policies."""


def _info(arguments: argparse.Namespace) -> int:
    options.check_outputs(arguments)
    if arguments.plan:
        found = product_plan.described(arguments)
        options.show(arguments, found, lambda: product_plan.text(found))
    else:
        report = config.show_config(as_dict=True)
        options.show(arguments, report, lambda: "\n".join(outline(report)))
    return DONE


def _demo(arguments: argparse.Namespace) -> int:
    options.check_outputs(arguments)
    shown = options.shows_progress(arguments)
    report = demo.run(arguments.policies, threads=arguments.threads, show_progress=shown)
    options.show(arguments, report, lambda: demo.table(report))
    for failure in report["failed"]:
        print(f"mp-core: failed: {failure}", file=sys.stderr)
    return FAILED if report["failed"] else DONE


def _bench(arguments: argparse.Namespace) -> int:
    options.check_outputs(arguments)
    if arguments.plot is not None:
        benchmark.check_plots()
    threads, quick = config.get_num_threads(), arguments.quick
    if options.prints_text(arguments):
        print(f"version {mp_core.__version__}, isa {config.isa()}, threads {threads}", flush=True)
    if arguments.limits:
        rows = benchmark.limits(quick=quick)
    else:
        rows = benchmark.run(arguments.ops, quick=quick, peers=arguments.peers)
    report = benchmark.Report.here("mp-core bench")
    for record in benchmark.records_of(rows, threads):
        report.add(record)
    options.show(arguments, report.as_dict(), lambda: benchmark.table(rows))
    if arguments.plot is not None:
        benchmark.plot(report, arguments.plot)
    return DONE
