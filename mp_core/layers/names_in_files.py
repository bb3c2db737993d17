"""How Keras' files of weights call the layers in a layer: by attributes, and in containers by classes and counts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mp_core.layers.building import snake_case
from mp_core.layers.graph import Functional
from mp_core.layers.layer import Layer
from mp_core.layers.operation import Operation
from mp_core.layers.sequential import Sequential

__all__ = ["layers_in", "named"]


def layers_in(layer: Layer) -> dict[str, Any]:
    """Return what is in a layer by the names of its attributes: a layer, or a dictionary of several as in `named`."""
    if isinstance(layer, Functional | Sequential):
        return {"layers": named([part for part in layer.layers if not isinstance(part, Operation)], Layer)}
    return _without_empty({name: named(value, Layer) for name, value in vars(layer).items()})


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
    found: dict[str, Any] = {}
    if not isinstance(value, list | tuple | dict):
        return found
    counts = Counter[str]()
    each: Sequence[Any] = list(value.values()) if isinstance(value, Mapping) else value
    for part in each:
        below = named(part, kind)
        if isinstance(part, kind | list | tuple | dict):
            name = snake_case(type(part).__name__) if isinstance(part, kind) else "container"
            found[name if not counts[name] else f"{name}_{counts[name]}"] = below
            counts[name] += 1
    return _without_empty(found)


def _without_empty(places: dict[str, Any]) -> dict[str, Any]:
    """Leave out what no layer is in; a layer itself may be false, if a user's class has a length."""
    return {name: part for name, part in places.items() if not isinstance(part, dict) or part}
