"""Layers under dtype policies, with Keras' names, arguments and weights."""

from mp_core.layers.attention import MultiHeadAttention
from mp_core.layers.batch_normalization import BatchNormalization
from mp_core.layers.convolution import Conv1D, Conv2D
from mp_core.layers.dense import Dense
from mp_core.layers.depthwise import DepthwiseConv2D
from mp_core.layers.einsum_dense import EinsumDense
from mp_core.layers.embedding import Embedding
from mp_core.layers.graph import Functional, Node, Source
from mp_core.layers.input_layer import InputLayer
from mp_core.layers.layer import Layer
from mp_core.layers.merging import Add, Average, Concatenate, Maximum, Minimum, Multiply, Subtract
from mp_core.layers.normalization import LayerNormalization, RMSNormalization
from mp_core.layers.operation import Operation
from mp_core.layers.pointwise import (
    ELU,
    Activation,
    ActivityRegularization,
    AlphaDropout,
    Dropout,
    GaussianDropout,
    GaussianNoise,
    Identity,
    LeakyReLU,
    ReLU,
    Softmax,
    SpatialDropout1D,
    SpatialDropout2D,
)
from mp_core.layers.pooling import (
    AveragePooling1D,
    AveragePooling2D,
    GlobalAveragePooling1D,
    GlobalAveragePooling2D,
    GlobalMaxPooling1D,
    GlobalMaxPooling2D,
    MaxPooling1D,
    MaxPooling2D,
)
from mp_core.layers.reshaping import Flatten, Reshape
from mp_core.layers.sequential import Sequential

__all__ = [
    "ELU",
    "Activation",
    "ActivityRegularization",
    "Add",
    "AlphaDropout",
    "Average",
    "AveragePooling1D",
    "AveragePooling2D",
    "BatchNormalization",
    "Concatenate",
    "Conv1D",
    "Conv2D",
    "Dense",
    "DepthwiseConv2D",
    "Dropout",
    "EinsumDense",
    "Embedding",
    "Flatten",
    "Functional",
    "GaussianDropout",
    "GaussianNoise",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "Identity",
    "InputLayer",
    "Layer",
    "LayerNormalization",
    "LeakyReLU",
    "MaxPooling1D",
    "MaxPooling2D",
    "Maximum",
    "Minimum",
    "MultiHeadAttention",
    "Multiply",
    "Node",
    "Operation",
    "RMSNormalization",
    "ReLU",
    "Reshape",
    "Sequential",
    "Softmax",
    "Source",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "Subtract",
]
