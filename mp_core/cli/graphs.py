"""Graphs in ONNX files, and those that were saved as folders: ``mp-core run``, and their part of other commands."""

import argparse
import math
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

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
from mp_core.models.fitting.measures import error_of
from mp_core.programs import ProgramModel
from mp_core.programs.checks import refusals
from mp_core.programs.folders import is_program
from mp_core.utilities.tables import aligned

__all__ = [
    "add_command", "arrays", "contents", "contents_text", "convert", "drawn_for", "examples_for", "is_conversion",
    "is_graph", "losses_text", "opened", "verify",
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
        found = model(arrays(arguments.inputs))
    except TypeError as error:
        raise ValueError(f"{arguments.inputs}: {error}") from error
    outputs = named(model, found)
    if arguments.output is not None:
        stored: dict[str, Any] = {name: _storable(x) for name, x in outputs.items()}
        with new_file(Path(arguments.output), force=True) as stream:
            np.savez(stream, **stored)
    rows = [_row(name, np.asarray(x)) for name, x in outputs.items()]
    options.show(arguments, {"outputs": rows}, lambda: "\n".join(_lines(rows)))
    return DONE


def named(model: ProgramModel, found: Any) -> dict[str, Any]:
    """Return the outputs of a call by their names."""
    return found if isinstance(found, dict) else {model.output_names[0]: found}


def arrays(path: str) -> dict[str, Array]:
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
    parts, other = before.parts.items(), cast(dict[str, Any], after.parts)
    rows = [losses(name, x.matrix, other[name].matrix) for name, x in parts if isinstance(x, MatrixLayer)]
    report = {"source": arguments.model, "target": arguments.output, "policy": arguments.policy, "tensors": rows}
    report["outputs"] = differences(opened(arguments.model, "float32"), after, arguments.inputs)
    options.show(arguments, report, lambda: losses_text(report, "the graph in float32", arguments))
    return DONE


def losses(name: str, before: Any, after: Any) -> dict[str, Any]:
    """Return the types and sizes of a weight before and after, and the measures of its error."""
    x, y = (dequantize(each) if isinstance(each, QuantizedArray) else np.asarray(each) for each in (before, after))
    types = {"dtype": before.dtype.name, "new_dtype": after.dtype.name}
    sizes = {"bytes": before.nbytes, "new_bytes": after.nbytes}
    return {"name": name, "shape": list(before.shape), **types, **sizes, **Sums.of(x, y).metrics()}


# ---- outputs of two graphs


def differences(reference: ProgramModel, model: ProgramModel, path: str | None) -> list[dict[str, Any]]:
    """Return for each output the errors of a graph compared with another one, on inputs of a file, or drawn ones."""
    inputs = drawn_for(reference) if path is None else arrays(path)
    wanted, found = (named(each, each(inputs)) for each in (reference, model))
    return [_difference(name, np.asarray(x), np.asarray(found[name])) for name, x in wanted.items() if name in found]


def _difference(name: str, wanted: Array, found: Array) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "dtype": found.dtype.name, "shape": list(found.shape)}
    if wanted.shape != found.shape:
        return row | {"reason": f"has the shape {found.shape} instead of {wanted.shape}"}
    if not (is_float(wanted.dtype) and wanted.ndim and wanted.size):
        return row | {"different": float(np.mean(wanted != found)) if wanted.size else 0.0}
    x, y = (each.astype(np.float64).reshape(len(each), -1) for each in (found, wanted))
    errors = asdict(error_of([x.reshape(found.shape)], [y.reshape(wanted.shape)]))
    return row | {key: value for key, value in errors.items() if not math.isnan(value)}


def losses_text(report: dict[str, Any], other: str, arguments: argparse.Namespace) -> str:
    """Return the tables of a comparison of two graphs: their weights, and their outputs."""
    rows = report["outputs"]
    keys = list(dict.fromkeys(key for row in rows for key in row if key not in ("name", "dtype", "shape")))
    heads = ["output", "shape", "type", *(_HEADS.get(key, key) for key in keys)]
    cells = [[printable(row["name"]), " x ".join(map(str, row["shape"])), row["dtype"],
              *(_cell(row.get(key, "")) for key in keys)] for row in rows]  # fmt: skip
    sample = "drawn inputs" if arguments.inputs is None else arguments.inputs
    title = f"outputs for {sample}, compared with those of {other}:"
    return "\n".join([reports.losses(report, every=arguments.all), "", title, aligned([heads, *cells])])


_HEADS = {"max": "max 1 - cosine", "mean": "mean 1 - cosine", "rmse": "rel RMSE", "largest": "largest / RMS"}


def _cell(x: Any) -> str:
    return x if isinstance(x, str) else f"{x:.2e}"


# ---- verify


def verify(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the report of a comparison of two graphs: of all weights, and of the outputs."""
    models = opened(arguments.model, None), opened(arguments.other, None)
    first, second = map(_weights, models)
    failed = [f"{name}: only in {arguments.model}" for name in first if name not in second]
    failed += [f"{name}: only in {arguments.other}" for name in second if name not in first]
    rows = []
    for name in (name for name in first if name in second):
        one, two = first[name], second[name]
        if one.shape == two.shape:
            rows.append(losses(name, one, two))
        else:
            failed.append(f"{name}: of shape {one.shape} and {two.shape}")
    if models[0].input_names != models[1].input_names:
        names = (str(model.input_names) for model in models)
        raise ValueError(f"the graphs must have the same inputs; they have {' and '.join(names)}")
    outputs = differences(*models, arguments.inputs)
    failed += [f"output {row['name']} {row['reason']}" for row in outputs if "reason" in row]
    errors = [(row["name"], row["rel_rmse"]) for row in rows]
    errors += [(f"output {row['name']}", row.get("rmse", row.get("different", 0.0))) for row in outputs]
    failed += [
        f"{name}: rel_rmse is {error:.6g}; at most {arguments.rtol:g} is allowed"
        for name, error in errors
        if not error <= arguments.rtol
    ]
    return {"a": arguments.model, "b": arguments.other, "rtol": arguments.rtol, "failed": failed, "tensors": rows,
            "outputs": outputs}  # fmt: skip


def _weights(model: ProgramModel) -> dict[str, Any]:
    """Return name -> weight of a graph; the matrices of layers, whatever their form, and all other floats."""
    found: dict[str, Any] = {variable.name: variable.numpy() for variable in model.own_variables()}
    for name, layer in model.parts.items():
        form = layer.form if isinstance(layer, MatrixLayer) else None
        if form is not None:
            found[name] = form.matrix
        inside = () if form is None else [id(x) for x in form.variables.values()]
        found |= {f"{name}.{x.name}": x.numpy() for x in layer.own_variables() if id(x) not in inside}
    return found


# ---- examples of inputs

_BATCH, _LENGTH = 4, 16


def drawn_for(model: ProgramModel) -> dict[str, Array]:
    """Return inputs by name: normally distributed floats, the same at each call, and ones of other types."""
    rng = np.random.default_rng(0)
    return {
        x.name: np.asarray(rng.standard_normal(ones.shape)).astype(ones.dtype) if is_float(ones.dtype) else ones
        for x, ones in zip(model.program.inputs, examples_for(model, _BATCH, _LENGTH), strict=True)
    }


def examples_for(model: ProgramModel, batch: int, length: int) -> list[Array]:
    """Return inputs of ones: unknown lengths of the first axis are `batch`, those of others `length`."""
    return [_example(x, batch, length) for x in model.program.inputs]


def _example(x: Input, batch: int, length: int) -> Array:
    if x.shape is None:
        raise ValueError(f"the file does not say how many axes input {x.name!r} has, so its shape must be given")
    known = (n if isinstance(n, int) else length if axis else batch for axis, n in enumerate(x.shape))
    dtype = dtype_of(x.dtype)
    return np.ones(tuple(known), np.float32).astype(dtype) if is_float(dtype) else np.ones(tuple(known), dtype)
