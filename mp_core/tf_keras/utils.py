"""tf.keras' ``utils``: serialize objects, deserialize them, and register classes for that."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from mp_core.files.deserialization import deserialized
from mp_core.layers.registry import layer_classes
from mp_core.policies.dtype_policies.registry import policy_names
from mp_core.tf_keras.mixed_precision.policy import Policy, deserialize, serialize_as_dict
from mp_core.utilities.registry import (
    custom_object_scope,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    register_keras_serializable,
)
from mp_core.utilities.serialization import serialize_keras_object as _serialize

__all__ = [
    "CustomObjectScope",
    "custom_object_scope",
    "deserialize_keras_object",
    "get_custom_objects",
    "get_registered_name",
    "get_registered_object",
    "register_keras_serializable",
    "serialize_keras_object",
]

CustomObjectScope = custom_object_scope


def serialize_keras_object(instance: Any) -> Any:
    """Return an object as plain values for ``json.dumps``: see :func:`mp_core.saving.serialize_keras_object`.

    A policy becomes a dictionary, even for a single dtype.

    >>> serialize_keras_object(Policy("float32"))["module"]
    'keras.mixed_precision'
    """
    return serialize_as_dict(instance) if isinstance(instance, Policy) else _serialize(instance)


def deserialize_keras_object(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """Return the object of a :func:`serialize_keras_object` configuration; policies and layers are tf.keras'.

    Arguments are those of :func:`mp_core.saving.deserialize_keras_object`.

    >>> deserialize_keras_object({"module": "keras.layers", "class_name": "Dense", "config": {"units": 3}}).dtype_policy
    <Policy "float32">
    """
    makers = dict.fromkeys(policy_names(), deserialize)
    return deserialized(config, custom_objects, makers, partial(layer_classes, face="tf_keras.layers"))
