"""The base of layers that wrap another layer, and how to read the inner layer from a configuration."""

from typing import Any, Self

from mp_core.layers.layer import Layer
from mp_core.layers.registry import layer_classes
from mp_core.utilities.registry import check_depth, class_and_config, known_classes
from mp_core.utilities.serialization import serialize_keras_object

__all__ = ["Wrapping", "layer_in"]


def layer_in(config: Any, key: str) -> Layer:
    """Return the layer at a key of a configuration, which holds the layer's configuration or the layer itself."""
    check_depth(config)
    inner = config.get(key) if isinstance(config, dict) else None
    if isinstance(inner, Layer):
        return inner
    if not isinstance(inner, dict):
        raise ValueError(f"the config of a layer must have a `{key}`; received {config!r:.200}")
    found, own = class_and_config(inner, known_classes(Layer, layer_classes(inner)), key)
    layer: Layer = found.from_config(own)
    return layer


class Wrapping(Layer):
    """The base of layers that wrap another one, the attribute and argument `layer`."""

    _arrays = ("inputs",)
    _repr_arguments = ("layer",)

    def __init__(self, layer: Layer, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(layer, Layer):
            raise ValueError(f"`layer` must be a Layer; received {layer!r} (of type {type(layer).__name__})")
        self.layer = layer

    def get_config(self) -> dict[str, Any]:
        config = super().get_config() | {"layer": serialize_keras_object(self.layer)}
        config.pop("forms", None)  # the layer's configuration has them
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return super().from_config(config | {"layer": layer_in(config, "layer")})
