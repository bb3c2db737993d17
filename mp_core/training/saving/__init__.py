"""Keras' ``keras.saving``: save and load models, serialize objects, and register classes.

>>> from mp_core import layers
>>> config = serialize_keras_object(layers.Dense(3, dtype="int8_from_float32"))
>>> deserialize_keras_object(config).dtype_policy
<QuantizedDTypePolicy "int8_from_float32">
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mp_core.files.deserialization import check_safe_mode, deserialized
from mp_core.layers.registry import layer_classes
from mp_core.policies.dtype_policies.registry import deserialize, policy_names
from mp_core.training.models import Model
from mp_core.training.saving.reading import load_model
from mp_core.utilities.absent import refusing
from mp_core.utilities.registry import (
    custom_object_scope,
    get_custom_objects,
    get_registered_name,
    get_registered_object,
    register_keras_serializable,
)
from mp_core.utilities.serialization import serialize_keras_object

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


if not TYPE_CHECKING:  # so that type checkers report unknown names
    __getattr__, __dir__ = refusing("saving", __all__)


CustomObjectScope = custom_object_scope


def save_model(model: Model, filepath: Any, overwrite: bool = True) -> None:
    """Call ``model.save``: see :meth:`mp_core.training.trainer.Trainer.save`.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> import mp_core as mp
    >>> model = mp.Sequential([mp.Input((2,)), mp.layers.Dense(3)])
    >>> x = np.float32([[1, 2]])
    >>> with TemporaryDirectory() as folder:
    ...     save_model(model, Path(folder, "m.keras"))
    ...     again = load_model(Path(folder, "m.keras"))
    >>> np.array_equal(again(x), model(x))
    True
    """
    model.save(filepath, overwrite)


def deserialize_keras_object(
    config: Any, custom_objects: Mapping[str, Any] | None = None, safe_mode: bool = True
) -> Any:
    """Create the object of a :func:`serialize_keras_object` configuration.

    Parameters
    ----------
    config : object
        Plain values are returned unchanged; lists and dictionaries may contain configurations.
    custom_objects : dict, optional
        Name -> class or function that is neither built in nor registered.
    safe_mode : bool
        Must be True: code in a configuration is never executed.

    Examples
    --------
    >>> deserialize_keras_object({"class_name": "DTypePolicy", "config": {"name": "mixed_float16"}})
    <DTypePolicy "mixed_float16">
    >>> deserialize_keras_object({"module": "keras.losses", "class_name": "Huber", "config": {"delta": 0.5}}).delta
    0.5
    """
    check_safe_mode(safe_mode)
    return deserialized(config, custom_objects, dict.fromkeys(policy_names(), deserialize), _names_of_module)


_FUNCTIONS = (
    "activations",
    "constraints",
    "initializers",
    "losses",
    "metrics",
    "optimizers",
    "quantizers",
    "regularizers",
)
"""The modules whose functions a configuration may name, in the order in which Keras searches them."""

_MODULES = {
    "keras": "training.models",
    "keras.src.models": "training.models",
    "keras.src.backend.torch.optimizers": "optimizers",
    **{f"keras.{name}": name for name in (
        "constraints", "initializers", "losses", "metrics", "optimizers", "optimizers.schedules", "quantizers",
        "random", "regularizers",
    )},
}  # fmt: skip
"""Module or its package in configurations -> module of mp_core. All other modules are searched for layers."""


def _names_of_module(config: dict[str, Any]) -> Mapping[str, Any]:
    """Return name -> class for the module that a configuration names, with all layers; or name -> function."""
    if config["class_name"] == "function":
        functions = {name: found for module in reversed(_FUNCTIONS) for name, found in _public(module).items()}
        return {name: found for name, found in functions.items() if name not in ("deserialize", "get", "serialize")}
    module = str(config.get("module"))
    own = _MODULES.get(module) or _MODULES.get(module.rpartition(".")[0] if module.startswith("keras.src.") else "")
    return {**layer_classes(config), **(_public(own) if own else {})}


@cache
def _public(module: str) -> dict[str, Any]:
    """Return the public names of a module of mp_core."""
    found = import_module(f"mp_core.{module}")
    return {name: getattr(found, name) for name in found.__all__}
