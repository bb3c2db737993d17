"""The registry of operations that take symbolic arrays. :func:`operation` registers each where it is defined.

Keras has a class for each operation, named after the function: ``ExpandDims`` for ``expand_dims``. The constructor of
the class takes the options of a call, such as ``axis``; its call takes the operands. Keras' files name both.
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
    """The arguments of a call, split as Keras' operation class takes them."""

    operands: list[Any]  # The positional operands.
    named: dict[str, Any]  # Optional operands, by name.
    options: dict[str, Any]  # The arguments of the class's constructor.


@dataclass(frozen=True)
class Row:
    """An operation of :mod:`mp_core.ops`, and how its arguments correspond to those of Keras' class."""

    name: str  # The name of Keras' class.
    function: Callable[..., Any]  # The operation.
    rule: Rule  # Computes shape and dtype of the results: see `mp_core.ops.specs`.
    # The parameters of `function` that are arrays or numbers. Those with defaults are passed by name.
    operands: tuple[str, ...] = ("x",)
    # Parameter of the class's constructor -> parameter of `function`.
    options: Mapping[str, str] = field(default_factory=dict)
    home: str = "numpy"  # The module below ``keras.src.ops`` that defines the class.
    # Operand passed by name -> Keras' name of it, if that differs.
    names: Mapping[str, str] = field(default_factory=dict)
    # Option -> its default in Keras, if `function` has another default.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # Option whose values differ in meaning -> (our value to Keras', Keras' value to ours).
    forms: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = field(default_factory=dict)
    # Constructor parameter that `function` lacks -> its values under which the class computes what `function` does.
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @cached_property
    def _required_operands(self) -> int:
        """The number of operands without a default."""
        parameters = self._signature.parameters
        return sum(parameters[name].default is inspect.Parameter.empty for name in self.operands)

    @cached_property
    def _keras_names(self) -> dict[str, str]:
        """Our name of an option or a named operand -> Keras' name."""
        return {ours: theirs for theirs, ours in self.options.items()} | dict(self.names)

    def arguments(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Split the arguments of a call of `function`: this row's function, or the general path of a compiled one."""
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        found = Arguments([], {}, {})
        for name, value in bound.arguments.items():
            if name in self.options.values():
                theirs = self._keras_names[name]
                found.options[theirs] = self.forms[theirs][0](value) if theirs in self.forms else value
            elif name not in self.operands:
                own = self._signature.parameters[name].default
                if value is not own and not (type(value) is type(own) and value == own):
                    raise TypeError(
                        f"`{name}` of mp_core.ops.{self.function.__name__} must not be given with symbolic arrays: "
                        f"Keras' {self.name} has no such argument; received {value!r}"
                    )
            elif self._signature.parameters[name].default is inspect.Parameter.empty:
                found.operands.append(value)
            elif value is not None:
                found.named[self._keras_names.get(name, name)] = value
        return found

    def checked_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the class's constructor that `function` has, with Keras' defaults."""
        allowed = self.options.keys() | self.fixed.keys()
        if not isinstance(options, Mapping) or not options.keys() <= allowed:
            raise ValueError(f"`options` of {self.name} must be of {sorted(allowed)}; received {options!r:.200}")
        for name, values in self.fixed.items():
            if options.get(name, values[0]) not in values:
                raise ValueError(f"`{name}` of {self.name} must be {values[0]!r}; received {options[name]!r}")
        return {**self.defaults, **{name: value for name, value in options.items() if name in self.options}}

    def keywords(self, operands: Sequence[Any], named: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call of Keras' class as keywords of `function` and `rule`."""
        if not self._required_operands <= len(operands) <= len(self.operands):
            raise TypeError(f"{self.name} takes {self._required_operands} operands; received {len(operands)}")
        back = {theirs: ours for ours, theirs in self._keras_names.items()}
        given = dict(zip(self.operands, operands, strict=False))
        found = {name: self.forms[name][1](x) if name in self.forms else x for name, x in {**named, **options}.items()}
        return given | {back.get(name, name): value for name, value in found.items()}


OPERATIONS: dict[str, Row] = {}
"""Name of Keras' class -> its row."""


def register(row: Row, *functions: Callable[..., Any]) -> None:
    """Add a row, which :func:`row_of` finds by `functions`: its function, or the general path of a compiled one."""
    OPERATIONS[row.name] = row
    for function in functions:
        function.row = row  # type: ignore[attr-defined]


def operation(
    rule: Rule, operands: str = "x", options: str | Mapping[str, str] = "", home: str = "numpy", **others: Any
) -> Callable[[F], F]:
    """Return a decorator that registers a function as an operation that takes symbolic arrays, by a :class:`Row`.

    `operands` and `options` are names separated by spaces; options whose names differ from Keras' are a mapping.
    """
    names: Mapping[str, str] = options if isinstance(options, Mapping) else {name: name for name in options.split()}

    def registered(function: F) -> F:
        name = "".join(part[:1].upper() + part[1:] for part in function.__name__.split("_"))
        found = function if dispatches(function) else takes_symbols(function)
        register(Row(name, found, rule, tuple(operands.split()), names, home, **others), found)
        return found  # type: ignore[return-value]

    return registered


def row_of(function: Callable[..., Any]) -> Row | None:
    """Return the row of a function; None if it does not take symbolic arrays."""
    return getattr(function, "row", None)
