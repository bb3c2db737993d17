"""``mp-core profile``: the time of each operation of a forward pass, and how close it is to the machine's limit."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.cli import graphs, options
from mp_core.cli.benchmark import Limit, measure
from mp_core.cli.common import DONE, positive, printable
from mp_core.cli.grammar import new_command
from mp_core.files.checkpoint.output import new_file
from mp_core.layers.plans import ForwardPlan, Operation
from mp_core.models import TextEncoder
from mp_core.policies import config
from mp_core.utilities.extras import needed_by
from mp_core.utilities.suggest import refusal

__all__ = ["add_command", "rows_of", "table"]


def add_command(commands: Any) -> None:
    """Add `profile` to the program."""
    examples = "profile MODEL", "profile MODEL --policy int8 --batch-size 1 --plot profile.svg"
    summary = "show how long each operation of an encoder or of an ONNX file takes"
    command = new_command(commands, "profile", _profile, summary, examples)
    options.add_model(command, "folder of an encoder or of a program, or ONNX file")
    options.add(command, "policy")
    command.add_argument(
        "--batch-size",
        type=positive,
        default=8,
        metavar="N",
        help="number of texts, or an unknown first length of a graph (default: 8)",
    )
    command.add_argument(
        "--length",
        type=positive,
        default=64,
        metavar="N",
        help="tokens per text, or other unknown lengths of a graph (default: 64)",
    )
    options.add(command, "json", "plot", "threads", "quiet")


def _profile(arguments: argparse.Namespace) -> int:
    options.check_outputs(arguments, arguments.model)
    model, inputs, what = (_graph if graphs.is_graph(arguments.model) else _encoder)(arguments)
    rows = rows_of(ForwardPlan(model, inputs, {}).profile(repeat=20))
    report: dict[str, Any] = {"isa": config.isa(), "threads": config.get_num_threads(), "rows": rows}
    report |= {"batch": arguments.batch_size, "length": arguments.length, "policy": model.dtype_policy.name}
    total = sum(row["seconds"] for row in rows)
    threads = f"{report['threads']} thread{'s' * (report['threads'] > 1)}"
    heading = f"{what}, {report['policy']}, {report['isa']}, {threads}: {total * 1e3:.3g} ms"
    options.show(arguments, report, lambda: f"{heading}\n{table(rows)}")
    if arguments.plot is not None:
        _plot(Path(arguments.plot), rows)
    return DONE


def _encoder(arguments: argparse.Namespace) -> tuple[Any, tuple[Array, ...], str]:
    """Return the network of an encoder, its inputs, and what they are."""
    options.check_model(arguments)
    encoder = TextEncoder.from_folder(arguments.model, arguments.policy)
    if arguments.length > encoder.max_length:
        reason = refusal(str(arguments.length), f"must be at most {encoder.max_length}")
        raise argparse.ArgumentError(None, f"argument --length: {reason}")
    texts = f"{arguments.batch_size} text{'s' * (arguments.batch_size > 1)} of {arguments.length} tokens"
    return encoder.model, (np.ones((arguments.batch_size, arguments.length), np.int32),), texts


def _graph(arguments: argparse.Namespace) -> tuple[Any, tuple[Array, ...], str]:
    """Return the model of a graph, its inputs, and what they are."""
    model = graphs.opened(arguments.model, arguments.policy)
    inputs = graphs.examples_for(model, arguments.batch_size, arguments.length)
    shapes = (f"{name} {x.shape}" for name, x in zip(model.input_names, inputs, strict=True))
    return model, tuple(inputs), printable(", ".join(shapes))


def rows_of(operations: list[Operation]) -> list[dict[str, Any]]:
    """Sum operations by name, slowest first, with the least time that this machine needs for them.

    limit = max(multiplications / rate of multiply-adds in registers, bytes moved / read rate of the L2 cache); both
    rates are measured now. Only products have multiplications.
    """
    kinds = {op.arithmetic for op in operations if op.arithmetic is not None}
    limits = {kind: Limit.multiply(kind) for kind in kinds} | {"read": Limit.read(1 << 18)}
    taken = measure({name: limit.timer for name, limit in limits.items()})
    each = {name: min(taken[name]) / limit.work for name, limit in limits.items()}  # seconds per operation or byte
    rows: dict[str, dict[str, Any]] = {}
    for op in operations:
        row = rows.setdefault(op.name, {"operation": op.name, "times": 0, "seconds": 0.0, "limit": 0.0})
        multiplying = 0.0 if op.arithmetic is None else op.operations * each[op.arithmetic]
        row["times"] += 1
        row["seconds"] += op.seconds
        row["limit"] += max(multiplying, op.moved * each["read"])
    return sorted(rows.values(), key=lambda row: -row["seconds"])


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows and their sum as text."""
    total = sum(row["seconds"] for row in rows)
    least = sum(row["limit"] for row in rows)
    times = sum(row["times"] for row in rows)
    every = [*rows, {"operation": "all", "times": times, "seconds": total, "limit": least}]
    lines = [f"{'operation':28}{'times':>6}{'ms':>10}{'share %':>9}{'of its limit %':>16}"]
    lines += [
        f"{row['operation']:28}{row['times']:6}{row['seconds'] * 1e3:10.3f}{100 * row['seconds'] / total:9.1f}"
        f"{100 * row['limit'] / row['seconds']:16.0f}"
        for row in every
    ]
    return "\n".join(lines)


def _plot(path: Path, rows: list[dict[str, Any]]) -> None:
    """Draw two bars for each row: milliseconds taken, and the limit."""
    with needed_by("--plot"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(8, 0.4 * len(rows) + 1.2), layout="constrained")
    axes = figure.add_subplot()
    names = [f"{row['operation']} x{row['times']}" for row in rows]
    axes.barh(names, [row["seconds"] * 1e3 for row in rows], color="#a9c9e8", label="taken")
    axes.barh(names, [row["limit"] * 1e3 for row in rows], color="#4a7fb0", height=0.4, label="limit")
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds")
    axes.legend()
    with new_file(path, force=True) as stream:
        figure.savefig(stream, format=path.suffix[1:] or None)
