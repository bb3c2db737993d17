"""What a recording depends on beside its inputs: when that has changed, a plan records anew."""

from collections.abc import Callable, Container, Iterable
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.dtypes import floatx
from mp_core.core.changes import Contents
from mp_core.layers import Layer
from mp_core.layers.base.building import inherited_training
from mp_core.layers.base.contents import LayerContents
from mp_core.policies.autocast import AutoCastVariable, scope_dtype

__all__ = ["SURROUNDINGS", "State"]

SURROUNDINGS = scope_dtype, inherited_training
"""What layers take over from those who call them."""


class State:
    """What a recording depends on beside its inputs: layers, and what they consist of.

    Parameters
    ----------
    layer : callable, optional
        What is recorded.
    held : container of int
        The `id` of each variable that is an input of the recording.
    is_known : bool
        Whether it depends on nothing but the layers that are called, whatever their classes are.
    """

    def __init__(self, layer: Callable[..., Any] | None, held: Container[int] = (), is_known: bool = False) -> None:
        self._known = isinstance(layer, Layer) or is_known
        self._is_known, self._held = is_known, held
        self._floatx = floatx()
        self._layers: dict[int, Any] = {}
        self._attributes, self._containers = Contents(), Contents()
        self._variables: list[tuple[AutoCastVariable, object]] = []
        self._arrays: list[tuple[Array, Array]] = []  # attributes that are written in place when they are set: x *= 2
        if isinstance(layer, Layer):
            self.add(layer)

    def add(self, layer: Layer) -> None:
        """Watch a layer, and those below it, from now on: it computes afterwards."""
        layers = [part for part in layer.flatten() if id(part) not in self._layers]
        self._layers |= {id(part): part for part in layers}
        parts = LayerContents(layers)
        self._known &= parts.is_known or self._is_known
        self._attributes.add(parts.attributes)
        self._containers.add(parts.containers)
        self.add_variables(parts.variables)
        self._arrays += [(x, x.copy()) for x in parts.arrays if x.flags.writeable]

    def add_variables(self, variables: Iterable[AutoCastVariable]) -> None:
        """Watch variables, except those that are inputs."""
        self._variables += [(variable, variable.stamp) for variable in variables if id(variable) not in self._held]

    def moved(self) -> bool:
        """Whether a list, a dictionary or an object of the user has changed, which nobody tells."""
        return not self._containers.same()

    def changed(self) -> bool:
        """Whether the recording must be made anew. What others than mp_core's layers depend on, nobody knows."""
        return (
            not self._known
            or self._floatx != floatx()
            or self.moved()
            or not self._attributes.same()
            or any(variable.stamp is not stamp for variable, stamp in self._variables)
            or not all(np.array_equal(now, before, equal_nan=now.dtype.kind == "f") for now, before in self._arrays)
        )
