"""Convert Keras models in memory to models of mp_core."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mp_core.layers import Layer
from mp_core.training.saving.translation import build, translate
from mp_core.training.saving.weights import KerasWeights, assign

if TYPE_CHECKING:
    import keras

__all__ = ["from_keras"]


def from_keras(model: "keras.Model", custom_objects: Mapping[str, type[Layer]] | None = None) -> Layer:
    """Convert a model of Keras 3 to layers of mp_core with the same policies and copies of the weights.

    Parameters
    ----------
    model : keras.Sequential or functional keras.Model
        A built model with any backend; it may contain models. It is not changed.
    custom_objects : mapping of str to type, optional
        Name of a class that is not Keras' own -> layer of mp_core to use instead. The layer gets the configuration of
        the original, is built from its ``build_config`` and gets its weights in their order.

    Returns
    -------
    Sequential or Functional
        A layer: call it with arrays; calibrate, quantize, compile and pickle it like any other layer.

    Raises
    ------
    NotImplementedError
        mp_core does not have some layers, or not with these arguments: the error lists all of them.

    Examples
    --------
    >>> import keras  # doctest: +SKIP
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])  # doctest: +SKIP
    >>> from_keras(model)(np.ones((2, 4))).shape  # doctest: +SKIP
    (2, 3)
    """
    if not hasattr(model, "save_own_variables") or not hasattr(model, "get_layer"):
        raise TypeError(f"`model` must be a model of Keras 3; received {type(model).__name__}")
    import keras

    if not model.built:
        raise ValueError(f"`model` must be built: call '{model.name}' once, or give it an Input")
    try:
        entry = keras.saving.serialize_keras_object(model)
    except NotImplementedError as error:  # a subclass without a configuration
        raise NotImplementedError(f"`model` must be a Sequential or functional model: {error}") from error
    _complete(entry, model, {})
    part = translate(entry, custom_objects)
    build(part)
    assign(part, KerasWeights(model))
    return part.layer


def _complete(entry: dict[str, Any], layer: "keras.Layer", first: dict[int, dict[str, Any]]) -> None:
    """Add what Keras omits: ``shared_object_id``, and the quantization of the projections of attention layers.

    `first` maps ``id(layer)`` to the layer's first entry; a layer that is used several times has several entries.
    """
    if first.setdefault(id(layer), entry) is not entry:
        first[id(layer)]["shared_object_id"] = entry["shared_object_id"] = id(layer)
    if entry["class_name"] in ("MultiHeadAttention", "GroupQueryAttention"):
        below = layer._flatten_layers(include_self=False)
        forms = {
            part.name: {"form": part.quantization_mode, "policy": part.dtype_policy.name}
            for part in below
            if getattr(part, "quantization_mode", None)
        }
        entry["config"] |= {"forms": forms} if forms else {}
    if entry["class_name"] == "TimeDistributed":
        _complete(entry["config"]["layer"], layer.layer, first)
    if entry["class_name"] in ("Sequential", "Functional"):
        known = {part.name: part for part in layer.layers}  # has no operations, and no input of a Sequential
        for part in entry["config"]["layers"]:
            name = part.get("name") or part["config"].get("name")
            if name in known:
                _complete(part, known[name], first)
