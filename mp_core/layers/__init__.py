"""Layers under dtype policies, with Keras' names, arguments and weights."""

from mp_core.layers.attention import MultiHeadAttention
from mp_core.layers.convolution import Conv2D
from mp_core.layers.dense import Dense
from mp_core.layers.einsum_dense import EinsumDense
from mp_core.layers.embedding import Embedding
from mp_core.layers.layer import Layer
from mp_core.layers.normalization import LayerNormalization
from mp_core.layers.pointwise import Activation, Dropout, Softmax
from mp_core.layers.sequential import Sequential

__all__ = [
    "Activation",
    "Conv2D",
    "Dense",
    "Dropout",
    "EinsumDense",
    "Embedding",
    "Layer",
    "LayerNormalization",
    "MultiHeadAttention",
    "Sequential",
    "Softmax",
]
