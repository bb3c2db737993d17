"""From the nodes of a program to the calls that a model makes.

1. Nodes without influence on the outputs are dropped.
2. Nodes whose arguments are all constants are computed once.
3. A pattern of nodes that mp_core has one operation for becomes that operation (:mod:`mp_core.programs.patterns`).
4. A node with a constant matrix becomes a layer (:mod:`mp_core.programs.weights`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.dtypes import is_float
from mp_core.files.program import Node, Program, Value, map_values
from mp_core.layers import Layer
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.programs.registry import operator_of
from mp_core.programs.weights import MAKERS

__all__ = ["Step", "built", "is_weight"]


@dataclass(frozen=True)
class Step:
    """A call that computes values."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    outputs: tuple[str, ...]


class _Building:
    """What is known while a program becomes steps."""

    def __init__(self, program: Program, policy: DTypePolicy) -> None:
        self.policy = policy
        self.constants: dict[str, Any] = dict(program.constants)
        self.layers: dict[str, Layer] = {}

    def constant(self, argument: Any) -> Array | None:
        """Return the value of an argument if it is constant, else None."""
        return self.constants.get(argument.name) if isinstance(argument, Value) else None

    def fold(self, node: Node) -> bool:
        """Compute a node whose arguments are constants; return False if one of them is not."""
        function = operator_of(node)
        if function is None or not all(name in self.constants for name in node.inputs()):
            return False
        arguments, options = map_values(self.constants.__getitem__, (node.arguments, dict(node.options)))
        found = function(*arguments, **options)
        self.constants.update(zip(node.outputs, found if len(node.outputs) > 1 else (found,), strict=False))
        return True

    def step(self, node: Node) -> Step:
        """Return the call that computes a node: of a layer if it has a constant matrix."""
        maker = MAKERS.get(node.operator)
        name = node.name.strip("/").replace("/", ".")
        call = None if maker is None else maker(node, self.constant, name=name, dtype=self.policy)
        if call is not None:
            self.layers[call.layer.name] = call.layer
            return Step(call.layer, call.arguments, {}, node.outputs)
        function = operator_of(node)
        assert function is not None, node
        return Step(function, node.arguments, node.options, node.outputs)


def built(program: Program, policy: DTypePolicy) -> tuple[list[Step], dict[str, Layer], dict[str, Any]]:
    """Return the calls that compute a program, the layers among them, and the constants that they read."""
    building = _Building(program, policy)
    steps = [building.step(node) for node in _needed(program) if not building.fold(node)]
    read = {name for step in steps for name in Node("", step.arguments, (), step.options).inputs()}
    read.update(program.outputs)
    return steps, building.layers, {name: x for name, x in building.constants.items() if name in read}


def _needed(program: Program) -> list[Node]:
    """Return the nodes on which an output depends, in their order."""
    wanted, found = set(program.outputs), []
    for node in reversed(program.nodes):
        if wanted.intersection(node.outputs):
            wanted.update(node.inputs())
            found.append(node)
    return found[::-1]


def is_weight(x: Any) -> bool:
    """Return whether a constant is a variable of the model: an array of floats, not a single number."""
    return isinstance(x, np.ndarray) and x.ndim > 0 and is_float(x.dtype)
