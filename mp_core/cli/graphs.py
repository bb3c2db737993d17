"""Graphs in ONNX files, and those that were saved as folders: ``mp-core run``, and their part of other commands."""

import argparse
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.dtypes import dtype_of, is_float
from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.cli import options, reports
from mp_core.cli.common import DONE, check_output, printable
from mp_core.cli.grammar import new_command
from mp_core.cli.policies import policy
from mp_core.files.checkpoint.conversion import LAYOUTS_TO
from mp_core.files.checkpoint.errors import Sums
from mp_core.files.checkpoint.output import new_file
from mp_core.files.onnx.programs import read_program
from mp_core.files.program import Input
from mp_core.interop.onnx import load
from mp_core.layers.matrix import MatrixLayer
from mp_core.programs import ProgramModel
from mp_core.programs.checks import refusals
from mp_core.programs.folders import is_program

__all__ = [
    "add_command", "contents", "contents_text", "convert", "examples_for", "is_conversion", "is_graph", "opened",
]  # fmt: skip

_SOURCE = "ONNX file, or folder that a ProgramModel was saved as"


def is_graph(model: str) -> bool:
    """Return whether MODEL is a graph: an ONNX file, or a folder of a program."""
    return model.lower().endswith(".onnx") or is_program(model)


def opened(model: str, policy: str | None) -> ProgramModel:
    """Return the graph at MODEL."""
    return load(model, policy) if model.lower().endswith(".onnx") else ProgramModel.from_folder(model, policy)


# ---- run


def add_command(commands: Any) -> None:
    """Add `run` to the program."""
    examples = "run model.onnx inputs.npz", "run model.onnx inputs.npz -o outputs.npz --policy mixed_bfloat16"
    command = new_command(commands, "run", _run, "compute the outputs of a graph for inputs in a file", examples)
    options.add_model(command, _SOURCE)
    command.add_argument("inputs", metavar="INPUTS", help=".npz file with an array for each input, by name")
    options.add(command, "output", help=".npz file to write the outputs to, by name")
    options.add(command, "force", "policy", "json", "threads", "quiet")


def _run(arguments: argparse.Namespace) -> int:
    others = [arguments.model, arguments.inputs, *([arguments.output] if arguments.output else [])]
    options.check_outputs(arguments, *others)
    if arguments.output is not None:
        check_output("-o/--output", arguments.output)
        if Path(arguments.output).exists() and not arguments.force:
            raise FileExistsError(f"{arguments.output} exists; use --force to replace it")
    model = opened(arguments.model, arguments.policy)
    try:
        found = model(_arrays(arguments.inputs))
    except TypeError as error:
        raise ValueError(f"{arguments.inputs}: {error}") from error
    outputs = found if isinstance(found, dict) else {model.output_names[0]: found}
    if arguments.output is not None:
        arrays: dict[str, Any] = {name: _storable(x) for name, x in outputs.items()}
        with new_file(Path(arguments.output), force=True) as stream:
            np.savez(stream, **arrays)
    rows = [_row(name, np.asarray(x)) for name, x in outputs.items()]
    options.show(arguments, {"outputs": rows}, lambda: "\n".join(_lines(rows)))
    return DONE


def _arrays(path: str) -> dict[str, Array]:
    """Return the arrays of an .npz file by name."""
    try:
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.lib.npyio.NpzFile):
                return {name: archive[name] for name in archive.files}
    except (EOFError, ValueError, zipfile.BadZipFile):
        pass
    raise ValueError(f"{path} is not an .npz file of arrays")


def _storable(x: Any) -> Array:
    """Return an array in a type that .npz files have: narrow floats become float32."""
    array = np.asarray(x)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _row(name: str, x: Array) -> dict[str, Any]:
    """Return the type, the shape and the range of an output."""
    row: dict[str, Any] = {"name": name, "dtype": x.dtype.name, "shape": list(x.shape)}
    wide = x.astype(np.float64)
    return row | ({"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())} if x.size else {})


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        numbers = ", ".join(f"{key} {row[key]:.6g}" for key in ("min", "max", "mean") if key in row)
        yield f"{printable(row['name'])}: {row['dtype']} {tuple(row['shape'])}" + (f", {numbers}" if numbers else "")


# ---- inspect


def contents(path: str) -> dict[str, Any]:
    """Return what an ONNX file has: inputs, outputs, operators with the numbers of nodes, and what cannot run here."""
    program = read_program(path)
    counts = Counter(node.operator for node in program.nodes)
    return {
        "inputs": [{"name": x.name, "dtype": x.dtype, "shape": _shape(x)} for x in program.inputs],
        "outputs": list(program.outputs),
        "constants": len(program.constants),
        "constant_bytes": sum(x.nbytes for x in program.constants.values()),
        "operators": dict(counts.most_common()),
        "refused": refusals(program),
    }


def _shape(x: Input) -> list[Any] | None:
    return None if x.shape is None else list(x.shape)


def contents_text(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that show :func:`contents`."""
    for x in report["inputs"]:
        shape = (
            "any shape" if x["shape"] is None else f"({', '.join('?' if n is None else str(n) for n in x['shape'])})"
        )
        yield f"input      {printable(x['name'])}: {x['dtype']} {printable(shape)}"
    for name in report["outputs"]:
        yield f"output     {printable(name)}"
    yield f"constants  {report['constants']}, {report['constant_bytes'] / 1e6:.1f} MB"
    yield f"nodes      {sum(report['operators'].values())}"
    yield from (f"{count:9}  {printable(name)}" for name, count in report["operators"].items())
    if report["refused"]:
        yield f"{len(report['refused'])} parts of the graph cannot run here:"
        yield from map(printable, report["refused"])


# ---- convert

_OF_CHECKPOINTS: dict[str, Any] = {
    "map": [], "keep": [], "exclude": [], "calibrate": None, "held_out": [], "max_memory": None, "fail_if": [],
    "verify": None, "to": LAYOUTS_TO[0], "saturate": True, "allow_requantize": False,
}  # fmt: skip
"""Options of `convert` that only checkpoints have, and their defaults."""


def is_conversion(arguments: argparse.Namespace) -> bool:
    """Return whether `convert` writes a graph: its weights alone are written if OUT is a .safetensors file."""
    return is_graph(arguments.model) and not arguments.output.endswith(".safetensors")


def convert(arguments: argparse.Namespace) -> int:
    """Write a graph as a folder, under a policy, and report what its matrices lost."""
    for name, default in _OF_CHECKPOINTS.items():
        if getattr(arguments, name) != default:
            option = f"--{name.replace('_', '-')}"
            raise argparse.ArgumentError(None, f"argument {option}: not allowed if MODEL is a graph")
    if arguments.policy is None:
        raise argparse.ArgumentError(None, "the following arguments are required: --policy")
    options.check_outputs(arguments, arguments.model, arguments.output)
    before, after = opened(arguments.model, None), opened(arguments.model, policy(arguments.policy))
    if not arguments.dry_run:
        after.save(arguments.output, overwrite=arguments.force)
    parts = before.parts.items()
    rows = [_losses(name, x, after.parts[name]) for name, x in parts if isinstance(x, MatrixLayer)]
    report = {"source": arguments.model, "target": arguments.output, "policy": arguments.policy, "tensors": rows}
    options.show(arguments, report, lambda: reports.losses(report, every=arguments.all))
    return DONE


def _losses(name: str, layer: MatrixLayer, converted: Any) -> dict[str, Any]:
    """Return the types and sizes of a layer's matrix before and after, and the measures of its error."""
    before, after = layer.matrix, converted.matrix
    x, y = (dequantize(each) if isinstance(each, QuantizedArray) else np.asarray(each) for each in (before, after))
    types = {"dtype": before.dtype.name, "new_dtype": after.dtype.name}
    sizes = {"bytes": before.nbytes, "new_bytes": after.nbytes}
    return {"name": name, "shape": list(before.shape), **types, **sizes, **Sums.of(x, y).metrics()}


# ---- profile


def examples_for(model: ProgramModel, batch: int, length: int) -> list[Array]:
    """Return inputs of ones: unknown lengths of the first axis are `batch`, those of others `length`."""
    return [_example(x, batch, length) for x in model.program.inputs]


def _example(x: Input, batch: int, length: int) -> Array:
    if x.shape is None:
        raise ValueError(f"the file does not say how many axes input {x.name!r} has, so nothing can be profiled")
    known = (n if isinstance(n, int) else length if axis else batch for axis, n in enumerate(x.shape))
    dtype = dtype_of(x.dtype)
    return np.ones(tuple(known), np.float32).astype(dtype) if is_float(dtype) else np.ones(tuple(known), dtype)
