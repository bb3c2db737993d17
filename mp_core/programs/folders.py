"""Folders of programs: ``program.json`` has the steps and the layers, ``model.safetensors`` all arrays.

A folder is read as hostile: only operators of the tables and layers of mp_core are called, and each value must be
computed before it is read.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import Array
from mp_core.files.checkpoint.header import load_json
from mp_core.files.checkpoint.loading import open_tensors
from mp_core.files.checkpoint.output import check_free, replace, temporary_beside
from mp_core.files.checkpoint.writing import save_tensors
from mp_core.files.program import Input, Node, Program, Value, values_in
from mp_core.layers import Layer
from mp_core.layers.base.building import build_shapes_of
from mp_core.layers.registry import layer_classes
from mp_core.policies import dtype_policies
from mp_core.policies.autocast import AutoCastVariable
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.programs.building import Branch, Step, step_of
from mp_core.programs.registry import refusal
from mp_core.utilities.arguments import path_of
from mp_core.utilities.registry import class_and_config, known_classes
from mp_core.utilities.serialization import serialize_keras_object
from mp_core.utilities.system import is_present

__all__ = ["FILES", "Content", "is_program", "opened", "save"]

_PROGRAM, _WEIGHTS = "program.json", "model.safetensors"
FILES = frozenset({_PROGRAM, _WEIGHTS})
"""The names of the files in a folder."""
_FORMAT = "mp_core.program.1"
_BROKEN = (ArithmeticError, AttributeError, LookupError, MemoryError, NotImplementedError, RecursionError, TypeError,
           ValueError)  # fmt: skip
"""What a file with a wrong value may raise while it is read."""


class Content(NamedTuple):
    """What a model is made of."""

    program: Program  # Its inputs, outputs and name.
    steps: Sequence[Step]
    layers: Mapping[str, Layer]
    constants: Mapping[str, Any]
    policy: DTypePolicy
    autocast: bool  # Whether the policy decides the types of all floats, not the program.


def is_program(path: str | PathLike[str]) -> bool:
    """Return whether a folder is one of a program."""
    return is_present(Path(path) / _PROGRAM)


# ---- writing


def save(content: Content, path: str | PathLike[str], *, force: bool) -> None:
    """Write a folder; it appears only when all of it is on the disk."""
    writer = _Writer()
    text = json.dumps(writer.content(content), allow_nan=False, separators=(",", ":"))
    target = path_of(path, "filepath").resolve()
    check_free(target, FILES, [], force=force)
    with temporary_beside(target) as temporary:
        temporary.mkdir(parents=True, exist_ok=True)
        (temporary / _PROGRAM).write_text(text, encoding="utf-8")
        save_tensors(temporary / _WEIGHTS, writer.arrays, policy="float32")
        replace(temporary, target, FILES, [], force=force)


class _Writer:
    """Turns the parts of a model into JSON, and collects their arrays."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}

    def content(self, content: Content) -> dict[str, Any]:
        """Return the parts of a model."""
        program = content.program
        return {
            "format": _FORMAT,
            "name": program.name,
            "policy": serialize_keras_object(content.policy),
            "autocast": content.autocast,
            "inputs": [[x.name, x.dtype, x.shape] for x in program.inputs],
            "outputs": program.outputs,
            "steps": [self.step(step) for step in content.steps],
            "layers": {name: self.layer(name, layer) for name, layer in content.layers.items()},
            "constants": {name: self.constant(name, x) for name, x in content.constants.items()},
        }

    def array(self, name: str, x: Any) -> str:
        """Add an array to the file of weights and return its name there."""
        while name in self.arrays:
            name += "_"
        self.arrays[name] = np.asarray(x)
        return name

    def layer(self, name: str, layer: Layer) -> dict[str, Any]:
        """Return the configuration of a layer, and the names of its variables."""
        store: dict[str, Any] = {}
        layer.save_own_variables(store)
        names = {key: self.array(f"{name}/{key}", x) for key, x in store.items()}
        return {"class": serialize_keras_object(layer), "shape": build_shapes_of(layer), "variables": names}

    def constant(self, name: str, x: Any) -> Any:
        """Return a constant: variables and arrays by their names."""
        return self.value(x.numpy() if isinstance(x, AutoCastVariable) else x, name)

    def step(self, step: Step) -> dict[str, Any]:
        """Return a step: the name of its layer or operator, and its arguments."""
        target = step.function.name if isinstance(step.function, Layer) else [step.operator, step.version]
        arguments = [self.value(x) for x in step.arguments]
        options = {name: self.value(x) for name, x in step.options.items()}
        return {"call": target, "arguments": arguments, "options": options, "outputs": step.outputs}

    def value(self, x: Any, name: str = "array") -> Any:
        """Return an argument of a step. What JSON has not is a list that begins with its kind."""
        if x is None or isinstance(x, bool | str | int):
            return x
        if isinstance(x, float):
            return x if math.isfinite(x) else ["float", str(x)]
        if isinstance(x, Value):
            return ["value", x.name]
        if isinstance(x, np.ndarray | np.generic):
            return ["array", self.array(name, x)]
        if isinstance(x, list | tuple):
            return [type(x).__name__, *map(self.value, x)]
        if isinstance(x, Mapping):
            return ["dict", *([key, self.value(part)] for key, part in x.items())]
        if isinstance(x, Branch):
            named = {key: self.value(part) for key, part in x.constants.items()}
            return ["branch", [*map(self.step, x.steps)], x.inputs, x.outputs, named]
        raise TypeError(f"a program with an argument of type {type(x).__name__} cannot be saved")


# ---- reading


def opened(path: str | PathLike[str]) -> Content:
    """Read a folder; raise ValueError if its content is not that of a program."""
    folder = path_of(path, "path")
    content = load_json((folder / _PROGRAM).read_bytes(), str(folder / _PROGRAM))
    if content.get("format") != _FORMAT:
        raise ValueError(f"{folder / _PROGRAM} must have the format {_FORMAT}; received {content.get('format')!r:.80}")
    arrays: dict[str, Any] = dict(open_tensors(folder / _WEIGHTS))
    try:
        return _Reader(arrays).opened(content)
    except _BROKEN as error:
        raise ValueError(f"{folder} is not the folder of a program: {error}") from error


class _Reader:
    """Makes the parts of a model from JSON and arrays."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.arrays = arrays
        self.layers: dict[str, Layer] = {}

    def opened(self, content: Mapping[str, Any]) -> Content:
        """Return the content of a folder."""
        self.layers = {name: self.layer(entry) for name, entry in content["layers"].items()}
        inputs = tuple(Input(str(name), str(dtype), _shape(shape)) for name, dtype, shape in content["inputs"])
        constants = {name: self.value(x) for name, x in content["constants"].items()}
        outputs = tuple(map(str, content["outputs"]))
        known = {x.name for x in inputs} | constants.keys()
        steps = self.steps(content["steps"], known, outputs)
        policy = dtype_policies.deserialize(content["policy"])
        program = Program(inputs, outputs, (), {}, str(content["name"]))
        return Content(program, steps, self.layers, constants, policy, content["autocast"] is True)

    def steps(self, entries: Any, known: Iterable[str], outputs: Iterable[str]) -> list[Step]:
        """Return steps; raise ValueError if one reads a value that is not known before it."""
        names, steps = set(known), []
        for entry in entries:
            step = self.step(entry)
            unknown = [name for name in values_in((step.arguments, dict(step.options))) if name not in names]
            if unknown:
                raise ValueError(f"value {unknown[0]!r:.80} is read before it is computed")
            names.update(step.outputs)
            steps.append(step)
        if not set(outputs) <= names:
            raise ValueError("an output is computed by no step")
        return steps

    def step(self, entry: Mapping[str, Any]) -> Step:
        """Return a step, checked against the parameters of its operator."""
        arguments = tuple(map(self.value, entry["arguments"]))
        options = {name: self.value(x) for name, x in entry["options"].items()}
        outputs = tuple(map(str, entry["outputs"]))
        if isinstance(entry["call"], str):
            return Step(self.layers[entry["call"]], arguments, options, outputs)
        name, version = entry["call"]
        node = Node(str(name), arguments, outputs, options, version=int(version))
        why = refusal(node)
        if why is not None:
            raise ValueError(f"operator {name!r:.80}: {why}")
        return step_of(node)

    def layer(self, entry: Mapping[str, Any]) -> Layer:
        """Return a layer of mp_core with its variables."""
        found, config = class_and_config(entry["class"], known_classes(Layer, layer_classes(None)), "layer")
        layer: Layer = found.from_config(config)
        shape = _shape(entry["shape"])
        layer.build() if shape is None else layer.build(shape)
        layer.load_own_variables({key: self.arrays[name] for key, name in entry["variables"].items()})
        return layer

    def value(self, x: Any) -> Any:
        """Return an argument of a step; see :meth:`_Writer.value`."""
        if not isinstance(x, list):
            return x
        kind, *parts = x
        return self._kinds[kind](self, parts)

    def _branch(self, parts: list[Any]) -> Branch:
        steps, inputs, outputs, named = parts
        constants = {name: self.value(x) for name, x in named.items()}
        found = [self.step(step) for step in steps]
        return Branch(found, tuple(map(str, inputs)), tuple(map(str, outputs)), constants)

    _kinds: Mapping[str, Callable[["_Reader", list[Any]], Any]] = {
        "float": lambda self, parts: float(parts[0]),
        "value": lambda self, parts: Value(str(parts[0])),
        "array": lambda self, parts: self.arrays[parts[0]],
        "list": lambda self, parts: [self.value(x) for x in parts],
        "tuple": lambda self, parts: tuple(self.value(x) for x in parts),
        "dict": lambda self, parts: {str(name): self.value(x) for name, x in parts},
        "branch": _branch,
    }


def _shape(shape: Any) -> Any:
    if shape is None:
        return None
    if not all(n is None or isinstance(n, int | str) for n in shape):
        raise ValueError(f"a shape must have lengths and names; received {shape!r:.80}")
    return tuple(shape)
