"""Models as JSON: what ``model.to_json`` of Keras 3 and of mp_core returns, which has no weights."""

import json
from collections.abc import Mapping
from typing import Any, cast

from mp_core.training.models import Model
from mp_core.training.saving.reading import blaming
from mp_core.training.saving.translation import build, translated
from mp_core.training.saving.weights import finish
from mp_core.utilities.registry import custom_object_scope

__all__ = ["model_from_json"]


def model_from_json(json_string: str, custom_objects: Mapping[str, Any] | None = None) -> Model:
    """Return the model of what ``model.to_json`` returned, that of Keras 3 included, with new weights.

    It is built if the text says for which shapes, and compiled if it says with what, as in Keras. Nothing in it is
    executed.

    Parameters
    ----------
    json_string : str
    custom_objects : mapping of str to type, optional
        Layers, optimizers, losses and metrics that are neither built in nor registered, by their names.

    Returns
    -------
    Sequential or Functional

    Raises
    ------
    NotImplementedError
        There are layers that mp_core does not have, or not with these arguments: the error lists them all.
    TypeError
        `json_string` is no text.
    ValueError
        It is no JSON, or that of something else than a model; or the system refuses the memory for its weights, whose
        lengths the text says.

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
        part = translated(entry, custom_objects, fresh=True)
    except ValueError as error:
        raise ValueError(f"`json_string` must be that of a model: {error}") from error
    with blaming("`json_string`"):
        build(part)
        finish(part.layer)
    config = entry.get("compile_config")
    if isinstance(config, dict) and config:  # Keras writes an empty one of a model that is not compiled
        with blaming("`compile_config` of `json_string`"), custom_object_scope(custom_objects):
            part.layer.compile_from_config(config)  # type: ignore[attr-defined]
    return cast(Model, part.layer)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("`json_string` is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"`json_string` must be JSON: {error}; received {text!r:.100}") from error
