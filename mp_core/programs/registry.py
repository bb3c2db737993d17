"""The operators of programs: each is a function that calls operations of :mod:`mp_core.ops`.

The parameters of the function are the arguments and options of the node, with their defaults. So an option that the
function does not have is one that mp_core does not support, and a program with it is refused before it runs. A
parameter annotated as :data:`~typing.Literal` has only these values, or lists of them.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from mp_core.files.program import Node
from mp_core.programs.expansions import EXPANSIONS
from mp_core.programs.signatures import Shaped, Static, bound, misfit

__all__ = [
    "OPERATORS",
    "Operator",
    "RefusedError",
    "Shaped",
    "Static",
    "bound",
    "keeps_type",
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
    keeps_type: bool = False  # Whether its results have the type of the first argument.


OPERATORS: dict[str, list[Operator]] = {}
"""Name -> its versions, the newest first. :func:`operator` adds them."""
_TABLES = {"aten": "mp_core.programs.aten", "onnx": "mp_core.programs.onnx"}
"""The family of operators -> the module that defines it. Names of all families but ONNX begin with the family."""


class RefusedError(ValueError):
    """A program has nodes that mp_core does not run; the message lists all of them."""


def operator(*names: str, since: int = 1, keeps_type: bool = False) -> Callable[[F], F]:
    """Register a function as the operators `names`, from version `since` of the operator set on.

    `keeps_type` says that results have the type of the first argument.
    """

    def register(function: F) -> F:
        for name in names:
            versions = OPERATORS.setdefault(name, [])
            versions.append(Operator(since, cast(Any, function), keeps_type))
            versions.sort(key=lambda version: -version.since)
        return function

    return register


def operators_of(family: str) -> list[str]:
    """Return the names of the operators of a family: ``aten`` or ``onnx``."""
    importlib.import_module(_TABLES[family])
    return sorted(name for name in {*OPERATORS, *EXPANSIONS} if _family(name) == family)


def _family(operator: str) -> str:
    first = operator.partition(".")[0]
    return first if first in _TABLES else "onnx"


def operator_of(node: Node) -> Callable[..., Any] | None:
    """Return the function that computes a node; None if there is none for its operator and version."""
    found = _version_of(node)
    return None if found is None else found.function


def keeps_type(node: Node) -> bool:
    """Return whether the results of a node are known to have the type of its first argument."""
    found = _version_of(node)
    return found is not None and found.keeps_type


def _version_of(node: Node) -> Operator | None:
    importlib.import_module(_TABLES[_family(node.operator)])
    versions = OPERATORS.get(node.operator, ())
    return next((version for version in versions if version.since <= max(node.version, 1)), None)


def refusal(node: Node) -> str | None:
    """Return why mp_core does not run a node, or None if it does."""
    function = operator_of(node)
    if function is not None:
        return misfit(function, node)
    if node.operator in EXPANSIONS:
        return misfit(EXPANSIONS[node.operator], node, None)
    known = node.operator in OPERATORS
    return f"version {node.version} of the operator is too old" if known else "the operator is not supported"
