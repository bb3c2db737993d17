"""``mp-core convert``, ``inspect`` and ``verify``: write, list and compare checkpoints."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mp_core.cli import calibrated, demo, finite_outputs, graphs, options, reports
from mp_core.cli.common import DONE, FAILED, finite, printable
from mp_core.cli.grammar import new_command
from mp_core.cli.policies import stored_map, stored_policy
from mp_core.files import checkpoint
from mp_core.files.checkpoint import Threshold
from mp_core.files.checkpoint.conversion import LAYOUTS_TO
from mp_core.models.architectures import ARCHITECTURES
from mp_core.models.folder import read_optional
from mp_core.utilities.patterns import matcher
from mp_core.utilities.suggest import refusal

__all__ = ["add_commands"]

_SOURCE = "safetensors file, shard index, or folder of a model"
_OTHER_FORMATS = {
    ".bin": "a PyTorch file",
    ".ckpt": "a checkpoint of another program",
    ".gguf": "a GGUF file",
    ".h5": "an HDF5 file",
    ".keras": "a Keras file",
    ".npz": "a NumPy archive",
    ".onnx": "an ONNX file",
    ".pt": "a PyTorch file",
    ".pth": "a PyTorch file",
}
"""Suffix -> the kind of file, for an error about OUT."""


def add_commands(commands: Any) -> None:
    """Add `convert`, `inspect` and `verify` to the program."""
    _add_convert(commands)
    examples = ["inspect MODEL", "inspect MODEL --all", "inspect model.safetensors --json", "inspect model.onnx"]
    summary = "list the tensors of a checkpoint and the range of their values, or the operators of an ONNX file"
    inspect = new_command(commands, "inspect", _inspect, summary, examples)
    options.add_model(inspect, f"{_SOURCE}, or ONNX file")
    options.add(inspect, "all", "json", "threads", "quiet", "no-progress")

    examples = [
        "verify MODEL OTHER",
        "verify MODEL OTHER --rtol 0.01 --json report.json",
        "verify model.onnx FOLDER --inputs inputs.npz",
    ]
    verify = new_command(commands, "verify", _verify, "compare two checkpoints, or two graphs", examples)
    options.add_model(verify, f"{_SOURCE}, or graph")
    verify.add_argument("other", metavar="OTHER", help="the checkpoint to compare with MODEL")
    verify.add_argument(
        "--rtol",
        type=finite,
        default=0.0,
        metavar="R",
        help="exit with 1 if the RMS difference of a tensor exceeds R times the tensor's RMS (default: 0)",
    )
    options.add(verify, "inputs", "all", "json", "threads", "quiet", "no-progress")


def _add_convert(commands: Any) -> None:
    summary = "write a checkpoint in a smaller type and report the errors"
    examples = (
        "convert MODEL -o small --policy int8",
        "convert MODEL -o small --policy int4/64 --fail-if 'sqnr<20'",
        "convert MODEL -o small --policy int8 --calibrate news.txt",
        "convert MODEL -o small --policy float16 --verify news.txt",
    )
    convert = new_command(commands, "convert", _convert, summary, examples)
    options.add_model(convert, _SOURCE)
    options.add(convert, "output", required=True, help="file or folder to write")
    options.add(convert, "policy", type=stored_policy, help="policy, such as int8; `mp-core help policies` lists all")
    convert.add_argument(
        "--map",
        action="append",
        default=[],
        type=_mapping,
        metavar="REGEX=POLICY|FILE",
        help="use POLICY for tensors whose names match (first match wins), or the map that "
        "`mp-core choose --output NAME.json` wrote",
    )
    convert.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="REGEX",
        type=_checked(partial(matcher, how="search")),
        help="do not convert tensors whose names match",
    )
    convert.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="do not copy files whose paths match, such as '*.txt'; weights in other formats are never copied",
    )
    convert.add_argument(
        "--calibrate",
        nargs="+",
        metavar="FILE",
        help="sample texts, one per line: quantize an encoder for the layer inputs that they cause",
    )
    convert.add_argument(
        "--held-out",
        nargs="+",
        default=[],
        metavar="FILE",
        help="more texts for --calibrate: use their input ranges too if that improves the worst output",
    )
    convert.add_argument(
        "--saturate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="clamp values that overflow instead of storing infinity (default: clamp)",
    )
    convert.add_argument(
        "--to",
        choices=LAYOUTS_TO,
        default=LAYOUTS_TO[0],
        help="whose layout the codes in OUT have: transformers opens a folder of compressed-tensors (default: mp_core)",
    )
    options.add(convert, "force")
    convert.add_argument("--dry-run", action="store_true", help="report types and sizes, write nothing")
    convert.add_argument(
        "--max-memory",
        type=_size,
        metavar="SIZE",
        help=f"memory that the process may use (default: {checkpoint.MAX_MEMORY >> 20}MiB)",
    )
    convert.add_argument(
        "--fail-if",
        action="append",
        default=[],
        type=_checked(Threshold.parse),
        metavar="CONDITION",
        help="condition such as 'sqnr<30': write nothing and exit with 1 if it is true for a tensor",
    )
    convert.add_argument(
        "--verify",
        nargs="+",
        metavar="FILE",
        help="run OUT on these texts, one per line; exit with 1 if an output is infinite or NaN",
    )
    options.add(convert, "inputs")
    convert.add_argument("--allow-requantize", action="store_true", help="quantize tensors that are quantized already")
    options.add(convert, "all", "json", "threads", "quiet", "no-progress")


def _checked(parse: Callable[[str], Any]) -> Callable[[str], str]:
    """Return an argument type: text that `parse` accepts, unchanged."""

    def check(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return text

    return check


def _mapping(text: str) -> tuple[str, str] | str:
    """Read REGEX=POLICY as (pattern, policy), or return the name of a file."""
    pattern, equals, policy = text.rpartition("=")
    if Path(text).is_file():
        return text
    if not equals:
        raise argparse.ArgumentTypeError(refusal(text, "must be REGEX=POLICY or an existing file"))
    return _checked(partial(matcher, how="search"))(pattern), stored_policy(policy)


def _policies(arguments: argparse.Namespace) -> tuple[str, list[tuple[str, str]]]:
    """Return the default policy of a conversion and (pattern, policy) pairs."""
    policy, pairs = arguments.policy, []
    for mapping in arguments.map:
        if isinstance(mapping, str):
            default, mapped = stored_map(mapping, arguments.model)
            policy = policy or default
            pairs += mapped
        else:
            pairs.append(mapping)
    if policy is None:
        raise argparse.ArgumentError(None, "one of the arguments --policy and --map FILE is required")
    return policy, pairs


def _size(text: str) -> int:
    """Read a number of bytes with an optional unit."""
    found = re.fullmatch(r"([0-9]{1,15})\s*(?:([kmgt])(i?))?b?", text, re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(refusal(text, "must be a number of bytes such as 512MiB or 2GB"))
    size: int = int(found[1]) * (1024 if found[3] else 1000) ** (" kmgt".index((found[2] or " ").lower()))
    return size


def _convert(arguments: argparse.Namespace) -> int:
    if graphs.is_conversion(arguments):
        return graphs.convert(arguments)
    _refuse_inputs(arguments)
    texts = [*(arguments.calibrate or ()), *arguments.held_out, *(arguments.verify or ())]
    options.check_outputs(arguments, _path_of(arguments.model), arguments.output, *texts)
    if arguments.held_out and not arguments.calibrate:
        raise argparse.ArgumentError(None, "argument --held-out: not allowed without argument --calibrate")
    _check_format(arguments.output)
    if arguments.verify and (arguments.dry_run or not Path(arguments.model).is_dir()):
        reason = "not allowed with argument --dry-run" if arguments.dry_run else "MODEL must be a folder"
        raise argparse.ArgumentError(None, f"argument --verify: {reason}")
    policy, pairs = _policies(arguments)
    report = (calibrated.convert if arguments.calibrate else _convert_streamed)(arguments, policy, pairs)
    if arguments.verify and not report["failed"]:
        report["failed"] = finite_outputs.failures(arguments)
    options.show(arguments, report, lambda: "\n".join(_conversion_text(arguments, report)))
    return _exit_code(report)


def _refuse_inputs(arguments: argparse.Namespace) -> None:
    if arguments.inputs is not None:
        raise argparse.ArgumentError(None, "argument --inputs: not allowed unless MODEL is a graph")


def _path_of(model: str) -> str:
    """Return the file of a model; for an index of shards, the folder of the shards."""
    return os.path.dirname(model) or os.curdir if model.endswith(".safetensors.index.json") else model


def _check_format(output: str) -> None:
    """Raise if the suffix of OUT belongs to a format that this program does not write."""
    suffix = Path(output).suffix.lower()
    if suffix in _OTHER_FORMATS:
        reason = (
            f"{output} is {_OTHER_FORMATS[suffix]}, which mp_core does not write; use a folder or a .safetensors file"
        )
        raise argparse.ArgumentError(None, f"argument -o/--output: {reason}")


def _conversion_text(arguments: argparse.Namespace, report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that report a conversion."""
    yield (reports.sizes if arguments.dry_run else reports.losses)(report, every=arguments.all)
    if report["left_out"]:
        yield f"left out: {', '.join(map(printable, report['left_out']))}"
    if report["codes"] and arguments.to != LAYOUTS_TO[0]:
        yield f"{report['codes']} tensors are codes of {arguments.to}, which transformers opens if that is installed"
    elif report["codes"]:
        undo = "Undo with convert --policy float32"
        yield f"{report['codes']} tensors are stored as codes; other programs cannot read them. {undo}"
    if (kind := _unknown_network(Path(arguments.model))) is not None:
        yield f"mp_core cannot run model_type {printable(kind)}; it runs {', '.join(ARCHITECTURES)}"


def _unknown_network(folder: Path) -> str | None:
    """Return the model_type in a folder's config.json if mp_core cannot run that architecture, else None."""
    path = folder / "config.json"
    try:
        config = read_optional(path)
    except (OSError, ValueError):  # a conversion copies the file even if it is damaged
        return None
    kind = config.get("model_type")
    return None if kind is None or (isinstance(kind, str) and kind in ARCHITECTURES) else str(kind)


def _convert_streamed(arguments: argparse.Namespace, policy: str, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    max_memory = checkpoint.MAX_MEMORY if arguments.max_memory is None else arguments.max_memory
    return checkpoint.convert(
        arguments.model,
        arguments.output,
        policy,
        map=pairs,
        keep=arguments.keep,
        exclude=arguments.exclude,
        saturate=arguments.saturate,
        force=arguments.force,
        dry_run=arguments.dry_run,
        max_memory=_memory_left(max_memory),
        fail_if=arguments.fail_if,
        allow_requantize=arguments.allow_requantize,
        to=arguments.to,
        show_progress=options.shows_progress(arguments),
    )


def _inspect(arguments: argparse.Namespace) -> int:
    options.check_outputs(arguments, _path_of(arguments.model))
    if arguments.model.lower().endswith(".onnx"):
        graph = graphs.contents(arguments.model)
        options.show(arguments, graph, lambda: "\n".join(graphs.contents_text(graph)))
        return DONE
    report = checkpoint.inspect(arguments.model, show_progress=options.shows_progress(arguments))
    options.show(arguments, report, lambda: "\n".join(reports.contents(report, every=arguments.all)))
    return DONE


def _verify(arguments: argparse.Namespace) -> int:
    options.check_outputs(arguments, _path_of(arguments.model), _path_of(arguments.other))
    if graphs.is_graph(arguments.model) and graphs.is_graph(arguments.other):
        found = graphs.verify(arguments)
        options.show(arguments, found, lambda: graphs.losses_text(found, arguments.model, arguments))
        return _exit_code(found)
    _refuse_inputs(arguments)
    report = checkpoint.verify(
        arguments.model, arguments.other, rtol=arguments.rtol, show_progress=options.shows_progress(arguments)
    )
    options.show(arguments, report, lambda: reports.losses(report, every=arguments.all))
    return _exit_code(report)


def _memory_left(max_memory: int) -> int:
    """Return `max_memory` less the memory that the process uses already."""
    left = max_memory - demo.peak_rss_bytes()
    if left < checkpoint.MIN_MEMORY:
        needed = -(-(max_memory - left + checkpoint.MIN_MEMORY) // 2**20)
        raise argparse.ArgumentError(None, f"argument --max-memory: must be at least {needed}MiB here")
    return left


def _exit_code(report: Mapping[str, Any]) -> int:
    """Print the failures of a report; return the exit code."""
    for failure in report["failed"]:
        print(f"mp-core: failed: {printable(failure)}", file=sys.stderr)
    return FAILED if report["failed"] else DONE
