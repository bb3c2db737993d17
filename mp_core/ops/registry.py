"""The operations that symbolic arrays take: each is registered where it is defined, by :func:`operation`.

Keras has a class for each of them, whose name follows from that of the function: ``ExpandDims`` of ``expand_dims``. Its
constructor takes the options of a call, such as ``axis``, and its call takes the operands. Files of Keras name both.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from mp_core.arrays.recorded import dispatches, takes_symbols
from mp_core.ops.specs import Rule

__all__ = ["OPERATIONS", "Arguments", "Row", "operation", "register", "row_of"]

F = TypeVar("F", bound=Callable[..., Any])


class Arguments(NamedTuple):
    """The arguments of a call, as Keras' operation takes them.

    Attributes
    ----------
    operands : list
        By position.
    named : dict
        Operands by name: those that a call may lack.
    options : dict
        The arguments of the constructor of Keras' operation.
    """

    operands: list[Any]
    named: dict[str, Any]
    options: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """An operation of :mod:`mp_core.ops` that Keras has too.

    Attributes
    ----------
    name : str
        Of Keras' class.
    function : callable
    rule : callable
        What says shape and type of the results: see :mod:`mp_core.ops.specs`.
    operands : tuple of str
        The arguments of `function` that are arrays or numbers. Those that have defaults are handed on by name.
    options : mapping of str to str
        Argument of the constructor of Keras' class -> the same argument of `function`.
    home : str
        The module below ``keras.src.ops`` that has the class.
    names : mapping of str to str
        Operand that Keras calls otherwise -> Keras' name; of those alone that are handed on by name.
    defaults : mapping of str to object
        What an option is in Keras if it is not given, where `function` has another default.
    forms : mapping of str to pair of callable
        Option that Keras says in another way -> what makes Keras' value of ours, and ours of Keras'.
    fixed : mapping of str to tuple
        Argument of the constructor of Keras' class that `function` does not have -> the values that mean what it does.
    """

    name: str
    function: Callable[..., Any]
    rule: Rule
    operands: tuple[str, ...] = ("x",)
    options: Mapping[str, str] = field(default_factory=dict)
    home: str = "numpy"
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    forms: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = field(default_factory=dict)
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @cached_property
    def _least(self) -> int:
        """How many operands every call has."""
        parameters = self._signature.parameters
        return sum(parameters[name].default is inspect.Parameter.empty for name in self.operands)

    @cached_property
    def _theirs(self) -> dict[str, str]:
        """Keras' name of an option or a named operand, by the name of ours."""
        return {ours: theirs for theirs, ours in self.options.items()} | dict(self.names)

    def arguments(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Return the arguments of a call of `function`: that of this row, or what it is compiled to call.

        Raises
        ------
        TypeError
            There is an argument that Keras' operation does not have.
        """
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        found = Arguments([], {}, {})
        for name, value in bound.arguments.items():
            if name in self.options.values():
                theirs = self._theirs[name]
                found.options[theirs] = self.forms[theirs][0](value) if theirs in self.forms else value
            elif name not in self.operands:
                own = self._signature.parameters[name].default
                if value is not own and not (type(value) is type(own) and value == own):
                    raise TypeError(
                        f"`{name}` of mp_core.ops.{self.function.__name__} must not be given beside symbolic arrays: "
                        f"Keras' {self.name} has no such argument; received {value!r}"
                    )
            elif self._signature.parameters[name].default is inspect.Parameter.empty:
                found.operands.append(value)
            elif value is not None:
                found.named[self._theirs.get(name, name)] = value
        return found

    def known(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that the constructor of Keras' class is given, as they are kept here.

        Raises
        ------
        ValueError
            There are others than it has, or one has a value that `function` does not compute.
        """
        allowed = self.options.keys() | self.fixed.keys()
        if not isinstance(options, Mapping) or not options.keys() <= allowed:
            raise ValueError(f"`options` of {self.name} must be of {sorted(allowed)}; received {options!r:.200}")
        for name, values in self.fixed.items():
            if options.get(name, values[0]) not in values:
                raise ValueError(f"`{name}` of {self.name} must be {values[0]!r}; received {options[name]!r}")
        return {**self.defaults, **{name: value for name, value in options.items() if name in self.options}}

    def ours(self, operands: Sequence[Any], named: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call as keywords of `function` and of `rule`.

        Raises
        ------
        TypeError
            There are more or fewer operands than the operation has.
        """
        if not self._least <= len(operands) <= len(self.operands):
            raise TypeError(f"{self.name} takes {self._least} operands; received {len(operands)}")
        back = {theirs: ours for ours, theirs in self._theirs.items()}
        given = dict(zip(self.operands, operands, strict=False))
        found = {name: self.forms[name][1](x) if name in self.forms else x for name, x in {**named, **options}.items()}
        return given | {back.get(name, name): value for name, value in found.items()}


OPERATIONS: dict[str, Row] = {}
"""Keras' name of an operation -> what is known of it."""


def register(row: Row, *functions: Callable[..., Any]) -> None:
    """Add a row, for calls of some functions: what its own function calls, if that is compiled."""
    OPERATIONS[row.name] = row
    for function in functions:
        function.row = row  # type: ignore[attr-defined]


def operation(
    rule: Rule, operands: str = "x", options: str | Mapping[str, str] = "", home: str = "numpy", **others: Any
) -> Callable[[F], F]:
    """Register a function as an operation that symbolic arrays take.

    Parameters
    ----------
    rule, home, **others
        As :class:`Row` has them.
    operands : str
        Their names, with spaces between them.
    options : str or mapping
        Their names, if Keras has the same; otherwise as :class:`Row` has them.
    """
    names: Mapping[str, str] = options if isinstance(options, Mapping) else {name: name for name in options.split()}

    def registered(function: F) -> F:
        name = "".join(part[:1].upper() + part[1:] for part in function.__name__.split("_"))
        found = function if dispatches(function) else takes_symbols(function)
        register(Row(name, found, rule, tuple(operands.split()), names, home, **others), found)
        return found  # type: ignore[return-value]

    return registered


def row_of(function: Callable[..., Any]) -> Row | None:
    """Return the row of a function, None if symbolic arrays do not take it."""
    return getattr(function, "row", None)
