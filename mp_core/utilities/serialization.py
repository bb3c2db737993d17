"""Convert objects to the dictionaries of Keras' files."""

from typing import Any

import numpy as np

from mp_core.utilities.registry import OWN_ARGUMENTS, get_registered_name

__all__ = ["name_in_configurations", "serialize_keras_object"]

_MODULES: dict[str, str | None] = {
    "mp_core.policies.dtype_policies.policy": "keras",
    "mp_core.policies.dtype_policies.quantized.SchemeDTypePolicy": "mp_core.dtype_policies",
    "mp_core.policies.dtype_policies": "keras.dtype_policies",
    "mp_core.policies.quantizers": "keras.quantizers",
    "mp_core.layers.initializers": "keras.initializers",
    "mp_core.layers.regularizers": "keras.regularizers",
    "mp_core.layers.constraints": "keras.constraints",
    "mp_core.layers.seeds": "keras.random",
    "mp_core.layers": "keras.layers",
    "mp_core.training.optimizers.schedules": "keras.optimizers.schedules",
    "mp_core.training.optimizers": "keras.optimizers",
    "mp_core.training.losses": "keras.losses",
    "mp_core.training.metrics": "keras.metrics",
    "mp_core.training": "keras",
    "mp_core.tf_keras.mixed_precision": None,
    "mp_core.tf_keras": "tf_keras.layers",
}
"""Prefix of a class' full name -> its module in configurations; None: its own module. The first match counts."""


def serialize_keras_object(obj: Any) -> Any:
    """Convert an object to plain values for ``json.dumps``.

    Parameters
    ----------
    obj : object
        A layer, policy, quantizer or another object with ``get_config``; a function (its name is stored); plain values,
        arrays, bytes, slices, ``...``, and lists, tuples and dictionaries of these.

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
    if isinstance(obj, np.ndarray):
        return _entry("__numpy__", {"value": obj.tolist(), "dtype": obj.dtype.name})
    if isinstance(obj, bytes):
        return _entry("__bytes__", {"value": obj.decode(errors="surrogateescape")})
    if isinstance(obj, slice):
        return _entry(
            "__slice__", {key: serialize_keras_object(getattr(obj, key)) for key in ("start", "stop", "step")}
        )
    if obj is Ellipsis:
        return _entry("__ellipsis__", {})
    if isinstance(obj, list | tuple):
        parts = (serialize_keras_object(part) for part in obj)
        return tuple(parts) if isinstance(obj, tuple) else list(parts)
    if isinstance(obj, dict):
        return {key: serialize_keras_object(value) for key, value in obj.items()}
    kind = getattr(type(obj), "_registered", type(obj))  # a user's class, if the model became functional
    if not isinstance(obj, type) and hasattr(obj, "get_config"):
        class_name = f"{kind.__module__}.{kind.__name__}"
        module = next((name for own, name in _MODULES.items() if class_name.startswith(own)), None)
        config = serialize_keras_object(obj.get_config())
        own = {name: config.pop(name) for name in getattr(obj, "own_arguments", ()) if name in config}
        return {
            "module": module or kind.__module__,
            "class_name": name_in_configurations(kind),
            "config": config,
            "registered_name": None if module else get_registered_name(kind),
        } | ({OWN_ARGUMENTS: own} if own else {})
    if callable(obj) and hasattr(obj, "__name__"):
        name = get_registered_name(obj)
        return {"module": "builtins", "class_name": "function", "config": name, "registered_name": "function"}
    raise TypeError(f"Cannot serialize {obj!r} (of type {kind.__name__}): it has no `get_config`")


def _entry(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return Keras' dictionary of a value that JSON cannot represent."""
    return {"class_name": name, "config": config}


def name_in_configurations(kind: type) -> str:
    """Return the name of a class in configurations: its own name, unless Keras exports it under another name."""
    name: str = vars(kind).get("exported_as", kind.__name__)  # `vars`: a subclass does not inherit the name
    return name
