"""Programs: computations as files describe them, as a list of nodes that compute named values.

ONNX files and modules that torch exports are read into this form (:mod:`mp_core.interop`), and
:class:`mp_core.programs.ProgramModel` runs it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mp_core.arrays import Array
from mp_core.utilities.tree import leaves

__all__ = ["Input", "Node", "Program", "Value", "map_values", "values_in"]


@dataclass(frozen=True, slots=True)
class Value:
    """The name of a value, as an argument of a node."""

    name: str


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a program."""

    name: str
    dtype: str
    # A string names a length that may differ between calls. None: the file says nothing.
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class Node:
    """One operation of a program."""

    operator: str  # "Gemm", "com.microsoft.FastGelu", "aten.addmm.default"
    # Values, numbers, strings, None, and lists and tuples of them. None: an optional argument that is absent.
    arguments: tuple[Any, ...]
    outputs: tuple[str, ...]  # The names of its results. "": a result that nobody uses.
    options: Mapping[str, Any] = field(default_factory=dict)  # Arguments by name. May contain arrays and programs.
    name: str = ""
    version: int = 0  # The version of the operator set that the file uses.

    def inputs(self) -> Iterator[str]:
        """Yield the names of the values among the arguments."""
        yield from values_in((self.arguments, dict(self.options)))


@dataclass(frozen=True)
class Program:
    """A computation: `outputs` from `inputs` and `constants`, by `nodes` in the order of their execution."""

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    nodes: Sequence[Node]
    constants: Mapping[str, Array] = field(default_factory=dict)
    name: str = ""

    def captured(self) -> list[str]:
        """Return the names of the values that come from the program around this one."""
        known = {x.name for x in self.inputs} | self.constants.keys()
        found: dict[str, None] = {}
        for node in self.nodes:
            inner = [name for x in node.options.values() if isinstance(x, Program) for name in x.captured()]
            found.update(dict.fromkeys(name for name in (*node.inputs(), *inner) if name not in known))
            known.update(node.outputs)
        found.update(dict.fromkeys(name for name in self.outputs if name not in known))
        return [*found]


def values_in(tree: Any) -> Iterator[str]:
    """Yield the names of the values in a tree of arguments.

    Examples
    --------
    >>> list(values_in(([Value("x"), 2], {"axis": Value("n")})))
    ['x', 'n']
    """
    return (leaf.name for leaf in leaves(tree) if isinstance(leaf, Value))


def map_values(function: Callable[[str], Any], tree: Any) -> Any:
    """Return a tree of arguments with each value replaced by ``function(its name)``.

    Examples
    --------
    >>> map_values(str.upper, ([Value("x"), 2], None))
    (['X', 2], None)
    """
    if isinstance(tree, Value):
        return function(tree.name)
    if isinstance(tree, Mapping):
        return {key: map_values(function, part) for key, part in tree.items()}
    return type(tree)(map_values(function, part) for part in tree) if isinstance(tree, list | tuple) else tree
