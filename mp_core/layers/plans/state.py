"""The dependencies of a recording besides its inputs. If they change, the plan records again."""

from collections.abc import Callable, Container, Iterable
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.dtypes import floatx
from mp_core.core.changes import Contents
from mp_core.layers import Layer
from mp_core.layers.base.building import inherited_training
from mp_core.layers.base.contents import LayerContents
from mp_core.layers.base.state import flat_layers
from mp_core.policies.autocast import AutoCastVariable, scope_dtype

__all__ = ["SURROUNDINGS", "State"]

SURROUNDINGS = scope_dtype, inherited_training
"""The context variables that layers inherit from their callers."""


class State:
    """The layers that a recording of `layer` depends on, with their attributes, containers, variables and arrays.

    `held` contains the `id` of each variable that is an input of the recording, and so not a dependency. With
    `is_known` the recording depends only on layers that are called, also if their classes are not mp_core's.
    """

    def __init__(self, layer: Callable[..., Any] | None, held: Container[int] = (), is_known: bool = False) -> None:
        self._known = isinstance(layer, Layer) or is_known
        self._is_known, self._held = is_known, held
        self._floatx = floatx()
        self._layers: dict[int, Any] = {}
        self._attributes, self._containers = Contents(), Contents()
        self._variables: list[tuple[AutoCastVariable, object]] = []
        self._arrays: list[tuple[Array, Array]] = []  # (array, copy): `x *= 2` changes an attribute in place
        if isinstance(layer, Layer):
            self.add(layer)

    def add(self, layer: Layer) -> None:
        """Add a layer and its sublayers to the dependencies. Call this before the layer computes."""
        layers = [part for part in flat_layers(layer) if id(part) not in self._layers]
        self._layers |= {id(part): part for part in layers}
        parts = LayerContents(layers)
        self._known &= parts.is_known or self._is_known
        self._attributes.add(parts.attributes)
        self._containers.add(parts.containers)
        self.add_variables(parts.variables)
        self._arrays += [(x, x.copy()) for x in parts.arrays if x.flags.writeable]

    def add_variables(self, variables: Iterable[AutoCastVariable]) -> None:
        """Add variables to the dependencies, except those that are inputs."""
        self._variables += [(variable, variable.stamp) for variable in variables if id(variable) not in self._held]

    def containers_changed(self) -> bool:
        """Return whether a mutable object of the user (list, dictionary, ...) changed; nothing notifies us."""
        return not self._containers.same()

    def is_outdated(self) -> bool:
        """Return whether the recording may be outdated. It always may, if it depends on unknown classes of layers."""
        return (
            not self._known
            or self._floatx != floatx()
            or self.containers_changed()
            or not self._attributes.same()
            or any(variable.stamp is not stamp for variable, stamp in self._variables)
            or not all(np.array_equal(now, before, equal_nan=now.dtype.kind == "f") for now, before in self._arrays)
        )
