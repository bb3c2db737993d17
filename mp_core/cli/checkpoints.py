"""``mp-core convert``, ``inspect`` and ``verify``: safetensors files."""

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf, isnan
from pathlib import Path
from typing import Any

from mp_core import checkpoint, demo
from mp_core.checkpoint import Threshold
from mp_core.cli import calibrated
from mp_core.cli.common import DONE, FAILED, as_json, check_output, positive, printable, write_json
from mp_core.cli.policies import stored_map, stored_policy
from mp_core.dtype_policies import SPELLINGS
from mp_core.dtypes import WIDE
from mp_core.models.architectures import ARCHITECTURES
from mp_core.models.folder import read_object
from mp_core.patterns import matcher
from mp_core.tables import aligned

__all__ = ["add_commands"]

_WORST = 5
_LONGEST = 200


def add_commands(commands: Any) -> None:
    """Add the commands to the program's."""
    _add_convert(commands)
    inspect = commands.add_parser("inspect", help="list the tensors of a checkpoint and what their values are like")
    inspect.add_argument("file", metavar="FILE", help="safetensors file, shard index, or folder of a model")
    inspect.add_argument("--json", action="store_true", help="write one JSON object")
    inspect.set_defaults(run=_inspect)

    verify = commands.add_parser("verify", help="compare two checkpoints")
    verify.add_argument("a", metavar="A", help="safetensors file, shard index, or folder of a model")
    verify.add_argument("b", metavar="B", help="what is compared with it")
    verify.add_argument(
        "--rtol",
        type=_tolerance,
        default=0.0,
        metavar="R",
        help="exit with 1 if the RMS of a tensor's differences exceeds R times its own (default: 0)",
    )
    verify.add_argument("--json", action="store_true", help="write one JSON object")
    verify.set_defaults(run=_verify)


def _add_convert(commands: Any) -> None:
    convert = commands.add_parser("convert", help="write a checkpoint in a smaller type and report what that costs")
    convert.add_argument("source", metavar="IN", help="safetensors file, shard index, or folder of a model")
    convert.add_argument("-o", "--output", required=True, metavar="OUT", help="a file or a folder")
    convert.add_argument(
        "--policy",
        type=stored_policy,
        help=f"{', '.join(WIDE)}, {', '.join(SPELLINGS)}, or the name of a policy, as int8_from_mixed_float16",
    )
    convert.add_argument(
        "--map",
        action="append",
        default=[],
        type=_mapping,
        metavar="REGEX=POLICY|FILE",
        help="another policy for names that match, the first match counts; or a map of `choose --output NAME.json`",
    )
    convert.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="REGEX",
        type=_checked(partial(matcher, how="search")),
        help="leave tensors whose names match as they are",
    )
    convert.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave out files whose paths end so, such as '*.txt', as weights in other forms are anyway",
    )
    convert.add_argument(
        "--calibrate",
        nargs="+",
        metavar="FILE",
        help="texts, one a line: fit the layers of the encoder IN to the inputs that these give them",
    )
    convert.add_argument(
        "--saturate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="clamp what overflows instead of making it infinite (default: yes)",
    )
    convert.add_argument("--force", action="store_true", help="replace OUT")
    convert.add_argument("--dry-run", action="store_true", help="report types and sizes, write nothing")
    convert.add_argument(
        "--max-memory",
        type=_size,
        metavar="SIZE",
        help=f"default: {checkpoint.MAX_MEMORY >> 20}MiB",
    )
    convert.add_argument("--threads", type=positive, metavar="N", help="default: as `mp-core info` says")
    convert.add_argument("--report", metavar="FILE", help="write the report as JSON")
    convert.add_argument(
        "--fail-if",
        action="append",
        default=[],
        type=_checked(Threshold.parse),
        metavar="CONDITION",
        help="such as 'sqnr<30': write nothing and exit with 1 if a tensor meets it",
    )
    convert.add_argument("--allow-requantize", action="store_true", help="quantize what is quantized already")
    convert.add_argument("--quiet", action="store_true", help="print neither table nor progress")
    convert.add_argument("--no-progress", action="store_true", help="print no progress")
    convert.set_defaults(run=_convert)


def _checked(parse: Callable[[str], Any]) -> Callable[[str], str]:
    """Return a type of argument that is text which `parse` accepts."""

    def check(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return text

    return check


def _mapping(text: str) -> tuple[str, str] | str:
    """Return a pattern and its policy, or the name of a file."""
    pattern, equals, policy = text.rpartition("=")
    if Path(text).is_file():
        return text
    if not equals:
        raise argparse.ArgumentTypeError(f"must be REGEX=POLICY or a file that is there; received {text!r}")
    return _checked(partial(matcher, how="search"))(pattern), stored_policy(policy)


def _policies(arguments: argparse.Namespace) -> tuple[str, list[tuple[str, str]]]:
    """Return the policy of a conversion and those of patterns."""
    policy, pairs = arguments.policy, []
    for mapping in arguments.map:
        if isinstance(mapping, str):
            default, mapped = stored_map(mapping, arguments.source)
            policy = policy or default
            pairs += mapped
        else:
            pairs.append(mapping)
    if policy is None:
        raise argparse.ArgumentError(None, "one of the arguments --policy and --map FILE is required")
    return policy, pairs


def _size(text: str) -> int:
    """Read bytes with a unit."""
    found = re.fullmatch(r"(\d{1,15})\s*(?:([kmgt])(i?))?b?", text, re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"must be a number of bytes such as 512MiB or 2GB; received {text!r}")
    size: int = int(found[1]) * (1024 if found[3] else 1000) ** (" kmgt".index((found[2] or " ").lower()))
    return size


def _tolerance(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0; received {text!r}")
    return number


def _convert(arguments: argparse.Namespace) -> int:
    if arguments.report is not None:
        source = Path(arguments.source)
        is_index = source.name.endswith(".safetensors.index.json")
        texts = map(Path, arguments.calibrate or ())
        _check_report(arguments.report, source.parent if is_index else source, Path(arguments.output), *texts)
    policy, pairs = _policies(arguments)
    report = (calibrated.convert if arguments.calibrate else _streamed)(arguments, policy, pairs)
    if not arguments.quiet:
        print(_sizes(report) if arguments.dry_run else _losses(report))
        if report["left_out"]:
            print(f"left out: {', '.join(map(printable, report['left_out']))}")
        if report["codes"]:
            undo = "Undo with convert --policy float32"
            print(f"{report['codes']} tensors are stored as codes; other programs cannot read them. {undo}")
        if (kind := _unknown_network(Path(arguments.source))) is not None:
            runs = f"embed, choose and its models run {', '.join(ARCHITECTURES)}"
            print(f"mp_core has no network for model_type {printable(kind)}: {runs}")
    if arguments.report is not None:
        write_json(arguments.report, report)
    return _judged(report)


def _unknown_network(folder: Path) -> str | None:
    """Return the architecture that the configuration in a folder names, if mp_core has no network of that name."""
    path = folder / "config.json"
    try:
        config = read_object(path) if path.exists() else {}
    except (OSError, ValueError):  # a conversion copies it, whatever it holds
        return None
    kind = config.get("model_type")
    return None if kind is None or (isinstance(kind, str) and kind in ARCHITECTURES) else str(kind)


def _streamed(arguments: argparse.Namespace, policy: str, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    max_memory = checkpoint.MAX_MEMORY if arguments.max_memory is None else arguments.max_memory
    return checkpoint.convert(
        arguments.source,
        arguments.output,
        policy,
        map=pairs,
        keep=arguments.keep,
        exclude=arguments.exclude,
        saturate=arguments.saturate,
        force=arguments.force,
        dry_run=arguments.dry_run,
        max_memory=_beyond_own(max_memory),
        threads=arguments.threads,
        fail_if=arguments.fail_if,
        allow_requantize=arguments.allow_requantize,
        show_progress=_shows(arguments),
    )


def _check_report(report: str, *others: Path) -> None:
    """Raise before the conversion if the report would be lost after it, or would overwrite what it is about."""
    check_output("--report", report)
    path = Path(os.path.realpath(report))
    for other in others:
        if Path(os.path.realpath(other)) in (path, *path.parents):
            raise argparse.ArgumentError(None, f"argument --report: {report} is {other}, or in it")


def _inspect(arguments: argparse.Namespace) -> int:
    report = checkpoint.inspect(arguments.file, show_progress=sys.stderr.isatty())
    print(as_json(report) if arguments.json else "\n".join(_contents(report)))
    return DONE


def _verify(arguments: argparse.Namespace) -> int:
    report = checkpoint.verify(arguments.a, arguments.b, rtol=arguments.rtol, show_progress=sys.stderr.isatty())
    print(as_json(report) if arguments.json else _losses(report))
    return _judged(report)


def _beyond_own(max_memory: int) -> int:
    """Return what the process, which is to stay below `max_memory`, has left."""
    left = max_memory - demo.peak_rss_bytes()
    if left < checkpoint.MIN_MEMORY:
        needed = -(-(max_memory - left + checkpoint.MIN_MEMORY) // 2**20)
        raise argparse.ArgumentError(None, f"argument --max-memory: must be at least {needed}MiB here")
    return left


def _shows(arguments: argparse.Namespace) -> bool:
    return sys.stderr.isatty() and not (arguments.quiet or arguments.no_progress)


def _judged(report: Mapping[str, Any]) -> int:
    for failure in report["failed"]:
        print(f"mp-core: failed: {printable(failure)}", file=sys.stderr)
    return FAILED if report["failed"] else DONE


def _head(row: Mapping[str, Any]) -> list[str]:
    shape = " x ".join(map(str, row["shape"]))
    new = row.get("new_dtype", row["dtype"])
    sizes = [f"{row[key] / 1e6:.3f}" for key in ("bytes", "new_bytes") if key in row]
    return [
        _short(printable(row["name"])),
        shape,
        row["dtype"] if new == row["dtype"] else f"{row['dtype']} > {new}",
        *sizes,
    ]


def _short(name: str) -> str:
    """Return a name as a column has room for it: all rows are as long as the longest."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST // 2]}...{name[-_LONGEST // 2 :]}"


_HEAD = ["tensor", "shape", "type", "MB", "new MB"]
_MEASURES: dict[str, Callable[[Any], str]] = {
    "sqnr": lambda value: "exact" if value == inf else f"{value:.1f}",
    "rel_rmse": "{:.2e}".format,
    "max_abs_error": "{:.2e}".format,
    "cosine": "{:.6f}".format,
    "overflow": str,
    "flushed": str,
    "nan": str,
}


def _sizes(report: Mapping[str, Any]) -> str:
    return "\n".join([aligned([_HEAD, *map(_head, report["tensors"])]), *_total(report)])


def _losses(report: Mapping[str, Any]) -> str:
    """Return the measures of every tensor, and once more those that have lost most."""

    def lines(rows: Sequence[Mapping[str, Any]]) -> str:
        heads = [*_HEAD, "SQNR dB", "rel RMSE", "max error", "cosine", "overflow", "flushed", "NaN"]
        return aligned([heads, *([*_head(row), *(form(row[key]) for key, form in _MEASURES.items())] for row in rows)])

    rows = report["tensors"]
    lossy = (row for row in rows if row["sqnr"] != inf)
    worst = sorted(lossy, key=lambda row: -inf if isnan(row["sqnr"]) else row["sqnr"])[:_WORST]
    parts = [lines(rows), *_total(report)]
    return "\n".join([*parts, "", "worst:", lines(worst)] if len(rows) > _WORST and worst else parts)


def _total(report: Mapping[str, Any]) -> list[str]:
    old, new = (sum(row[key] for row in report["tensors"]) / 1e6 for key in ("bytes", "new_bytes"))
    return ["", f"{len(report['tensors'])} tensors: {old:.1f} MB > {new:.1f} MB"]


def _contents(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of an inspection."""
    heads = ["tensor", "shape", "type", "MB", "max abs", "> 65504", "< 2^-14", "inf", "NaN"]
    counts = ("above_float16", "below_float16", "infinite", "nan")
    rows = report["tensors"]
    yield aligned(
        [heads, *([*_head(row), f"{row['max_abs']:.4g}", *(str(row[key]) for key in counts)] for row in rows)]
    )
    yield f"\n{len(rows)} tensors: {report['bytes'] / 1e6:.1f} MB"
    for tool, number in Counter(row["tool"] for row in rows if row["tool"]).items():
        yield f"{number} tensors are of {printable(tool)}, whose codes mp_core cannot read: taken as numbers here"
    foreign = [row["name"] for row in rows if row["quantization"] and "blocks" in row["quantization"]]
    if foreign:
        yield f"{len(foreign)} tensors are float8 with scales of another tool, and count as the numbers they stand for"
    if report["left_out"]:
        yield f"left out: {', '.join(map(printable, report['left_out']))}"
    for file, metadata in report["metadata"].items():
        for key, value in metadata.items():
            if key != checkpoint.QUANTIZATION:
                yield f"{printable(file)}: {printable(key)} = {printable(value)}"
