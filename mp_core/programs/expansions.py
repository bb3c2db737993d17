"""Operators that are written as other operators, before anything else is done with a program.

An expansion is a function of `make`, a :class:`Making`, and of the arguments and options of a node.
``make(operator, *arguments, **options)`` adds a node and returns its result; the last node has the outputs of the
expanded one.
"""

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.files.program import Node, Program, Value
from mp_core.programs.signatures import misfit

__all__ = ["EXPANSIONS", "NEWEST", "Expansion", "Making", "expanded", "expansion"]

Expansion = Callable[..., None]
EXPANSIONS: dict[str, Expansion] = {}
"""Operator -> its expansion. :func:`expansion` adds them."""
NEWEST = 1 << 16
"""A version after all versions of operator sets."""


def expansion(*names: str) -> Callable[[Expansion], Expansion]:
    """Register an expansion of the operators `names`."""

    def register(function: Expansion) -> Expansion:
        EXPANSIONS.update(dict.fromkeys(names, function))
        return function

    return register


class Making:
    """Adds nodes in place of one, and constants that they read."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}

    def __call__(self, operator: str, *arguments: Any, **options: Any) -> Value:
        """Add a node, and return its result."""
        return self.results(operator, 1, *arguments, **options)[0]

    def results(self, operator: str, count: int, *arguments: Any, **options: Any) -> tuple[Value, ...]:
        """Add a node with several results, and return them."""
        first = f"{self.node.outputs[0]}.{len(self.nodes)}.{operator}"
        names = (first, *(f"{first}.{number}" for number in range(1, count)))
        self.nodes.append(Node(operator, arguments, names, options, self.node.name, NEWEST))
        return tuple(map(Value, names))

    def constant(self, x: Any) -> Value:
        """Add a constant, and return it."""
        name = f"{self.node.outputs[0]}.constant.{len(self.constants)}"
        self.constants[name] = np.asarray(x)
        return Value(name)


def expanded(program: Program) -> Program:
    """Return a program without operators that have expansions, except for nodes whose arguments do not fit."""
    importlib.import_module("mp_core.programs.onnx")
    constants = dict(program.constants)
    nodes = [new for node in program.nodes for new in _expanded(node, constants)]
    return replace(program, nodes=nodes, constants=constants)


def _expanded(node: Node, constants: dict[str, Any]) -> list[Node]:
    inner = {name: expanded(x) for name, x in node.options.items() if isinstance(x, Program)}
    node = replace(node, options={**node.options, **inner}) if inner else node
    function = EXPANSIONS.get(node.operator)
    if function is None or misfit(function, node, None) is not None:
        return [node]
    make = Making(node)
    function(make, *node.arguments, **node.options)
    make.nodes[-1] = replace(make.nodes[-1], outputs=node.outputs)
    constants.update(make.constants)
    return [new for each in make.nodes for new in _expanded(each, constants)]
