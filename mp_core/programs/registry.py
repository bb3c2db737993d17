"""The operators of programs: each is a function that calls operations of :mod:`mp_core.ops`.

The parameters of the function are the arguments and options of the node, with their defaults. So an option that the
function does not have is one that mp_core does not support, and a program with it is refused before it runs. A
parameter annotated as :data:`~typing.Literal` has only these values, or lists of them.
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin

from mp_core.files.program import Node
from mp_core.programs.expansions import EXPANSIONS

__all__ = [
    "OPERATORS",
    "Operator",
    "RefusedError",
    "Static",
    "bound",
    "operator",
    "operator_of",
    "operators_of",
    "refusal",
]

F = TypeVar("F")


@dataclass(frozen=True)
class Operator:
    """A function that computes nodes of one operator, from one version of the operator set on."""

    since: int
    function: Callable[..., Any]


Static = Annotated[Any, "static"]
"""The annotation of a parameter whose elements decide what a plan does, such as a shape.

They may follow from shapes and constants, but not from the elements of inputs.
"""
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


def operators_of(family: str) -> list[str]:
    """Return the names of the operators of a family, such as ``aten``."""
    importlib.import_module(_TABLES[family])
    return sorted(name for name in OPERATORS if name.startswith(f"{family}."))


def operator_of(node: Node) -> Callable[..., Any] | None:
    """Return the function that computes a node; None if there is none for its operator and version."""
    importlib.import_module(_TABLES.get(node.operator.partition(".")[0], "mp_core.programs.onnx"))
    versions = OPERATORS.get(node.operator, ())
    return next((version.function for version in versions if version.since <= max(node.version, 1)), None)


def refusal(node: Node) -> str | None:
    """Return why mp_core does not run a node, or None if it does."""
    function = operator_of(node)
    if function is None and node.operator in EXPANSIONS:
        return _unfit(node)
    if function is None:
        known = node.operator in OPERATORS
        return f"version {node.version} of the operator is too old" if known else "the operator is not supported"
    try:
        given = bound(function, node)
    except TypeError as error:
        return str(error)
    for name, (annotation, value) in given.items():
        allowed = _choices(annotation)
        if allowed and not all(x in allowed for x in (value if isinstance(value, list | tuple) else [value])):
            return f"`{name}` must be one of {allowed}; received {value!r}"
    return None


def bound(function: Callable[..., Any], node: Node) -> dict[str, tuple[Any, Any]]:
    """Return the annotation and the argument of each parameter that a node gives a function; TypeError if it cannot."""
    signature = inspect.signature(function)
    given = signature.bind(*node.arguments, **node.options).arguments
    return {name: (signature.parameters[name].annotation, value) for name, value in given.items()}


def _choices(annotation: Any) -> tuple[Any, ...]:
    """Return the values that a parameter may have, if its annotation lists them."""
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _unfit(node: Node) -> str:
    """Return why a node cannot be written as other operators."""
    try:
        inspect.signature(EXPANSIONS[node.operator]).bind(None, *node.arguments, **node.options)
    except TypeError as error:
        return str(error)
    return "it was not expanded"
