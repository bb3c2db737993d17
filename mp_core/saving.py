"""Keras' ``keras.saving``: models in files, objects as configurations, and the classes that users register for that.

>>> from mp_core import layers
>>> config = serialize_keras_object(layers.Dense(3, dtype="int8_from_float32"))
>>> deserialize_keras_object(config).dtype_policy
<QuantizedDTypePolicy "int8_from_float32">
"""

from collections.abc import Mapping
from typing import Any

from mp_core import dtype_policies
from mp_core.dtype_policies.lookup import (
    custom_object_scope,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    register_keras_serializable,
)
from mp_core.interop.keras import load_model
from mp_core.layers.deserialization import deserialized
from mp_core.layers.serialization import serialize_keras_object

__all__ = [
    "CustomObjectScope",
    "custom_object_scope",
    "deserialize_keras_object",
    "get_custom_objects",
    "get_registered_name",
    "get_registered_object",
    "load_model",
    "register_keras_serializable",
    "save_model",
    "serialize_keras_object",
]


def __dir__() -> list[str]:
    return __all__


CustomObjectScope = custom_object_scope


def save_model(model: Any, filepath: Any, overwrite: bool = True) -> None:
    """Call ``model.save``: see :meth:`mp_core.training.Trainer.save`."""
    model.save(filepath, overwrite)


def deserialize_keras_object(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return the object of a :func:`serialize_keras_object` configuration.

    Parameters
    ----------
    config : object
        Plain values are themselves; a list or dictionary may hold configurations.
    custom_objects : dict, optional
        Name -> class or function.

    Raises
    ------
    ValueError
        A ``class_name`` or function is unknown.

    Examples
    --------
    >>> deserialize_keras_object({"class_name": "DTypePolicy", "config": {"name": "mixed_float16"}})
    <DTypePolicy "mixed_float16">
    """
    return deserialized(config, custom_objects, dtype_policies.deserialize, "keras.layers")
