"""The layers of :mod:`mp_core.layers` under tf.keras' rules."""

from typing import Any

from mp_core import layers
from mp_core.tf_keras.layer import Layer
from mp_core.tf_keras.mixed_precision.policy import is_floating

__all__ = [
    "Activation",
    "Conv2D",
    "Dense",
    "Dropout",
    "EinsumDense",
    "Embedding",
    "Layer",
    "LayerNormalization",
    "Softmax",
]


class _Weighted(Layer):
    """A built-in layer with weights, which are floating-point numbers."""

    def build(self, input_shape: Any = None) -> None:
        if self.dtype is not None and not is_floating(self.dtype):
            name = type(self).__name__
            article = "An" if name[0] in "AEIOU" else "A"
            raise TypeError(
                f"{article} {name} layer can only be built with a floating-point dtype. Received: dtype={self.dtype}"
            )
        super().build(input_shape)


class Activation(Layer, layers.Activation):
    """:class:`mp_core.layers.Activation` under tf.keras' rules."""


class Conv2D(_Weighted, layers.Conv2D):
    """:class:`mp_core.layers.Conv2D` under tf.keras' rules."""


class Dense(_Weighted, layers.Dense):
    """:class:`mp_core.layers.Dense` under tf.keras' rules."""

    _modes = layers.Dense._modes


class Dropout(Layer, layers.Dropout):
    """:class:`mp_core.layers.Dropout` under tf.keras' rules."""


class EinsumDense(_Weighted, layers.EinsumDense):
    """:class:`mp_core.layers.EinsumDense` under tf.keras' rules."""

    _modes = layers.EinsumDense._modes


class Embedding(_Weighted, layers.Embedding):
    """:class:`mp_core.layers.Embedding` under tf.keras' rules."""

    _modes = layers.Embedding._modes


class LayerNormalization(_Weighted, layers.LayerNormalization):
    """:class:`mp_core.layers.LayerNormalization` under tf.keras' rules."""


class Softmax(Layer, layers.Softmax):
    """:class:`mp_core.layers.Softmax` under tf.keras' rules."""
