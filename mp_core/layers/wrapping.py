"""Read a layer from the configuration of another one, and a base class for layers with an attribute `layer`."""

from typing import Any, Self

from mp_core.layers.layer import Layer
from mp_core.layers.registry import layer_classes
from mp_core.utilities.registry import check_depth, class_and_config, known_classes
from mp_core.utilities.serialization import serialize_keras_object

__all__ = ["Wrapping", "layer_in"]


def layer_in(config: Any, key: str) -> Layer:
    """Return the layer that an entry of a configuration stands for, or is already.

    Raises
    ------
    ValueError
        There is none, or its class is neither a layer of mp_core, nor registered, nor in scope.
    """
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
    """A layer around another one, which its configuration has as ``layer``.

    Parameters
    ----------
    layer : Layer
        Of one array; a model too.
    **kwargs
        Those of :class:`Layer`.

    Raises
    ------
    ValueError
        `layer` is no layer.
    """

    _arrays = ("inputs",)
    _told = ("layer",)

    def __init__(self, layer: Layer, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(layer, Layer):
            raise ValueError(f"`layer` must be a Layer; received {layer!r} (of type {type(layer).__name__})")
        self.layer = layer

    def get_config(self) -> dict[str, Any]:
        """Return the configuration, with that of the layer."""
        config = super().get_config() | {"layer": serialize_keras_object(self.layer)}
        config.pop("forms", None)  # the layer says its own
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the layer of a configuration.

        Raises
        ------
        ValueError
            There is no ``layer``, or its ``class_name`` is neither a layer of mp_core, nor registered, nor in scope.
        """
        return super().from_config(config | {"layer": layer_in(config, "layer")})
