"""Names of layers in Keras' weight files: attribute names; in containers, class names with numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from mp_core.layers.layer import Layer
from mp_core.layers.operation import Operation
from mp_core.utilities.names import snake_case
from mp_core.utilities.tree import numbered

__all__ = ["EXTRA_ARRAYS", "layers_by_name", "layers_in", "names_in_list", "variables_in"]

EXTRA_ARRAYS = "mp_core"
"""The group for :func:`~mp_core.layers.base.state.extra_arrays` of a layer; Keras does not read it."""


def layers_in(layer: Layer) -> dict[str, Any]:
    """Return attribute name -> the layer, or dictionary of layers (see :func:`layers_by_name`), that it holds."""
    if layer.is_made_of_layers:
        model: Any = layer
        return {"layers": layers_by_name([part for part in model.layers if not isinstance(part, Operation)], Layer)}
    return _without_empty({name: layers_by_name(value, Layer) for name, value in vars(layer).items()})


def names_in_list(layer: Layer) -> dict[int, str]:
    """Return ``id(layer)`` -> its name in the group ``layers``, for a model of a user's class; else nothing.

    Keras visits attributes in alphabetical order. The list ``layers`` is one of them. So layers that later
    attributes refer to as well are stored in the group of that list.
    """
    listed = None if layer.is_made_of_layers else getattr(layer, "layers", None)
    if not isinstance(listed, list | tuple):
        return {}
    parts = [part for part in listed if isinstance(part, Layer)]
    names = numbered(snake_case(type(part).__name__) for part in parts)
    return {id(part): name for part, name in zip(parts, names, strict=True)}


def variables_in(layer: Layer) -> dict[int, str]:
    """Return ``id(variable)`` -> its first path in the files of a model, which ends with its name in its layer.

    Paths do not depend on the names of layers, which differ if a user's class creates layers again.
    """
    found: dict[int, str] = {}
    _add_paths(layer, "", found, set())
    return found


def _add_paths(layer: Layer, path: str, found: dict[int, str], done: set[int]) -> None:
    if id(layer) in done:
        return
    done.add(id(layer))
    variables = layer.own_variables()
    for variable, name in zip(variables, numbered(variable.name for variable in variables), strict=True):
        found.setdefault(id(variable), f"{path}{name}")
    waiting = [*layers_in(layer).items()]
    for name, part in waiting:
        if isinstance(part, dict):
            waiting += [(f"{name}/{key}", below) for key, below in part.items()]
        else:
            _add_paths(part, f"{path}{name}/", found, done)


def layers_by_name(value: Any, kind: type) -> Any:
    """Return a layer of class `kind` unchanged, name -> layer for a container, and nothing for other values.

    In a container, the name of a layer is its class in snake case, and that of a nested container is ``container``;
    from the second one on with a number.
    """
    if isinstance(value, kind):
        return value
    if not isinstance(value, list | tuple | dict):
        return {}
    each: Sequence[Any] = list(value.values()) if isinstance(value, Mapping) else value
    parts = [part for part in each if isinstance(part, kind | list | tuple | dict)]
    names = [snake_case(type(part).__name__) if isinstance(part, kind) else "container" for part in parts]
    return _without_empty({name: layers_by_name(part, kind) for name, part in zip(numbered(names), parts, strict=True)})


def _without_empty(layers: dict[str, Any]) -> dict[str, Any]:
    """Drop empty dictionaries. A layer is kept even if it is falsy, as one of a user's class with ``__len__``."""
    return {name: part for name, part in layers.items() if not isinstance(part, dict) or part}
