"""What of a program mp_core does not run, found before anything runs."""

from collections.abc import Iterable, Iterator

from mp_core.arrays.dtypes import ALLOWED, STORED
from mp_core.files.program import Node, Program, Value, values_in
from mp_core.programs.registry import operator_of, refusal
from mp_core.programs.signatures import Shaped, Static, bound, misfit

__all__ = ["refusals"]

_DEPENDS = "depends on the elements of inputs, not only on shapes and constants"


def refusals(program: Program) -> list[str]:
    """Return a line for each input and node that mp_core does not run: its name, operator and the reason."""
    inputs = [x for x in program.inputs if x.dtype not in ALLOWED and x.dtype not in STORED]
    return [f"input {x.name}: its type, {x.dtype}, is not one of numbers" for x in inputs] + _of_nodes(program, ())


def _of_nodes(program: Program, given: Iterable[str]) -> list[str]:
    """Return a line for each node; `given`: inputs and captured values that depend on shapes and constants only."""
    static, found = {*program.constants, *given}, []
    for node in program.nodes:
        found += [f"{node.name or node.outputs[0]} ({node.operator}): {why}" for why in _reasons(node, static)]
        for inner in _programs(node):
            found += _of_nodes(inner, {*static, *_static_inputs(node, inner, static)})
        if _is_static(node, static):
            static.update(node.outputs)
    return found


def _reasons(node: Node, static: set[str]) -> Iterator[str]:
    why = refusal(node)
    if why is not None:
        yield why
        return
    function = operator_of(node)
    assert function is not None, node
    for name, (annotation, argument) in bound(function, node).items():
        if annotation is Static and not _are_static([argument], static):
            yield f"`{name}` {_DEPENDS}"
    if node.operator == "Loop":
        body = next(iter(_programs(node)))
        goes_on = {*static, *_static_inputs(node, body, static)}
        if body.outputs[0] not in _static_names(body, goes_on):
            yield f"the condition of its last trip {_DEPENDS}"


def _programs(node: Node) -> list[Program]:
    return [x for x in node.options.values() if isinstance(x, Program)]


def _are_static(arguments: Iterable[object], static: set[str]) -> bool:
    return all(x.name in static for x in arguments if isinstance(x, Value))


def _is_static(node: Node, static: set[str]) -> bool:
    """Return whether the results of a node depend on shapes and constants only."""
    captured = (name for inner in _programs(node) for name in inner.captured())
    return all(name in static for name in (*_read(node), *captured))


def _read(node: Node) -> Iterator[str]:
    """Yield the names of the values whose elements a node reads."""
    function = operator_of(node)
    if function is None or misfit(function, node) is not None:
        return node.inputs()
    given = bound(function, node).values()
    return values_in([argument for annotation, argument in given if annotation is not Shaped])


def _static_names(program: Program, given: Iterable[str]) -> set[str]:
    """Return the values of a program that depend on shapes and constants only."""
    static = {*program.constants, *given}
    for node in program.nodes:
        if _is_static(node, static):
            static.update(node.outputs)
    return static


def _static_inputs(node: Node, body: Program, static: set[str]) -> set[str]:
    """Return the inputs of a graph in a Loop that depend on shapes and constants only, in each trip."""
    if node.operator != "Loop":
        return set()
    trip, goes_on, *carried = (x.name for x in body.inputs)
    found = {trip, goes_on} | {name for name, x in zip(carried, node.arguments[2:], strict=False)
                               if _are_static([x], static)}  # fmt: skip
    while True:
        names = _static_names(body, {*static, *found})
        changed = {name for name, out in zip(carried, body.outputs[1:], strict=False) if out not in names} & found
        if not changed:
            return found
        found -= changed
