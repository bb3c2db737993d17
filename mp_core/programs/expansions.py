"""Operators that are written as other operators, before anything else is done with a program.

An expansion is a function of `make` and the arguments and options of a node. ``make(operator, *arguments, **options)``
adds a node and returns its result; the last node has the outputs of the expanded one.
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mp_core.files.program import Node, Program, Value

__all__ = ["EXPANSIONS", "NEWEST", "expanded", "expansion"]

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


def expanded(program: Program) -> Program:
    """Return a program without operators that have expansions, except for nodes whose arguments do not fit."""
    importlib.import_module("mp_core.programs.onnx")
    return replace(program, nodes=[new for node in program.nodes for new in _expanded(node)])


def _expanded(node: Node) -> list[Node]:
    inner = {name: expanded(x) for name, x in node.options.items() if isinstance(x, Program)}
    node = replace(node, options={**node.options, **inner}) if inner else node
    function = EXPANSIONS.get(node.operator)
    if function is None or not _fits(function, node):
        return [node]
    nodes: list[Node] = []

    def make(operator: str, *arguments: Any, **options: Any) -> Value:
        result = f"{node.outputs[0]}.{len(nodes)}.{operator}"
        nodes.append(Node(operator, arguments, (result,), options, node.name, NEWEST))
        return Value(result)

    function(make, *node.arguments, **node.options)
    nodes[-1] = replace(nodes[-1], outputs=node.outputs)
    return [new for each in nodes for new in _expanded(each)]


def _fits(function: Expansion, node: Node) -> bool:
    try:
        inspect.signature(function).bind(None, *node.arguments, **node.options)
    except TypeError:
        return False
    return True
