"""Weights that Keras holds, in memory or in a file, and their way into layers."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from mp_core.arrays import Array
from mp_core.autocast.variable import as_stored
from mp_core.core.scopes import called_in
from mp_core.interop.keras.translation import Part
from mp_core.layers import Functional, Layer
from mp_core.layers.building import enclosing_path
from mp_core.layers.names_in_files import layers_in, named
from mp_core.layers.operation import Operation

__all__ = ["Live", "Stored", "assign"]


class Stored(Protocol):
    """Where Keras has the weights of a layer, and of the layers in it; or those of the layers in a container."""

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the variables of this layer alone, in Keras' order."""

    def arrays(self) -> Iterator[Array]:
        """Yield these variables, as arrays that nobody else holds."""

    def member(self, name: str) -> "Stored":
        """Return what there is of an attribute of the layer, or of a layer in the container, by its name in files."""

    def parts(self, parts: Sequence[Part]) -> "Sequence[Stored]":
        """Return what there is of each of the layers of a model."""


class Live:
    """The weights of a layer of Keras, or of a container as `named` returns it; anything else has none."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    def _values(self) -> list[Any]:
        """Return the variables as in a file: with int4 codes packed, and what LoRA adds in the kernel."""
        import keras

        store: dict[str, Any] = {}
        if isinstance(self._layer, keras.Layer):
            self._layer.save_own_variables(store)
        return [keras.ops.convert_to_numpy(store[key]) for key in sorted(store, key=int)]

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the variables."""
        return [value.shape for value in self._values()]

    def arrays(self) -> Iterator[Array]:
        """Yield copies of the variables."""
        return (np.array(value) for value in self._values())

    def member(self, name: str) -> "Live":
        """Return the weights of a layer in this layer or container."""
        import keras

        if isinstance(self._layer, dict):
            return Live(self._layer.get(name))
        return Live(named(getattr(self._layer, name, None), keras.Layer))

    def parts(self, parts: Sequence[Part]) -> "list[Live]":
        """Return the weights of the layers of a model, by their names."""
        return [Live(self._layer.get_layer(part.layer.name)) for part in parts]


def assign(part: Part, stored: Stored) -> None:
    """Give the layers of a model their weights, each once.

    The model is called with zeros only if there are weights for a layer that has no variables yet: users' layers may
    build those in them when they are called.

    Raises
    ------
    ValueError
        A layer has another number of weights, or a weight another shape, than there are.
    """
    pairs = list(_pairs(part, stored))
    if any(not layer.own_variables() and held.shapes() for layer, held in pairs):
        _run(part.layer)
        pairs = list(_pairs(part, stored))
    for layer, held in pairs:
        _assign_layer(layer, held)


def _pairs(part: Part, stored: Stored) -> Iterator[tuple[Layer, Stored]]:
    """Yield every layer of a model, each once, beside where its weights are."""
    done: set[int] = set()

    def of_part(part: Part, stored: Stored) -> Iterator[tuple[Layer, Stored]]:
        if part.inner is None and not part.parts:
            yield from of_layer(part.layer, stored)
        elif id(part.layer) not in done:
            done.add(id(part.layer))
            parts = [each for each in part.parts if not isinstance(each.layer, Operation)]
            yield from () if part.inner is None else of_part(part.inner, stored.member("layer"))
            for each, below in zip(parts, stored.parts(parts) if parts else (), strict=True):
                yield from of_part(each, below)

    def of_layer(layer: Layer, stored: Stored) -> Iterator[tuple[Layer, Stored]]:
        if id(layer) not in done:
            done.add(id(layer))
            yield layer, stored
            yield from of_places(layers_in(layer), stored)

    def of_places(places: dict[str, Any], stored: Stored) -> Iterator[tuple[Layer, Stored]]:
        for name, below in places.items():
            yield from (of_places if isinstance(below, dict) else of_layer)(below, stored.member(name))

    return of_part(part, stored)


def _run(model: Any) -> None:
    """Call the layers of a model with zeros, as its graph does. What a layer builds meanwhile is below its path."""
    parts = (layer for layer in model.flatten() if isinstance(layer, Layer) and not isinstance(layer, Functional))
    layers = [layer for layer in parts if layer.built]
    try:
        for layer in layers:
            vars(layer)["call"] = _below(layer)
        model._find_ends()
    except Exception as error:  # of users' layers
        raise ValueError(f"layers in '{model.name}' are built when they are called, which failed: {error}") from error
    finally:
        for layer in layers:
            vars(layer).pop("call", None)


def _below(layer: Layer) -> Callable[..., Any]:
    """Return a ``call`` that runs under the path of its layer, as a first one does: what it builds is below."""
    call, path = layer.call, layer._path or ""
    return lambda *args, **kwargs: called_in(enclosing_path, path, call, args, kwargs)


def _assign_layer(layer: Layer, stored: Stored) -> None:
    variables, shapes = layer._saved_variables(), stored.shapes()
    wanted = [variable.shape for variable in variables]
    if shapes != wanted:
        names = ", ".join(variable.name for variable in variables)
        raise ValueError(f"layer '{layer.name}' needs weights ({names}) of shapes {wanted}; there are {shapes}")
    for variable, value in zip(variables, stored.arrays(), strict=True):
        try:
            variable.assign(as_stored(value, variable.true_dtype, variable.name, copy=False), copy=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"layer '{layer.name}', weight '{variable.name}': {error}") from error
    for variable in layer._cleared_by_loading() if variables else ():
        variable.assign(np.zeros(variable.shape, variable.true_dtype))
