"""Classes in configurations: a ``class_name`` and the ``config`` from which the class makes an object."""

from collections.abc import Mapping
from typing import Any, TypeVar

__all__ = ["class_and_config"]

T = TypeVar("T")


def class_and_config(config: Any, classes: Mapping[str, T], what: str) -> tuple[T, dict[str, Any]]:
    """Return the class that a serialized object names, and its own configuration.

    Raises
    ------
    ValueError
        `config` is no dictionary with a ``class_name`` of `classes` and, where there is one, a ``config`` dictionary.
    """
    if not isinstance(config, dict):
        raise ValueError(f"A serialized {what} must be a dictionary with a `class_name`; received {config!r}")
    name: Any = config.get("class_name")
    own = config.get("config") or {}
    if not isinstance(name, str) or name not in classes:
        raise ValueError(f"Unknown {what} class_name={name!r}. Expected one of {', '.join(sorted(classes))}.")
    if not isinstance(own, dict):
        raise ValueError(f"The `config` of a {what} must be a dictionary; received {own!r}")
    return classes[name], own
