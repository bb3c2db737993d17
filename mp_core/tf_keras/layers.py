"""The layers of :mod:`mp_core.layers` under tf.keras' rules."""

from mp_core import layers
from mp_core.tf_keras.layer import Layer

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


class Activation(Layer, layers.Activation):
    """:class:`mp_core.layers.Activation` under tf.keras' rules."""


class Conv2D(Layer, layers.Conv2D):
    """:class:`mp_core.layers.Conv2D` under tf.keras' rules."""


class Dense(Layer, layers.Dense):
    """:class:`mp_core.layers.Dense` under tf.keras' rules."""


class Dropout(Layer, layers.Dropout):
    """:class:`mp_core.layers.Dropout` under tf.keras' rules."""


class EinsumDense(Layer, layers.EinsumDense):
    """:class:`mp_core.layers.EinsumDense` under tf.keras' rules."""


class Embedding(Layer, layers.Embedding):
    """:class:`mp_core.layers.Embedding` under tf.keras' rules."""


class LayerNormalization(Layer, layers.LayerNormalization):
    """:class:`mp_core.layers.LayerNormalization` under tf.keras' rules."""


class Softmax(Layer, layers.Softmax):
    """:class:`mp_core.layers.Softmax` under tf.keras' rules."""
