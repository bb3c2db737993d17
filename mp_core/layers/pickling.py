"""What the pickle of a layer holds, and what is wrong with a damaged one."""

from typing import Any

import numpy as np

from mp_core.autocast import AutoCastVariable
from mp_core.dtype_policies import DTypePolicy
from mp_core.utilities.arguments import state_of

__all__ = ["checked_state", "state_with_types"]

_TYPES = "types of the attributes"
_STATE: dict[str, Any] = {
    "name": str, "trainable": bool | np.bool_, "autocast": bool, "built": bool, "quantized": bool,
    "_path": str | None, "_dtype_policy": DTypePolicy, "_variables": list,
}  # fmt: skip
_SYMBOLIC = ("_origin", "_ends")
"""Attributes that are no part of a copy: its layers were not called with the symbolic arrays of the original."""


def state_with_types(layer: Any) -> dict[str, Any]:
    """Return the attributes of a layer; of one of mp_core's own classes also the name of each one's type."""
    state = {name: value for name, value in vars(layer).items() if name not in _SYMBOLIC}
    if type(layer).__module__.startswith("mp_core."):  # others may leave out what they make again
        state[_TYPES] = {name: type(value).__name__ for name, value in state.items()}
    return state


def checked_state(layer: Any, state: Any) -> dict[str, Any]:
    """Return the attributes that a pickle has for `layer`; raise TypeError or ValueError that names what is damaged."""
    owner = f"a pickled {type(layer).__name__}"
    attributes = dict(state_of(state, _STATE | dict.fromkeys(layer._options, object), owner))
    types = state_of(attributes.pop(_TYPES, {}), {}, f"the attributes' types of {owner}")
    state_of(attributes, dict.fromkeys(types, object), owner)
    for name, kind in types.items():
        if type(attributes[name]).__name__ != kind:
            raise TypeError(f"The state of {owner} is damaged: `{name}` must be {kind}; it is {attributes[name]!r}")
    for variable in attributes["_variables"]:
        if not isinstance(variable, AutoCastVariable):
            raise TypeError(f"`_variables` of {owner} must be variables; it has {variable!r}")
    return attributes
