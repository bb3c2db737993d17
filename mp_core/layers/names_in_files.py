"""How Keras' files of weights call the layers in a layer: by attributes, and in containers by classes and counts."""

from collections.abc import Mapping, Sequence
from typing import Any

from mp_core.layers.layer import Layer
from mp_core.layers.operation import Operation
from mp_core.utilities.names import snake_case
from mp_core.utilities.tree import numbered

__all__ = ["BESIDE", "layers_in", "named", "names_in_list", "variables_in"]

BESIDE = "mp_core"
"""The group of a layer that Keras does not read: what :func:`~mp_core.layers.base.state.extra_arrays` returned."""


def layers_in(layer: Layer) -> dict[str, Any]:
    """Return what is in a layer by the names of its attributes: a layer, or a dictionary of several as in `named`."""
    if layer.is_made_of_layers:
        model: Any = layer
        return {"layers": named([part for part in model.layers if not isinstance(part, Operation)], Layer)}
    return _without_empty({name: named(value, Layer) for name, value in vars(layer).items()})


def names_in_list(layer: Layer) -> dict[int, str]:
    """Return ``id(layer)`` -> its name in the group ``layers`` of a model of a user's class; of others nothing.

    Keras walks the attributes by the alphabet. The list ``layers`` is one of them: its group has what comes later.
    """
    listed = None if layer.is_made_of_layers else getattr(layer, "layers", None)
    if not isinstance(listed, list | tuple):
        return {}
    parts = [part for part in listed if isinstance(part, Layer)]
    names = numbered(snake_case(type(part).__name__) for part in parts)
    return {id(part): name for part, name in zip(parts, names, strict=True)}


def variables_in(layer: Layer) -> dict[int, str]:
    """Return ``id(variable)`` -> the first place of a variable in the files of a model, and its name in its layer.

    These do not depend on the names of layers, which a class of the user may make anew.
    """
    found: dict[int, str] = {}
    _add_places(layer, "", found, set())
    return found


def _add_places(layer: Layer, place: str, found: dict[int, str], done: set[int]) -> None:
    if id(layer) in done:
        return
    done.add(id(layer))
    variables = layer.own_variables()
    for variable, name in zip(variables, numbered(variable.name for variable in variables), strict=True):
        found.setdefault(id(variable), f"{place}{name}")
    waiting = [*layers_in(layer).items()]
    for name, part in waiting:
        if isinstance(part, dict):
            waiting += [(f"{name}/{key}", below) for key, below in part.items()]
        else:
            _add_places(part, f"{place}{name}/", found, done)


def named(value: Any, kind: type) -> Any:
    """Return a layer as it is, and those of a list, tuple or dictionary by their names; an empty dictionary for others.

    In a container, layers are called by their classes and others by ``container``, counted from the second one on.

    Parameters
    ----------
    value : object
    kind : type
        What layers are: those of mp_core or of Keras.
    """
    if isinstance(value, kind):
        return value
    if not isinstance(value, list | tuple | dict):
        return {}
    each: Sequence[Any] = list(value.values()) if isinstance(value, Mapping) else value
    parts = [part for part in each if isinstance(part, kind | list | tuple | dict)]
    names = [snake_case(type(part).__name__) if isinstance(part, kind) else "container" for part in parts]
    return _without_empty({name: named(part, kind) for name, part in zip(numbered(names), parts, strict=True)})


def _without_empty(places: dict[str, Any]) -> dict[str, Any]:
    """Leave out what no layer is in; a layer itself may be false, if a user's class has a length."""
    return {name: part for name, part in places.items() if not isinstance(part, dict) or part}
