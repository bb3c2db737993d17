"""The operators of programs: each is a function that calls operations of :mod:`mp_core.ops`.

The parameters of the function are the arguments and options of the node, with their defaults. So an option that the
function does not have is one that mp_core does not support, and a program with it is refused before it runs.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from mp_core.files.program import Node

__all__ = ["OPERATORS", "Operator", "RefusedError", "operator", "operator_of", "refusals"]

F = TypeVar("F")


@dataclass(frozen=True)
class Operator:
    """A function that computes nodes of one operator, from one version of the operator set on."""

    since: int
    function: Callable[..., Any]


OPERATORS: dict[str, list[Operator]] = {}
"""Name -> its versions, the newest first. :func:`operator` adds them."""
_TABLES = {"aten": "mp_core.programs.aten"}
"""The first part of an operator's name -> the module that defines its family, if that is not ONNX."""


class RefusedError(ValueError):
    """A program has nodes that mp_core does not run; the message lists all of them."""


def operator(*names: str, since: int = 1) -> Callable[[F], F]:
    """Register a function as the operators `names`, from version `since` of the operator set on."""

    def register(function: F) -> F:
        for name in names:
            versions = OPERATORS.setdefault(name, [])
            versions.append(Operator(since, cast(Any, function)))
            versions.sort(key=lambda version: -version.since)
        return function

    return register


def operator_of(node: Node) -> Callable[..., Any] | None:
    """Return the function that computes a node; None if there is none for its operator and version."""
    importlib.import_module(_TABLES.get(node.operator.partition(".")[0], "mp_core.programs.onnx"))
    versions = OPERATORS.get(node.operator, ())
    return next((version.function for version in versions if version.since <= max(node.version, 1)), None)


def refusals(nodes: Iterable[Node]) -> list[str]:
    """Return a line for each node that mp_core does not run: its name, operator and the reason."""
    return [f"{node.name or node.outputs[0]} ({node.operator}): {why}" for node in nodes if (why := _refusal(node))]


def _refusal(node: Node) -> str | None:
    function = operator_of(node)
    if function is None:
        known = node.operator in OPERATORS
        return f"version {node.version} of the operator is too old" if known else "the operator is not supported"
    try:
        inspect.signature(function).bind(*node.arguments, **node.options)
    except TypeError as error:
        return str(error)
    return None
