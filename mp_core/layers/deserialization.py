"""Keras' configurations as objects: policies, quantizers, layers and what users have registered."""

from collections.abc import Callable, Mapping
from typing import Any

from mp_core.dtype_policies import DTypePolicy
from mp_core.dtype_policies.lookup import (
    check_depth,
    class_and_config,
    custom_object_scope,
    known_classes,
    named_function,
)

__all__ = ["check_safe_mode", "deserialized"]


Named = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Of a configuration: name -> class or function of the module that it names."""


def deserialized(
    config: Any,
    custom_objects: Mapping[str, Any] | None,
    deserialize_policy: Callable[[Any], DTypePolicy],
    named: Named,
) -> Any:
    """Return the object of a configuration: a policy, or what users registered or `named` knows."""
    check_depth(config)
    with custom_object_scope(custom_objects):
        return _deserialized(config, deserialize_policy, named)


def check_safe_mode(safe_mode: bool) -> None:
    """Raise ValueError unless Keras' ``safe_mode`` is on."""
    if safe_mode is not True:
        raise ValueError(f"`safe_mode` must be True: what a file holds is never executed; received {safe_mode!r}")


def _deserialized(config: Any, deserialize_policy: Callable[[Any], DTypePolicy], named: Named) -> Any:
    if isinstance(config, list | tuple):
        return type(config)(_deserialized(part, deserialize_policy, named) for part in config)
    if not isinstance(config, dict):
        return config
    if "class_name" not in config:
        return {key: _deserialized(part, deserialize_policy, named) for key, part in config.items()}
    if config["class_name"] == "function":
        function = named_function(config)
        if isinstance(function, str):
            function = named(config).get(function, function)
        if not callable(function):
            raise ValueError(f"Unknown function {function!r}: register it, or name it in `custom_objects`")
        return function
    policies = {kind.__name__ for kind in _policies(DTypePolicy)} | {"Policy", "PolicyV1"}
    if not isinstance(config["class_name"], str):
        raise ValueError(f"`class_name` must be a string; received {config['class_name']!r}")
    if config["class_name"] in policies:
        return deserialize_policy(config)
    found, own = class_and_config(config, known_classes(object, named(config)), "object")
    if not hasattr(found, "from_config"):
        raise ValueError(f"{config['class_name']} has no `from_config`: no object can be made of {config!r}")
    return found.from_config(own)


def _policies(kind: type) -> set[type]:
    return {kind}.union(*map(_policies, kind.__subclasses__()))
