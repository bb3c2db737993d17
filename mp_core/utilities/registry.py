"""Classes in configurations: a ``class_name`` and the ``config`` from which the class makes an object."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

from mp_core.core.scopes import Scope, nested
from mp_core.utilities.absent import message_for

__all__ = [
    "OWN_ARGUMENTS",
    "check_depth",
    "class_and_config",
    "custom_object_scope",
    "get_custom_objects",
    "get_registered_name",
    "get_registered_object",
    "known_classes",
    "named_function",
    "own_config",
    "register_keras_serializable",
]

T = TypeVar("T")

OWN_ARGUMENTS = "mp_core_config"
"""Key of arguments that Keras' class does not have, beside ``config``: Keras ignores it, and so opens the file."""

_DEEPEST = 100
"""Limit of the nesting of dictionaries and lists in a configuration; real ones are far below it."""

_registered: dict[str, Any] = {}
_scoped: ContextVar[Any] = ContextVar("mp_core.custom_objects")
"""The objects of the enclosing scopes in this thread or task."""


def check_depth(config: Any) -> None:
    """Raise ValueError if a configuration contains itself, or is nested deeper than ``_DEEPEST``."""
    level = {id(config): config}
    for _ in range(_DEEPEST):
        parts = [part.values() if isinstance(part, dict) else part for part in level.values() if _is_nest(part)]
        level = {id(item): item for items in parts for item in items if _is_nest(item)}
        if not level:
            return
    raise ValueError(f"A configuration must not contain itself, nor be nested deeper than {_DEEPEST} levels")


def _is_nest(part: Any) -> bool:
    return isinstance(part, dict | list | tuple)


def own_config(config: Any, what: str) -> dict[str, Any]:
    """Check that `config` is a dictionary of constructor arguments, not nested too deeply, and return it."""
    check_depth(config)
    if not isinstance(config, dict):
        raise TypeError(f"The `config` of a {what} must be a dictionary; received {config!r}")
    return config


def class_and_config(config: Any, classes: Mapping[str, T], what: str) -> tuple[T, dict[str, Any]]:
    """Return the class that a serialized object names, which must be in `classes`, and its constructor's arguments."""
    check_depth(config)
    if not isinstance(config, dict):
        raise ValueError(f"A serialized {what} must be a dictionary with a `class_name`; received {config!r}")
    name: Any = config.get("registered_name")
    if not isinstance(name, str) or name not in classes:
        name = config.get("class_name")
    own = config["config"] if config.get("config") is not None else {}
    if not isinstance(name, str) or name not in classes:
        why = message_for(name) if isinstance(name, str) else ""
        raise ValueError(f"Unknown {what} class_name={name!r}{why}. Expected one of {', '.join(sorted(classes))}.")
    if not isinstance(own, dict):
        raise ValueError(f"The `config` of a {what} must be a dictionary; received {own!r}")
    beside = config.get(OWN_ARGUMENTS, {})
    if not isinstance(beside, dict):
        raise ValueError(f"The `{OWN_ARGUMENTS}` of a {what} must be a dictionary; received {beside!r}")
    check_registered(config, classes[name], name, name.rpartition(">")[2])
    return classes[name], own | beside


def check_registered(config: dict[str, Any], found: Any, *names: str) -> None:
    """Raise ValueError if a configuration names an unregistered user class and mp_core's own class was found.

    `names` are the values of ``registered_name`` that mean mp_core's own class.
    """
    name = config.get("registered_name")
    is_ours = str(getattr(found, "__module__", "")).partition(".")[0] == "mp_core"
    if name and is_ours and name not in names and name not in _registered:
        raise ValueError(
            f"{name!r} is not registered, and {found.__name__} of mp_core is a different class of that name: register "
            "yours with mp_core.saving.register_keras_serializable, or pass it in `custom_objects`"
        )


def known_classes(
    base: type, classes: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return name -> class: `classes`, then registered and scoped subclasses of `base`, then `custom_objects`."""
    users = {**_registered, **_in_scope()}
    own = {name: found for name, found in users.items() if isinstance(found, type) and issubclass(found, base)}
    return {**classes, **own, **(custom_objects or {})}


# ---- what users register


def register_keras_serializable(package: str = "Custom", name: str | None = None) -> Callable[[T], T]:
    """Return a decorator that registers a class or function, so that configurations with its name can be loaded.

    Parameters
    ----------
    package : str
    name : str, optional
        Default: its ``__name__``. Configurations contain ``"package>name"``.

    Examples
    --------
    >>> from mp_core import layers
    >>> @register_keras_serializable("MyPackage")
    ... class Wide(layers.Dense):
    ...     pass
    >>> get_registered_name(Wide)
    'MyPackage>Wide'
    >>> stack = layers.Sequential([Wide(3, name="wide")])
    >>> layers.Sequential.from_config(stack.get_config()).layers
    [<Wide name=wide, units=3, policy=float32, built=False>]
    """
    if not isinstance(package, str) or not isinstance(name, str | None):
        raise TypeError(f"`package` and `name` must be strings; received package={package!r}, name={name!r}")

    def register(decorated: Any) -> Any:
        own = getattr(decorated, "__name__", None)
        if not callable(decorated) or own is None:
            raise TypeError(f"only a class or function can be registered; received {decorated!r}")
        if isinstance(decorated, type) and not hasattr(decorated, "get_config"):
            raise ValueError(f"Cannot register a class that does not have a get_config() method: {own}")
        _registered[f"{package}>{own if name is None else name}"] = decorated
        return decorated

    return register


def get_custom_objects() -> dict[str, Any]:
    """Return the registry, name -> class or function; changes to the dictionary take effect.

    >>> isinstance(get_custom_objects(), dict)
    True
    """
    return _registered


def get_registered_name(obj: Any) -> str:
    """Return the registered name of a class or function; if it is not registered, its ``__name__``.

    >>> get_registered_name(int)
    'int'
    """
    return next((name for name, found in _registered.items() if found is obj), obj.__name__)


def get_registered_object(
    name: str, custom_objects: Mapping[str, Any] | None = None, module_objects: Mapping[str, Any] | None = None
) -> Any:
    """Return the class or function of a name, or None if the name is unknown.

    Parameters
    ----------
    name : str
    custom_objects, module_objects : dict, optional
        Searched after the enclosing :func:`custom_object_scope` and the registry.

    Examples
    --------
    >>> get_registered_object("MyPackage>Unknown") is None
    True
    """
    for objects in (_in_scope(), _registered, custom_objects or {}, module_objects or {}):
        if name in objects:
            return objects[name]
    return None


def named_function(identifier: Any) -> Any:
    """Return the function of a name or of Keras' function dictionary; if it is unknown, the name; else `identifier`."""
    if isinstance(identifier, dict) and identifier.get("class_name") == "function":
        identifier = identifier.get("config")
    if not isinstance(identifier, str):
        return identifier
    found = get_registered_object(identifier)
    return identifier if found is None else found


def custom_object_scope(custom_objects: Mapping[str, Any] | None) -> Scope[None]:
    """Make classes and functions known to configurations inside a ``with`` block, in this thread or task.

    Parameters
    ----------
    custom_objects : dict or None
        Name -> class or function, in addition to the enclosing scopes.

    Examples
    --------
    >>> from mp_core import layers
    >>> class Wide(layers.Dense):
    ...     pass
    >>> with custom_object_scope({"Wide": Wide}):
    ...     layers.Sequential.from_config({"layers": [{"class_name": "Wide", "config": {"units": 3}}]}).layers[0].units
    3
    """
    return Scope(_scoped, dict(custom_objects or {}))


def _in_scope() -> Mapping[str, Any]:
    return {name: found for objects in nested(_scoped.get(())) for name, found in objects.items()}
