"""The ``mp-core`` command: results go to stdout, progress and one-line errors to stderr.

Exit codes: 0 done, 1 a check failed, 2 wrong usage, 3 missing, unreadable or corrupt input, 130 interrupted,
141 the reader closed the pipe.
"""

import argparse
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

import mp_core
from mp_core import config, demo, dtype_policies, selection
from mp_core.models import BertEncoder

__all__ = ["main"]

DONE, FAILED, USAGE, BAD_INPUT, INTERRUPTED, CLOSED_PIPE = 0, 1, 2, 3, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments without the program's name; those of the process by default.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    if sys.stdout is None:  # the process started with it closed
        return CLOSED_PIPE
    try:
        config.get_num_threads()
    except ValueError as error:  # of MP_CORE_NUM_THREADS
        parser.error(str(error))
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more when it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except (argparse.ArgumentError, NotImplementedError, TypeError) as error:
        parser.error(str(error))
    except (OSError, ValueError, ImportError) as error:
        print(f"{parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT
    return code


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors take one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="mp-core", description="Mixed-precision numerics on CPUs.")
    parser.add_argument("--version", action="version", version=f"mp-core {mp_core.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    info = commands.add_parser("info", help="report versions, CPU features, the kernels in use and the threads")
    info.add_argument("--json", action="store_true", help="write one JSON object")
    info.set_defaults(run=_info)

    embed = commands.add_parser("embed", help="embed texts, one a line, with a model from a folder")
    embed.add_argument("files", nargs="*", metavar="FILE", help="UTF-8 text; standard input if none is given, or for -")
    embed.add_argument("--model", required=True, metavar="DIR", help="folder with config.json and model.safetensors")
    embed.add_argument("--policy", type=_policy, default="float32", help="dtype policy (default: %(default)s)")
    embed.add_argument("--batch-size", type=_positive, default=32, metavar="N", help="default: %(default)s")
    embed.add_argument("--output", metavar="FILE", help="default: standard output")
    embed.add_argument("--format", choices=_WRITERS, help="default: by the suffix of --output, else jsonl")
    embed.set_defaults(run=_embed)

    choose = commands.add_parser("choose", help="find the cheapest policies under which embeddings stay good")
    choose.add_argument("model", metavar="DIR", help="folder with config.json and model.safetensors")
    choose.add_argument("--texts", nargs="+", required=True, metavar="FILE", help="the sample, one text a line")
    choose.add_argument("--max-error", type=_budget, required=True, metavar="E", help="the most that --metric may be")
    choose.add_argument("--metric", choices=selection.METRICS, default="max", help="default: %(default)s")
    choose.add_argument("--policies", nargs="+", type=_policy, metavar="POLICY", help="default: all there are")
    choose.add_argument("--json", action="store_true", help="write one JSON object")
    choose.set_defaults(run=_choose)

    demonstration = commands.add_parser("demo", help="a real model under several policies: speed, memory, quality")
    demonstration.add_argument("--policies", nargs="+", type=_policy, default=demo.POLICIES, metavar="POLICY")
    demonstration.add_argument("--threads", type=_positive, metavar="N", help="default: as `mp-core info` says")
    demonstration.add_argument("--json", metavar="FILE", help="write the table here too")
    demonstration.set_defaults(run=_demo)
    return parser


def _policy(name: str) -> str:
    """Check a policy's name; ``int8`` alone means the demo's int8 policy."""
    name = demo.ALIASES.get(name, name)
    try:
        compute_dtype = dtype_policies.get(name).compute_dtype
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if "float" not in compute_dtype:
        raise argparse.ArgumentTypeError(
            f"must compute in a floating-point dtype; {name!r} computes in {compute_dtype}"
        )
    return name


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1; received {text!r}")
    return number


def _budget(text: str) -> float:
    try:
        budget = float(text)
    except ValueError:
        budget = math.nan
    if not 0 <= budget < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number of at least 0; received {text!r}")
    return budget


def _info(arguments: argparse.Namespace) -> int:
    report = config.show_config(as_dict=True)
    print(json.dumps(report, indent=2) if arguments.json else "\n".join(_lines(report)))
    return DONE


def _lines(report: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Yield a report as aligned ``key  value`` lines, nested reports below their key."""
    width = max(map(len, report), default=0)
    for key, value in report.items():
        if isinstance(value, dict):
            yield f"{indent}{key}"
            yield from _lines(value, indent + "  ")
        else:
            text = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
            yield f"{indent}{key:{width}}  {text}"


def _embed(arguments: argparse.Namespace) -> int:
    suffix = Path(arguments.output or "").suffix[1:]
    chosen = arguments.format or (suffix if suffix in _WRITERS else "jsonl")
    if chosen == "npy" and not arguments.output and sys.stdout.isatty():
        raise argparse.ArgumentError(None, "npy is binary: redirect standard output or give --output")
    encoder = BertEncoder.from_folder(arguments.model, arguments.policy)
    texts = list(_read_texts(arguments.files or ["-"]))
    embeddings = encoder.encode(texts, batch_size=arguments.batch_size, show_progress=sys.stderr.isatty())
    if arguments.output:
        with open(arguments.output, "wb") as stream:
            _WRITERS[chosen](stream, texts, embeddings)
    else:
        _WRITERS[chosen](sys.stdout.buffer, texts, embeddings)
    return DONE


def _read_texts(names: list[str]) -> Iterator[str]:
    """Yield the lines of the named files, of standard input for ``-``."""
    for name in names:
        standard = name == "-"
        try:
            with open(0 if standard else name, encoding="utf-8-sig", newline="\n", closefd=not standard) as lines:
                yield from (line.removesuffix("\n").removesuffix("\r") for line in lines)
        except UnicodeDecodeError as error:
            raise ValueError(f"{'standard input' if standard else name} is not UTF-8 text: {error}") from error


def _write_npy(stream: BinaryIO, texts: list[str], embeddings: np.ndarray[Any, Any]) -> None:
    buffer = io.BytesIO()  # numpy.save asks a file for its position, which a pipe does not have
    np.save(buffer, embeddings)
    stream.write(buffer.getbuffer())


def _write_jsonl(stream: BinaryIO, texts: list[str], embeddings: np.ndarray[Any, Any]) -> None:
    for text, row in zip(texts, embeddings, strict=True):
        # str() of a float32 is its shortest exact decimal; json would write the digits of the float64.
        stream.write(f'{{"text": {json.dumps(text)}, "embedding": [{", ".join(map(str, row))}]}}\n'.encode())


def _write_tsv(stream: BinaryIO, texts: list[str], embeddings: np.ndarray[Any, Any]) -> None:
    for row in embeddings:
        stream.write(("\t".join(map(str, row)) + "\n").encode())


_WRITERS: dict[str, Callable[[BinaryIO, list[str], np.ndarray[Any, Any]], None]] = {
    "npy": _write_npy,
    "jsonl": _write_jsonl,
    "tsv": _write_tsv,
}


def _choose(arguments: argparse.Namespace) -> int:
    choice = selection.choose_policy(
        BertEncoder.from_folder(arguments.model),
        list(_read_texts(arguments.texts)),
        max_error=arguments.max_error,
        metric=arguments.metric,
        policies=arguments.policies,
        show_progress=sys.stderr.isatty(),
    )
    report = asdict(choice) | {"map": dtype_policies.serialize(choice.map)}
    print(json.dumps(report, indent=2) if arguments.json else choice)
    return DONE


def _demo(arguments: argparse.Namespace) -> int:
    report = demo.run(arguments.policies, threads=arguments.threads, show_progress=sys.stderr.isatty())
    print(demo.table(report))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for failure in report["failed"]:
        print(f"mp-core: failed: {failure}", file=sys.stderr)
    return FAILED if report["failed"] else DONE
