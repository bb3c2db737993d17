"""The classes of layers that configurations may name: each one of mp_core registers itself where it is defined."""

from importlib import import_module
from typing import Any

from mp_core.utilities.serialization import name_in_configurations

__all__ = ["ABOVE", "KERAS", "is_registered", "layer_classes", "register"]

KERAS = "keras.layers"
"""The module whose layers a configuration means that names no other face."""
_TF_KERAS = "tf_keras.layers"

ABOVE = {"Functional": "mp_core.training.models", "Sequential": "mp_core.training.sequential"}
"""Layers of Keras that a room above this one has -> the module, which is imported at their first use."""

_faces: dict[str, dict[str, Any]] = {}
"""Module in configurations -> name in configurations -> class."""


def register(kind: type, face: str) -> None:
    """Let configurations name a public class, if it is of the package in which a class states its face as ``_face``.

    So no class of a user, nor one of another room, is found by its name: it has the face of its base.
    """
    home = next(base for base in kind.__mro__ if "_face" in vars(base))
    if not kind.__name__.startswith("_") and _package(kind) == _package(home):
        known = _faces.setdefault(face, {})
        for name in (kind.__name__, name_in_configurations(kind)):
            known.setdefault(name, kind)  # a copy of a class does not take its place


def _package(kind: type) -> str:
    return kind.__module__.rpartition(".")[0]


def is_registered(kind: type) -> bool:
    """Whether a class is one of mp_core that configurations may name."""
    return any(known.get(kind.__name__) is kind for known in _faces.values())


def layer_classes(config: Any, face: str = KERAS) -> dict[str, Any]:
    """Return name -> class of the layers of the face that a layer's configuration names: of `face` unless another.

    Raises
    ------
    ValueError
        The face is tf.keras', and :mod:`mp_core.tf_keras` is not imported.
    """
    module = config.get("module") if isinstance(config, dict) else None
    if module == _TF_KERAS and module not in _faces:
        raise ValueError("The configuration has layers of tf_keras: import mp_core.tf_keras to load it")
    for above in ABOVE.values():
        import_module(above)
    return _faces[module if module == _TF_KERAS else face]
