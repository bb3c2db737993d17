"""Patterns of nodes that mp_core has one operation for.

A pattern is written as the call that it stands for: ``Mul(x, Sigmoid(x))``. Operators are names of calls, other names
stand for any value, and the same name for the same value:

- In ``Mul`` and ``Add``, the order and the grouping of operands do not matter. Divisions by a constant are products.
- A number stands for a constant with this value. Constants of one product or sum are combined before they are compared.
- A name in capitals stands for the combined constant number: 1 in a product, 0 in a sum, if there is none. In other
  places it stands for a constant array.
- ``Softmax(x, axis=-1)``: the option must have this value, or one of a tuple of values.

If only the pattern itself uses what the inner nodes compute, the last node is replaced by what the rule returns: a
node, several nodes of which the last one has the outputs, or the value that the result equals.
"""

import ast
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from mp_core.files.program import Node, Value, map_values
from mp_core.programs.expansions import NEWEST
from mp_core.programs.registry import keeps_type, operator_of
from mp_core.programs.signatures import signature_of
from mp_core.programs.weights import MAKERS

__all__ = ["RULES", "Graph", "Match", "pattern", "simplified"]

_NEUTRAL = {"Add": 0.0, "Mul": 1.0, "aten.add.Tensor": 0.0, "aten.mul.Tensor": 1.0}
"""Operators whose operands may be in any order -> the operand that changes nothing."""
_CLOSE = 2.0**-20
"""Largest relative difference of constants: those of exporters are rounded to float32, or several roundings of one."""


class Graph:
    """The nodes of a program while patterns are replaced.

    Parameters
    ----------
    nodes : list of Node
        In the order of their execution.
    constants : dict
        Name -> value. Rules may add to it.
    outputs : collection of str
        Names of values that must be computed in any case.
    floats : collection of str, optional
        Names of inputs of the type in which all floats of the program are. None: they are of several types.
    """

    def __init__(
        self,
        nodes: list[Node],
        constants: dict[str, Any],
        outputs: tuple[str, ...],
        floats: Collection[str] | None = None,
    ) -> None:
        self.constants = constants
        self.outputs = outputs
        self.is_one_type, self.floats = floats is not None, set(floats or ())
        self.aliases: dict[str, Value] = {}  # a value -> the value that it equals
        self.producers = {name: node for node in nodes for name in node.outputs if name}
        self.uses = Counter(name for node in nodes for name in node.inputs())
        self.uses.update(outputs)

    def producer(self, argument: Any) -> Node | None:
        """Return the node that computes an argument; None for inputs, constants and numbers."""
        return self.producers.get(argument.name) if isinstance(argument, Value) else None

    def constant(self, argument: Any) -> Any:
        """Return the value of an argument if it is constant, else None."""
        return self.constants.get(argument.name) if isinstance(argument, Value) else argument

    def number(self, argument: Any) -> float | None:
        """Return the value of an argument if it is one constant number, else None."""
        found = self.constant(argument)
        if isinstance(found, np.ndarray | np.generic):
            return float(found.reshape(())) if found.size == 1 and found.dtype.kind != "b" else None
        return float(found) if type(found) in (int, float) else None

    def is_float(self, argument: Any) -> bool:
        """Return whether an argument is known to have the float type of the program."""
        return isinstance(argument, Value) and argument.name in self.floats

    def note_type(self, node: Node) -> None:
        """Note whether the results of a node, which runs after all that were noted, have the float type."""
        if self.is_one_type and (node.operator in MAKERS or (keeps_type(node) and self.is_float(node.arguments[0]))):
            self.floats.update(node.outputs)

    def add_constant(self, name: str, value: Any) -> Value:
        """Add a constant whose name begins with `name`; return it as an argument."""
        while name in self.constants:
            name += "_"
        self.constants[name] = value
        return Value(name)

    def replace(self, old: tuple[Node, ...], new: list[Node]) -> None:
        """Replace the nodes of a pattern by others."""
        for node in old:
            self.uses.subtract(node.inputs())
        for node in new:
            self.uses.update(node.inputs())
            self.producers.update(dict.fromkeys(node.outputs, node))

    def alias(self, node: Node, value: Value) -> None:
        """Use `value` in place of the output of a node from now on."""
        (name,) = node.outputs
        self.aliases[name] = value
        self.uses.subtract(node.inputs())
        self.uses[value.name] += self.uses[name]

    def renamed(self, node: Node) -> Node:
        """Return a node whose arguments are no aliases."""
        if not any(name in self.aliases for name in node.inputs()):
            return node
        arguments, options = map_values(
            lambda name: self.aliases.get(name, Value(name)), (node.arguments, dict(node.options))
        )
        new = replace(node, arguments=arguments, options=options)
        self.producers.update(dict.fromkeys(node.outputs, new))
        return new


@dataclass(frozen=True)
class Match:
    """Nodes that a pattern describes."""

    graph: Graph
    values: Mapping[str, Any]  # name in the pattern -> argument; the number or the array for names in capitals
    nodes: tuple[Node, ...]  # the last one first

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def last(self) -> Node:
        """The node that is replaced."""
        return self.nodes[0]

    def node(self, operator: str) -> Node:
        """Return the first node of an operator."""
        return next(node for node in self.nodes if node.operator == operator)

    def instead(self, operator: str, *arguments: Any, **options: Any) -> Node:
        """Return a node of the newest version of an operator in place of the last one."""
        return Node(operator, arguments, self.last.outputs, options, self.last.name, NEWEST)

    def before(self, operator: str, *arguments: Any, label: str = "", **options: Any) -> Node:
        """Return a node whose result one in place of the last one reads; labels distinguish several of an operator."""
        name = f"{self.last.outputs[0]}.{label or operator}"
        return Node(operator, arguments, (name,), options, self.last.name, NEWEST)

    def replaced(self, node: Node, arguments: tuple[Any, ...], **more: Any) -> Node:
        """Return an inner node with other arguments and more options, in place of the last one."""
        return replace(node, arguments=arguments, outputs=self.last.outputs, options={**node.options, **more})

    @staticmethod
    def value(node: Node) -> Value:
        """Return the result of a node."""
        return Value(node.outputs[0])

    def is_last(self, node: Node) -> bool:
        """Return whether a reduction keeps the last axis, along which it reduces, as one of length 1."""
        axes = node.options.get("axes", self.graph.constant(node.arguments[1]) if len(node.arguments) > 1 else None)
        return axes is not None and np.array_equal(axes, [-1]) and node.options.get("keepdims", 1) == 1

    def is_inner(self) -> bool:
        """Return whether the inner nodes are computed for the last one only."""
        used = Counter(name for node in self.nodes for name in node.inputs())
        return all(self.graph.uses[name] == used[name] for node in self.nodes[1:] for name in node.outputs)


New = Node | list[Node] | Value | None
Build = Callable[[Match], New]


class Rule(NamedTuple):
    """A pattern, and what comes in place of its last node."""

    tree: ast.expr
    build: Build
    is_shared: bool


RULES: dict[str, list[Rule]] = {}
"""Operator of the last node -> its rules. The function of a rule returns None if the rule does not apply after all."""


def pattern(*texts: str, is_shared: bool = False) -> Callable[[Build], Build]:
    """Register a rule for patterns; `is_shared`: even if other nodes use what its inner nodes compute."""

    def register(build: Build) -> Build:
        for text in texts:
            tree = ast.parse(text, mode="eval").body
            operator = ast.unparse(tree.func) if isinstance(tree, ast.Call) else ""
            for last in (operator, "Div") if operator == "Mul" else (operator,):
                RULES.setdefault(last, []).append(Rule(tree, build, is_shared))
        return build

    return register


def simplified(
    nodes: list[Node], constants: dict[str, Any], outputs: tuple[str, ...], floats: Collection[str] | None = None
) -> list[Node]:
    """Return nodes with patterns replaced. Nodes that are no longer needed are still among them.

    The arguments are those of :class:`Graph`.
    """
    graph, found = Graph(nodes, constants, outputs, floats), []
    for node in nodes:
        waiting = [graph.renamed(node)]
        while waiting:
            first = waiting.pop(0)
            new = _replaced(graph, first)
            if new is None:
                found.append(first)
                graph.note_type(first)
            waiting = [*(new or ()), *waiting]
    return found


def _replaced(graph: Graph, node: Node) -> list[Node] | None:
    """Return the nodes in place of one that ends a pattern; None if it ends none, or has several results."""
    if any(node.outputs[1:]):
        return None
    node = replace(node, outputs=node.outputs[:1])
    for rule in RULES.get(node.operator, ()):
        for values, nodes in _of_node(graph, rule.tree, node, ({}, ())):
            match = Match(graph, values, tuple({id(each): each for each in nodes}.values()))
            new = rule.build(match) if rule.is_shared or match.is_inner() else None
            if isinstance(new, Value):
                if node.outputs[0] in graph.outputs:
                    continue
                graph.alias(node, new)
                return []
            if new is not None:
                new = new if isinstance(new, list) else [new]
                graph.replace(match.nodes[:1] if rule.is_shared else match.nodes, new)
                return new
    return None


# ---- how a pattern is compared with nodes

Found = tuple[Mapping[str, Any], tuple[Node, ...]]
"""The values of names, and the nodes so far."""


def _of_value(graph: Graph, tree: ast.expr, argument: Any, found: Found) -> Iterator[Found]:
    """Yield the ways in which a pattern describes an argument."""
    if isinstance(tree, ast.Call):
        node = graph.producer(argument)
        if node is not None:
            yield from _of_node(graph, tree, node, found)
        if ast.unparse(tree.func) in _NEUTRAL:
            yield from _of_terms(graph, tree, [argument], found)
        return
    if isinstance(tree, ast.Constant):
        number = graph.number(argument)
        if number is not None and math.isclose(number, ast.literal_eval(tree), rel_tol=_CLOSE):
            yield found
        return
    assert isinstance(tree, ast.Name), ast.dump(tree)
    values, nodes = found
    if tree.id.isupper():
        argument = graph.constant(argument)
        if argument is None or tree.id in values:
            return
    if tree.id not in values or _is_same(values[tree.id], argument):
        yield {**values, tree.id: argument}, nodes


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) is Value and one == other


def _of_node(graph: Graph, tree: ast.expr, node: Node, found: Found) -> Iterator[Found]:
    """Yield the ways in which a pattern describes the result of a node."""
    assert isinstance(tree, ast.Call)
    operator = ast.unparse(tree.func)
    if operator in _NEUTRAL:
        for terms, inner in _terms(graph, operator, node, len(tree.args)):
            yield from _of_terms(graph, tree, terms, (found[0], (*found[1], *inner)))
    elif node.operator == operator and _has_options(node, tree.keywords) and len(tree.args) <= len(node.arguments):
        yield from _of_all(graph, tree.args, node.arguments, (found[0], (*found[1], node)))


def _of_all(graph: Graph, trees: list[ast.expr], arguments: Any, found: Found) -> Iterator[Found]:
    """Yield the ways in which patterns describe arguments, one each."""
    if not trees:
        yield found
        return
    for first in _of_value(graph, trees[0], arguments[0], found):
        yield from _of_all(graph, trees[1:], arguments[1:], first)


def _has_options(node: Node, keywords: list[ast.keyword]) -> bool:
    if not keywords:
        return True
    function = operator_of(node)
    parameters = {} if function is None else signature_of(function).parameters
    for keyword in keywords:
        wanted, name = ast.literal_eval(keyword.value), str(keyword.arg)
        default = parameters[name].default if name in parameters else None
        if node.options.get(name, default) not in (wanted if isinstance(wanted, tuple) else (wanted,)):
            return False
    return True


def _terms(graph: Graph, operator: str, node: Node, count: int) -> Iterator[tuple[list[Any], tuple[Node, ...]]]:
    """Yield lists of operands whose sum or product a node computes, at most `count` that are no numbers."""
    if node.operator == operator and not node.options:
        sides = node.arguments
    elif node.operator == "Div" and operator == "Mul" and graph.number(node.arguments[1]):
        sides = node.arguments[0], 1 / (graph.number(node.arguments[1]) or 1.0)
    else:
        return
    for left, left_nodes in _of_side(graph, operator, sides[0], count):
        for right, right_nodes in _of_side(graph, operator, sides[1], count):
            terms = [*left, *right]
            if sum(graph.number(x) is None for x in terms) <= count:
                yield terms, (node, *left_nodes, *right_nodes)


def _of_side(graph: Graph, operator: str, argument: Any, count: int) -> Iterator[tuple[list[Any], tuple[Node, ...]]]:
    yield [argument], ()
    node = graph.producer(argument)
    if node is not None:
        yield from _terms(graph, operator, node, count)


def _of_terms(graph: Graph, tree: ast.Call, terms: list[Any], found: Found) -> Iterator[Found]:
    """Yield the ways in which the operands of a sum or product are those of a pattern."""
    operator = ast.unparse(tree.func)
    combined = math.prod if _NEUTRAL[operator] else math.fsum
    wanted = [part for part in tree.args if not _is_number(part)]
    numbers = [x for x in map(graph.number, terms) if x is not None]
    others = [x for x in terms if graph.number(x) is None]
    number = combined([*numbers, _NEUTRAL[operator]])
    values, nodes = found
    for part in filter(_is_number, tree.args):
        if isinstance(part, ast.Name):
            values = {**values, part.id: number}
        elif not math.isclose(number, ast.literal_eval(part), rel_tol=_CLOSE):
            return
    if len(others) != len(wanted) or (number != _NEUTRAL[operator] and not any(map(_is_number, tree.args))):
        return
    wanted.sort(key=lambda part: not isinstance(part, ast.Call))
    for order in permutations(others):
        yield from _of_all(graph, wanted, order, (values, nodes))


def _is_number(part: ast.expr) -> bool:
    return isinstance(part, ast.Constant) or (isinstance(part, ast.Name) and part.id.isupper())
