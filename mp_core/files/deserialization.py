"""Create objects from the dictionaries of Keras' files."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mp_core.arrays import dtypes
from mp_core.utilities.registry import (
    check_depth,
    check_registered,
    class_and_config,
    custom_object_scope,
    known_classes,
    named_function,
)

__all__ = ["VALUES", "check_safe_mode", "deserialized", "value_of"]


Named = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Function: configuration -> names of the module that the configuration names, with their classes and functions."""
Makers = Mapping[str, Callable[[dict[str, Any]], Any]]
"""Class name -> function that creates an object from a configuration with this class, instead of ``from_config``."""


def deserialized(config: Any, custom_objects: Mapping[str, Any] | None, makers: Makers, named: Named) -> Any:
    """Create the object that a configuration describes, by `makers`, registered classes, or the classes of `named`."""
    check_depth(config)
    with custom_object_scope(custom_objects):
        return _deserialized(config, makers, named)


def check_safe_mode(safe_mode: bool) -> None:
    """Raise ValueError unless Keras' ``safe_mode`` is on."""
    if safe_mode is not True:
        raise ValueError(f"`safe_mode` must be True: code in a file is never executed; received {safe_mode!r}")


def _deserialized(config: Any, makers: Makers, named: Named) -> Any:
    if isinstance(config, list | tuple):
        return type(config)(_deserialized(part, makers, named) for part in config)
    if not isinstance(config, dict):
        return config
    if "class_name" not in config:
        return {key: _deserialized(part, makers, named) for key, part in config.items()}
    name = config["class_name"]
    if not isinstance(name, str):
        raise ValueError(f"`class_name` must be a string; received {name!r}")
    if name == "function":
        function = named_function(config)
        if isinstance(function, str):
            function = named(config).get(function, function)
        if not callable(function):
            raise ValueError(f"Unknown function {function!r}: register it, or name it in `custom_objects`")
        check_registered(config, function, "function", str(config.get("config")))
        return function
    if name in VALUES:
        return value_of(config | {"config": _deserialized(config.get("config") or {}, makers, named)})
    if name in makers:
        return makers[name](config)
    found, own = class_and_config(config, known_classes(object, named(config)), "object")
    if not hasattr(found, "from_config"):
        raise ValueError(f"{name} has no `from_config`: cannot create an object from {config!r}")
    activation = own.get("activation")
    if isinstance(activation, dict) and activation.get("class_name", "function") != "function":  # a layer
        own = own | {"activation": _deserialized(activation, makers, named)}
    return found.from_config(own)


def _slice(start: Any, stop: Any, step: Any) -> slice:
    if not all(end is None or type(end) is int for end in (start, stop, step)):
        raise ValueError("start, stop and step must be integers or None")
    return slice(start, stop, step)


VALUES: dict[str, Callable[..., Any]] = {
    "__numpy__": lambda value, dtype: np.array(value, dtypes.parse(dtype)),
    "__tensor__": lambda value, dtype: np.array(value, dtypes.parse(dtype)),
    "__bytes__": lambda value: value.encode(errors="surrogateescape"),
    "__slice__": _slice,
    "__ellipsis__": lambda: ...,
}
"""Keras' name of a value that JSON cannot represent -> function that creates it from its ``config``."""


def value_of(entry: dict[str, Any]) -> Any:
    """Return the value of an entry whose class is one of :data:`VALUES`."""
    own = entry.get("config") or {}
    try:
        return VALUES[entry["class_name"]](**own)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"cannot create a {entry['class_name']} from {own!r:.200}: {error}") from error
