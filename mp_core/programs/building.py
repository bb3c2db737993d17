"""From the nodes of a program to the calls that a model makes.

1. Nodes without influence on the outputs are dropped.
2. Nodes whose arguments are all constants are computed once. Dequantized constants stay codes.
3. A pattern of nodes that mp_core has one operation for becomes that operation (:mod:`mp_core.programs.patterns`).
4. A node with a constant matrix becomes a layer (:mod:`mp_core.programs.weights`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mp_core.arrays import cast
from mp_core.arrays.dtypes import is_float
from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.files.program import Node, Program, Value, map_values
from mp_core.layers import Layer
from mp_core.programs import convolutions  # noqa: F401 - registers its makers
from mp_core.programs.limits import Budget
from mp_core.programs.patterns import simplified
from mp_core.programs.registry import operator_of
from mp_core.programs.weights import CODES, MAKERS

__all__ = ["Branch", "Step", "built", "is_weight", "run", "step_of"]


@dataclass(frozen=True)
class Step:
    """A call that computes values, in place of a node."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    outputs: tuple[str, ...]  # "": a result that nobody reads
    operator: str = ""
    version: int = 0  # The version of the operator.


def step_of(node: Node) -> Step:
    """Return the call of the function of a node's operator."""
    function = operator_of(node)
    assert function is not None, node
    return Step(function, node.arguments, node.options, node.outputs, node.operator, node.version)


def run(steps: Sequence[Step], values: dict[str, Any], constant: Callable[[str], Any]) -> None:
    """Compute steps one after the other; add their results to `values`. `constant` returns what is not in `values`."""

    def value(name: str) -> Any:
        return values[name] if name in values else constant(name)

    for step in steps:
        arguments, options = map_values(value, (step.arguments, step.options))
        try:
            values.update(_named(step.outputs, step.function(*arguments, **options)))
        except Exception as error:
            error.add_note(
                f"The node {step.operator or 'of a layer'} that computes {', '.join(step.outputs)} raised it."
            )
            raise


def _named(outputs: tuple[str, ...], found: Any) -> dict[str, Any]:
    """Return results by name. A function in place of a result computes one that few programs read."""
    is_several = len(outputs) > 1 or type(found) is tuple
    results = found if is_several else (found,)
    if any(outputs[len(results) :]):
        raise ValueError(f"only {len(results)} of the results {', '.join(outputs)} are computed here")
    return {name: x() if callable(x) else x for name, x in zip(outputs, results, strict=False) if name}


@dataclass(frozen=True)
class Branch:
    """A program inside of a node. It is called with the values that it captures, by name, and with its inputs."""

    steps: list[Step]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Any]

    def __call__(self, captured: Mapping[str, Any], *inputs: Any) -> tuple[Any, ...]:
        """Return the outputs."""
        values = {**captured, **dict(zip(self.inputs, inputs, strict=True))}
        run(self.steps, values, self.constants.__getitem__)
        return tuple(values[name] if name in values else self.constants[name] for name in self.outputs)


def branch(program: Program) -> Branch:
    """Return a program inside of a node. Its constants are no weights of the model."""
    nodes = needed([with_branches(node) for node in program.nodes], program.outputs)
    steps = [step_of(node) for node in nodes]
    return Branch(steps, tuple(x.name for x in program.inputs), program.outputs, program.constants)


def with_branches(node: Node) -> Node:
    """Return a node with branches in place of the programs among its options, and what these capture as an option."""
    programs = {name: x for name, x in node.options.items() if isinstance(x, Program)}
    if not programs:
        return node
    captured = {name: Value(name) for program in programs.values() for name in program.captured()}
    branches = {name: branch(program) for name, program in programs.items()}
    return replace(node, options={**node.options, **branches, "captured": captured})


class _Building:
    """What is known while a program becomes steps."""

    def __init__(self, program: Program, policy: Any) -> None:
        self.policy = policy
        self.constants: dict[str, Any] = dict(program.constants)
        self.budget = Budget(program.constants)
        self.origins: dict[str, str] = {}  # constant -> the initializer that it was computed from, if it is only one
        self.layers: dict[str, Layer] = {}

    def constant(self, argument: Any) -> Any:
        """Return the value of an argument if it is constant, else None."""
        return self.constants.get(argument.name) if isinstance(argument, Value) else None

    def folds(self, node: Node) -> bool:
        """Compute a node whose arguments are constants; return False if one of them is not."""
        names = [*node.inputs()]
        if not all(name in self.constants for name in names):
            return False
        if names:
            largest = max(names, key=lambda name: np.size(self.constants[name]))
            self.origins.update(dict.fromkeys(node.outputs, self.origins.get(largest, largest)))
        function = CODES.get(node.operator) or operator_of(node)
        assert function is not None, node
        arguments, options = map_values(self.constants.__getitem__, (node.arguments, dict(node.options)))
        if node.operator not in CODES:
            arguments = tuple(map(as_floats, arguments))
        try:
            with self.budget.allowing(node, arguments):
                found = function(*arguments, **options)
            self.budget.take(found, arguments)
            self.constants.update(_named(node.outputs, found))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"node {node.name or node.outputs[0]} ({node.operator}): {error}") from error
        return True

    def step(self, node: Node) -> Step:
        """Return the call that computes a node: of a layer if it has a constant matrix."""
        maker = MAKERS.get(node.operator)
        call = None if maker is None else maker(node, self.constant, name=self.name(node), dtype=self.policy)
        if call is not None:
            self.layers[call.layer.name] = call.layer
            return Step(call.layer, call.arguments, {}, node.outputs, node.operator)
        return step_of(node)

    def name(self, node: Node) -> str:
        """Return the name of the layer of a node: that of its weights in the file, or of the node."""
        names = [x.name for x in node.arguments if self.constant(x) is not None]
        known = [name for name in (self.origins.get(name, name) for name in names) if "." in name and "::" not in name]
        name = known[0].rpartition(".")[0] if known else node.name.strip("/").replace("/", ".") or node.operator
        same = sum(each == name or each.startswith(f"{name}_") for each in self.layers)
        return f"{name}_{same}" if same else name


_FLOATS = {"float32": 1, "float16": 10, "bfloat16": 16}
"""The types of floats that a policy replaces, and their numbers in ONNX."""
_TYPE_OPTIONS = {"dtype", "output_datatype", "output_dtype", "to"}
"""Options whose value is a type."""


def retyped(node: Node, dtype: str) -> Node:
    """Return a node whose options name `dtype` in place of other types of floats."""
    numbers: dict[Any, Any] = {**dict.fromkeys(_FLOATS.values(), _FLOATS[dtype]), **dict.fromkeys(_FLOATS, dtype)}
    options = {
        name: numbers.get(x, x) if name in _TYPE_OPTIONS else in_type(x, dtype) for name, x in node.options.items()
    }
    return replace(node, options=options)


def in_type(x: Any, dtype: str) -> Any:
    """Return floats that a policy replaces in its type; other values as they are."""
    is_replaced = isinstance(x, np.ndarray | np.generic) and x.dtype.name in _FLOATS
    return np.asarray(cast(x, dtype)) if is_replaced and x.dtype.name != dtype else x


def _types(program: Program) -> set[str]:
    """Return the types of the floats of a program."""
    numbers: dict[Any, str] = {number: name for name, number in _FLOATS.items()} | {11: "float64"}
    found = {x.dtype for x in program.inputs} | {x.dtype.name for x in program.constants.values()}
    found |= {
        numbers.get(x, str(x)) for node in program.nodes for x in (node.options.get("to"),) if isinstance(x, int | str)
    }
    return {x for x in found if x in _FLOATS or x == "float64"}


def built(program: Program, policy: Any) -> tuple[list[Step], dict[str, Layer], dict[str, Any]]:
    """Return the calls that compute a program, the layers among them, and the constants that they read."""
    building = _Building(program, policy)
    nodes = needed([with_branches(node) for node in program.nodes], program.outputs)
    if policy is not None:
        nodes = [retyped(node, policy.compute_dtype) for node in nodes]
    nodes = [node for node in nodes if not building.folds(node)]
    types = _types(program)
    is_one = len(types) == 1 or policy is not None
    floats = {x.name for x in program.inputs if x.dtype in types} if is_one else None
    nodes = needed(simplified(nodes, building.constants, program.outputs, floats), program.outputs)
    steps = [building.step(node) for node in nodes]
    read = {name for step in steps for name in Node("", step.arguments, (), step.options).inputs()}
    read.update(program.outputs)
    constants = {name: as_floats(x) for name, x in building.constants.items() if name in read}
    if policy is not None:
        constants = {name: x if is_weight(x) else in_type(x, policy.compute_dtype) for name, x in constants.items()}
    return steps, building.layers, constants


def needed(nodes: Any, outputs: tuple[str, ...]) -> list[Node]:
    """Return the nodes on which an output depends, in their order; results that nobody reads lose their names."""
    wanted, found = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.outputs):
            found.append(replace(node, outputs=tuple(name if name in wanted else "" for name in node.outputs)))
            wanted.update(node.inputs())
    return found[::-1]


def as_floats(x: Any) -> Any:
    """Return a constant as operations read it: floats in place of codes, at an address that kernels can read."""
    x = dequantize(x) if isinstance(x, QuantizedArray) else x
    return np.require(x, requirements="A") if isinstance(x, np.ndarray) else x


def is_weight(x: Any) -> bool:
    """Return whether a constant is a variable of the model: an array of floats, not a single number."""
    return isinstance(x, np.ndarray) and x.ndim > 0 and is_float(x.dtype)
