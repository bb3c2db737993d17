"""Whether a function can have the arguments and options of a node: its parameters and their annotations say so."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from mp_core.files.program import Node

__all__ = ["Shaped", "Static", "bound", "misfit", "signature_of"]

Static = Annotated[Any, "static"]
"""The annotation of a parameter whose elements decide what a plan does, such as a shape.

They may follow from shapes and constants, but not from the elements of inputs.
"""
Shaped = Annotated[Any, "shaped"]
"""The annotation of a parameter of which only the shape and the type are read, which plans know."""


@cache
def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the parameters of a function."""
    return inspect.signature(function)


def bound(function: Callable[..., Any], node: Node, *first: Any) -> dict[str, tuple[Any, Any]]:
    """Return the annotation and the argument of each parameter; TypeError if the function cannot have the arguments.

    `first` are arguments before those of the node.
    """
    signature = signature_of(function)
    given = signature.bind(*first, *node.arguments, **node.options).arguments
    return {name: (signature.parameters[name].annotation, value) for name, value in given.items()}


def misfit(function: Callable[..., Any], node: Node, *first: Any) -> str | None:
    """Return why a function cannot have the arguments and options of a node; None if it can."""
    try:
        given = bound(function, node, *first)
    except TypeError as error:
        return str(error)
    for name, (annotation, value) in given.items():
        allowed = get_args(annotation) if get_origin(annotation) is Literal else ()
        if allowed and not all(x in allowed for x in (value if isinstance(value, list | tuple) else [value])):
            return f"`{name}` must be one of {allowed}; received {value!r}"
    return None
