"""Optimizers by name, and their configurations."""

from typing import Any

from mp_core.training.optimizers import adafactor, adaptive, composed, descent, muon
from mp_core.training.optimizers.base import Optimizer
from mp_core.training.optimizers.protocol import OptimizerLike, check_optimizer
from mp_core.utilities.registry import class_and_config, known_classes
from mp_core.utilities.serialization import serialize_keras_object

__all__ = ["CLASSES", "deserialize", "get", "serialize"]

_HOMES = (adafactor, adaptive, composed, descent, muon)
CLASSES: dict[str, Any] = {name: getattr(home, name) for home in _HOMES for name in home.__all__ if name[0].isupper()}
"""Name -> class, those that wrap another optimizer too once their module is imported."""

_TF_KERAS_ARGUMENTS = ("jit_compile", "is_legacy_optimizer")
"""Arguments in configurations of tf.keras that are ignored."""


def serialize(optimizer: OptimizerLike) -> dict[str, Any]:
    """Return the class name and the configuration of an optimizer, as Keras writes them.

    >>> serialize(get("sgd"))["class_name"]
    'SGD'
    """
    check_optimizer(optimizer, "optimizer")
    return serialize_keras_object(optimizer)  # type: ignore[no-any-return]


def deserialize(config: dict[str, Any] | None, custom_objects: dict[str, Any] | None = None) -> Any:
    """Return the optimizer of a :func:`serialize` dictionary.

    Parameters
    ----------
    config : dict
    custom_objects : dict, optional
        Name -> class of optimizers that are neither built in nor registered.

    Examples
    --------
    >>> deserialize({"class_name": "SGD", "config": {"momentum": 0.5}}).momentum
    0.5
    """
    lower = {name.lower(): found for name, found in CLASSES.items()}
    found, arguments = class_and_config(config, lower | known_classes(Optimizer, CLASSES, custom_objects), "optimizer")
    arguments = {key: value for key, value in arguments.items() if key not in _TF_KERAS_ARGUMENTS}
    return found.from_config(arguments) if hasattr(found, "from_config") else found(**arguments)


def get(identifier: Any) -> Any:
    """Return the optimizer of a name such as ``"adam"``, of a :func:`serialize` dictionary, or the optimizer itself.

    >>> type(get("rmsprop")).__name__
    'RMSprop'
    """
    if isinstance(identifier, str):
        return deserialize({"class_name": identifier, "config": {}})
    if isinstance(identifier, dict):
        return deserialize(identifier)
    if isinstance(identifier, OptimizerLike) and not isinstance(identifier, type):
        return identifier
    raise ValueError(f"Could not interpret optimizer identifier: {identifier!r}")
