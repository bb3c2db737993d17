"""Keras' ``keras.saving``: objects as configurations and back, and the classes that users register for that.

Models are loaded by :mod:`mp_core.models` and written by :mod:`mp_core.checkpoint`; there are no ``.keras`` files here.

>>> from mp_core import layers
>>> config = serialize_keras_object(layers.Dense(3, dtype="int8_from_float32"))
>>> deserialize_keras_object(config).dtype_policy
<QuantizedDTypePolicy "int8_from_float32">
"""

from collections.abc import Callable, Mapping
from typing import Any

from mp_core import dtype_policies, quantizers
from mp_core.dtype_policies import DTypePolicy
from mp_core.dtype_policies.lookup import (
    check_depth,
    class_and_config,
    custom_object_scope,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    known_classes,
    named_function,
    register_keras_serializable,
)
from mp_core.layers.sequential import layer_classes
from mp_core.layers.serialization import serialize_keras_object

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


def __dir__() -> list[str]:
    return __all__


CustomObjectScope = custom_object_scope


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


def deserialized(
    config: Any, custom_objects: Mapping[str, Any] | None, deserialize_policy: Callable[[Any], DTypePolicy], face: str
) -> Any:
    """Return the object of a configuration whose policies and layers are those of a face."""
    check_depth(config)
    with custom_object_scope(custom_objects):
        return _deserialized(config, deserialize_policy, face)


def _deserialized(config: Any, deserialize_policy: Callable[[Any], DTypePolicy], face: str) -> Any:
    if isinstance(config, list | tuple):
        return type(config)(_deserialized(part, deserialize_policy, face) for part in config)
    if not isinstance(config, dict):
        return config
    if "class_name" not in config:
        return {key: _deserialized(part, deserialize_policy, face) for key, part in config.items()}
    if config["class_name"] == "function":
        function = named_function(config)
        if not callable(function):
            raise ValueError(f"Unknown function {function!r}: register it, or name it in `custom_objects`")
        return function
    policies = {kind.__name__ for kind in _policies(DTypePolicy)} | {"Policy", "PolicyV1"}
    if not isinstance(config["class_name"], str):
        raise ValueError(f"`class_name` must be a string; received {config['class_name']!r}")
    if config["class_name"] in policies:
        return deserialize_policy(config)
    classes = layer_classes(config, face) | {"AbsMaxQuantizer": quantizers.AbsMaxQuantizer}
    found, own = class_and_config(config, known_classes(object, classes), "object")
    if not hasattr(found, "from_config"):
        raise ValueError(f"{config['class_name']} has no `from_config`: no object can be made of {config!r}")
    return found.from_config(own)


def _policies(kind: type) -> set[type]:
    return {kind}.union(*map(_policies, kind.__subclasses__()))
