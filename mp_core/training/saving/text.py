"""``model_from_json``: create models from the results of ``model.to_json`` of Keras 3 and mp_core."""

import json
from collections.abc import Mapping
from typing import Any, cast

from mp_core.training.models import Model
from mp_core.training.saving.reading import explaining_damage
from mp_core.training.saving.translation import build, translate
from mp_core.training.saving.weights import build_by_calling
from mp_core.utilities.registry import custom_object_scope

__all__ = ["model_from_json"]


def model_from_json(json_string: str, custom_objects: Mapping[str, Any] | None = None) -> Model:
    """Create a model with new weights from a result of ``model.to_json``, of mp_core or Keras 3.

    As in Keras, the model is built if the text has input shapes, and compiled if the text has the arguments of
    ``compile``. Code in the text is never executed. NotImplementedError lists the layers that mp_core does not have, or
    not with these arguments.

    Parameters
    ----------
    json_string : str
    custom_objects : mapping of str to type, optional
        Name -> class of layers, optimizers, losses and metrics that are neither built in nor registered.

    Examples
    --------
    >>> import mp_core as mp
    >>> model = mp.Sequential([mp.Input((4,)), mp.layers.Dense(2, activation="relu")])
    >>> again = mp.models.model_from_json(model.to_json())
    >>> again.layers[0].get_config() == model.layers[0].get_config()
    True
    """
    if not isinstance(json_string, str):
        raise TypeError(f"`json_string` must be a str; received {type(json_string).__name__}")
    entry = _parsed(json_string)
    try:
        part = translate(entry, custom_objects, fresh=True)
    except ValueError as error:
        raise ValueError(f"`json_string` must describe a model: {error}") from error
    with explaining_damage("`json_string`"):
        build(part)
        build_by_calling(part.layer)
    config = entry.get("compile_config")
    if isinstance(config, dict) and config:  # Keras writes an empty one if the model is not compiled
        with explaining_damage("`compile_config` of `json_string`"), custom_object_scope(custom_objects):
            part.layer.compile_from_config(config)  # type: ignore[attr-defined]
    return cast(Model, part.layer)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("`json_string` is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"`json_string` must be JSON: {error}; received {text!r:.100}") from error
