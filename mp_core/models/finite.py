"""Outputs that are not finite: a second run that checks each layer finds the first layer that returns Inf or NaN."""

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.finite import all_finite
from mp_core.layers import Layer
from mp_core.layers.plans import eager
from mp_core.models.network import TextNetwork
from mp_core.policies.dtype_policies.map import policy_at
from mp_core.utilities.nonfinite import NonFiniteError, action_here

__all__ = ["check_outputs", "first_layer"]


class _Owner(Protocol):
    model: TextNetwork
    has_told: bool


def check_outputs(
    owner: _Owner,
    outputs: Array | Sequence[Array | tuple[Array, ...]],
    positions: Sequence[int] | Array,
    run: Callable[[TextNetwork, int], object],
) -> None:
    """Warn of the first outputs that are not finite, or raise NonFiniteError: see :mod:`mp_core.utilities.nonfinite`.

    There is an item of `outputs` for each input, and `positions` has the inputs' numbers in messages.
    ``run(network, i)`` runs a copy of the network on input i. The first warning sets `has_told` of `owner`; no other
    warning follows.
    """
    action = action_here()
    if action == "ignore" or (action == "warn" and owner.has_told) or all_finite(outputs):
        return
    place = next(place for place, output in enumerate(outputs) if not all_finite(output))
    error = NonFiniteError(int(positions[place]), first_layer(owner.model, lambda model: run(model, place)))
    if action == "raise":
        raise error
    owner.has_told = True
    warnings.warn(f"{error}; further ones of this model are not reported", RuntimeWarning, stacklevel=4)


def first_layer(model: TextNetwork, run: Callable[[TextNetwork], object]) -> str:
    """Return a sentence that names the first layer whose outputs are not finite, and its policy.

    `run` gets a copy of `model` that shares its weights; `model` is not changed.
    """
    copy = deepcopy(model, {id(variable): variable for variable in model.weights})
    watch = _Watch()
    for layer in copy.flatten():
        if isinstance(layer, Layer):
            kind: Any = type(layer)
            object.__setattr__(layer, "__class__", _watched(kind))
            vars(layer)["watch"] = watch
    with eager(), np.errstate(all="ignore"):
        run(copy)
    return watch.sentence()


class _Watch:
    """Records the first layer whose outputs are not finite."""

    def __init__(self) -> None:
        self.layer: Layer | None = None
        self.inside: list[Layer] = []

    def call(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a layer and check its outputs. Non-finite inputs are attributed to the surrounding layer."""
        if self.inside and args and not _is_finite(args[0]):
            self.layer = self.layer or self.inside[-1]
        self.inside.append(layer)
        kind: Any = type(layer)
        outputs = kind.__base__.call(layer, *args, **kwargs)
        self.inside.pop()
        if not _is_finite(outputs):
            self.layer = self.layer or layer
        return outputs

    def sentence(self) -> str:
        """Return the sentence about the layer."""
        layer = self.layer
        if layer is None:
            return "a module after the network computed it"
        policy = policy_at(layer.dtype_policy, layer.path).name
        found = f"layer '{layer.path or layer.name}' under the policy '{policy}' is the first to return Inf or NaN"
        if not all_finite([variable.numpy() for variable in layer.own_variables()]):
            return f"{found}: its weights hold some"
        if layer.compute_dtype == "float16":
            return f"{found}: it exceeds the range of float16, and 'mixed_bfloat16' has that of float32"
        return found


def _is_finite(x: Any) -> bool:
    return not isinstance(x, np.ndarray) or all_finite(x)


@lru_cache(maxsize=256)
def _watched(kind: Any) -> Any:
    """Return a subclass of a layer class whose calls go through a :class:`_Watch`."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.watch.call(self, args, kwargs)

    return type(kind.__name__, (kind,), {"call": call, "_arrays": kind._arrays, "__module__": kind.__module__})
