"""Weights that Keras holds, in memory or in a file, and their way into layers."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from mp_core.arrays import Array
from mp_core.autocast.variable import as_stored
from mp_core.interop.keras.translation import Part
from mp_core.layers import Layer
from mp_core.layers.operation import Operation

__all__ = ["Live", "Stored", "assign"]


class Stored(Protocol):
    """Where Keras has the weights of a layer, and of the layers in it."""

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the variables of this layer alone, in Keras' order."""

    def arrays(self) -> Iterator[Array]:
        """Yield these variables, as arrays that nobody else holds."""

    def attribute(self, name: str) -> "Stored":
        """Return what there is of the layer that is this attribute of the layer."""

    def parts(self, parts: Sequence[Part]) -> "Sequence[Stored]":
        """Return what there is of each of the layers of a model."""


class Live:
    """The weights of a layer of Keras in this process."""

    def __init__(self, layer: Any) -> None:
        import keras

        self._layer = layer
        store: dict[str, Any] = {}
        layer.save_own_variables(store)  # as into a file: with int4 codes packed, and what LoRA adds in the kernel
        self._values = [keras.ops.convert_to_numpy(store[key]) for key in sorted(store, key=int)]

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the variables."""
        return [value.shape for value in self._values]

    def arrays(self) -> Iterator[Array]:
        """Yield copies of the variables."""
        return (np.array(value) for value in self._values)

    def attribute(self, name: str) -> "Live":
        """Return the weights of a layer in this one."""
        return Live(getattr(self._layer, name))

    def parts(self, parts: Sequence[Part]) -> "list[Live]":
        """Return the weights of the layers of a model, by their names."""
        return [Live(self._layer.get_layer(part.layer.name)) for part in parts]


def assign(part: Part, stored: Stored) -> None:
    """Give the layers of a model their weights, each once.

    Raises
    ------
    ValueError
        A layer has another number of weights, or a weight another shape, than there are.
    """
    done: set[int] = set()

    def walk(part: Part, stored: Stored) -> None:
        if id(part.layer) in done:
            return
        done.add(id(part.layer))
        if part.inner is not None:
            walk(part.inner, stored.attribute("layer"))
            return
        if not part.parts:
            _assign_layer(part.layer, stored)
            return
        parts = [each for each in part.parts if not isinstance(each.layer, Operation)]
        for each, below in zip(parts, stored.parts(parts), strict=True):
            walk(each, below)

    walk(part, stored)


def _assign_layer(layer: Layer, stored: Stored) -> None:
    variables, shapes = layer._saved_variables(), stored.shapes()
    wanted = [variable.shape for variable in variables]
    if variables and shapes != wanted:
        names = ", ".join(variable.name for variable in variables)
        raise ValueError(f"layer '{layer.name}' needs weights ({names}) of shapes {wanted}; Keras has {shapes}")
    if variables:
        for variable, value in zip(variables, stored.arrays(), strict=True):
            try:
                variable.assign(as_stored(value, variable.true_dtype, variable.name, copy=False), copy=False)
            except (TypeError, ValueError) as error:
                raise ValueError(f"layer '{layer.name}', weight '{variable.name}': {error}") from error
        for variable in layer._cleared_by_loading():
            variable.assign(np.zeros(variable.shape, variable.true_dtype))
    for name, child in vars(layer).items():
        if isinstance(child, Layer):
            _assign_layer(child, stored.attribute(name))
