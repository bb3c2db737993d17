"""The layer classes that configurations may name. Each layer class of mp_core registers itself when it is defined."""

from importlib import import_module
from typing import Any

from mp_core.utilities.serialization import name_in_configurations

__all__ = ["ABOVE", "KERAS", "is_registered", "layer_classes", "register"]

KERAS = "keras.layers"
"""The default face (module of layers) of configurations."""
_TF_KERAS = "tf_keras.layers"

ABOVE = {"Functional": "mp_core.training.models", "Sequential": "mp_core.training.sequential"}
"""Layers of Keras that a higher room defines -> their module, which is imported at the first use."""

_faces: dict[str, dict[str, Any]] = {}
"""Module in configurations -> name in configurations -> class."""


def register(kind: type, face: str) -> None:
    """Register a public class under its name, if it is in the same package as the class that defines ``_face``.

    Classes of users and of other rooms inherit ``_face`` from another package, so they are not registered.
    """
    home = next(base for base in kind.__mro__ if "_face" in vars(base))
    if not kind.__name__.startswith("_") and _package(kind) == _package(home):
        known = _faces.setdefault(face, {})
        for name in (kind.__name__, name_in_configurations(kind)):
            known.setdefault(name, kind)  # a copy of a class does not replace it


def _package(kind: type) -> str:
    return kind.__module__.rpartition(".")[0]


def is_registered(kind: type) -> bool:
    """Return whether a class is registered."""
    return any(known.get(kind.__name__) is kind for known in _faces.values())


def layer_classes(config: Any, face: str = KERAS) -> dict[str, Any]:
    """Return name -> class for the face that a configuration names, by default `face`; tf.keras' must be imported."""
    module = config.get("module") if isinstance(config, dict) else None
    if module == _TF_KERAS and module not in _faces:
        raise ValueError("The configuration has layers of tf_keras: import mp_core.tf_keras to load it")
    for above in ABOVE.values():
        import_module(above)
    return _faces[module if module == _TF_KERAS else face]
