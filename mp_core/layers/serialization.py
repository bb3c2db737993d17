"""Layers, and what they hold, as the dictionaries of Keras' files."""

from typing import Any

import numpy as np

from mp_core import dtype_policies
from mp_core.dtype_policies import DTypePolicy
from mp_core.dtype_policies.lookup import get_registered_name

__all__ = ["serialize_keras_object"]

_MODULES = {
    "mp_core.layers.sequential": "keras",
    "mp_core.layers.initializers": "keras.initializers",
    "mp_core.layers.seeds": "keras.random",
    "mp_core.training": "keras",
    "mp_core.optimizers.schedules": "keras.optimizers.schedules",
    "mp_core.optimizers": "keras.optimizers",
    "mp_core.regularizers": "keras.regularizers",
    "mp_core.constraints": "keras.constraints",
    "mp_core.losses": "keras.losses",
    "mp_core.metrics": "keras.metrics",
    "mp_core.quantizers": "keras.quantizers",
    "mp_core.layers": "keras.layers",
    "mp_core.tf_keras": "tf_keras.layers",
}
"""How a module begins -> what configurations call it; the first one counts."""


def serialize_keras_object(obj: Any) -> Any:
    """Return an object as plain values, which ``json.dumps`` takes.

    Parameters
    ----------
    obj : object
        A layer, policy, quantizer or another object with ``get_config``; a function, by its name; plain values, lists,
        tuples and dictionaries of these.

    Raises
    ------
    TypeError
        `obj` is none of these.

    Examples
    --------
    >>> from mp_core.layers import Dropout
    >>> serialize_keras_object([Dropout(0.5, name="d")])[0]["class_name"]
    'Dropout'
    """
    if obj is None or isinstance(obj, str | bool | int | float):
        return obj
    if isinstance(obj, np.generic):
        return obj.item()
    if isinstance(obj, list | tuple):
        parts = (serialize_keras_object(part) for part in obj)
        return tuple(parts) if isinstance(obj, tuple) else list(parts)
    if isinstance(obj, DTypePolicy):
        return serialize_keras_object(dtype_policies.serialize(obj))
    if isinstance(obj, dict):
        return {key: serialize_keras_object(value) for key, value in obj.items()}
    kind = type(obj)
    if not isinstance(obj, type) and hasattr(obj, "get_config"):
        module = next((name for own, name in _MODULES.items() if kind.__module__.startswith(own)), None)
        return {
            "module": module or kind.__module__,
            "class_name": kind.__name__,
            "config": serialize_keras_object(obj.get_config()),
            "registered_name": None if module else get_registered_name(kind),
        }
    if callable(obj) and hasattr(obj, "__name__"):
        name = get_registered_name(obj)
        return {"module": "builtins", "class_name": "function", "config": name, "registered_name": "function"}
    raise TypeError(f"Cannot serialize {obj!r} (of type {kind.__name__}): it has no `get_config`")
