"""Layers under dtype policies, with Keras' names, arguments and weights.

It imports files and the rooms below it; training and the rooms above it may import it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mp_core.layers.adaptive_pooling import (
    AdaptiveAveragePooling1D,
    AdaptiveAveragePooling2D,
    AdaptiveAveragePooling3D,
    AdaptiveMaxPooling1D,
    AdaptiveMaxPooling2D,
    AdaptiveMaxPooling3D,
)
from mp_core.layers.attention import MultiHeadAttention
from mp_core.layers.augmentation import (
    AugMix,
    CutMix,
    MixUp,
    RandAugment,
    RandomBrightness,
    RandomColorDegeneration,
    RandomColorJitter,
    RandomContrast,
    RandomElasticTransform,
    RandomErasing,
    RandomFlip,
    RandomGaussianBlur,
    RandomGrayscale,
    RandomHue,
    RandomInvert,
    RandomPerspective,
    RandomPosterization,
    RandomRotation,
    RandomSaturation,
    RandomSharpness,
    RandomShear,
    RandomTranslation,
    RandomZoom,
)
from mp_core.layers.batch_normalization import BatchNormalization
from mp_core.layers.bidirectional import Bidirectional
from mp_core.layers.convolution import Conv1D, Conv2D, Conv3D
from mp_core.layers.dense import Dense
from mp_core.layers.depthwise import DepthwiseConv1D, DepthwiseConv2D
from mp_core.layers.dot_attention import AdditiveAttention, Attention
from mp_core.layers.dropping import (
    AlphaDropout,
    Dropout,
    GaussianDropout,
    GaussianNoise,
    SpatialDropout1D,
    SpatialDropout2D,
    SpatialDropout3D,
)
from mp_core.layers.einsum_dense import EinsumDense
from mp_core.layers.embedding import Embedding
from mp_core.layers.encoding import CategoryEncoding, Discretization
from mp_core.layers.group_normalization import GroupNormalization
from mp_core.layers.grouped_attention import GroupedQueryAttention
from mp_core.layers.input_layer import Input, InputLayer
from mp_core.layers.lambda_layer import Lambda
from mp_core.layers.layer import Layer
from mp_core.layers.merging import Add, Average, Concatenate, Dot, Maximum, Minimum, Multiply, Subtract
from mp_core.layers.merging_calls import add, average, concatenate, dot, maximum, minimum, multiply, subtract
from mp_core.layers.normalization import LayerNormalization, RMSNormalization
from mp_core.layers.operation import Operation as Operation  # not a name of Keras; configurations need it
from mp_core.layers.pointwise import (
    ELU,
    Activation,
    ActivityRegularization,
    Identity,
    LeakyReLU,
    Masking,
    ReLU,
    Softmax,
)
from mp_core.layers.pooling import (
    AveragePooling1D,
    AveragePooling2D,
    AveragePooling3D,
    GlobalAveragePooling1D,
    GlobalAveragePooling2D,
    GlobalAveragePooling3D,
    GlobalMaxPooling1D,
    GlobalMaxPooling2D,
    GlobalMaxPooling3D,
    MaxPooling1D,
    MaxPooling2D,
    MaxPooling3D,
)
from mp_core.layers.prelu import PReLU
from mp_core.layers.recurrent import RNN, StackedRNNCells
from mp_core.layers.recurrent_cells import GRUCell, LSTMCell, SimpleRNNCell
from mp_core.layers.recurrent_layers import GRU, LSTM, SimpleRNN
from mp_core.layers.registry import ABOVE
from mp_core.layers.reshaping import Flatten, Permute, RepeatVector, Reshape
from mp_core.layers.resizing import (
    Cropping1D,
    Cropping2D,
    Cropping3D,
    UpSampling1D,
    UpSampling2D,
    UpSampling3D,
    ZeroPadding1D,
    ZeroPadding2D,
    ZeroPadding3D,
)
from mp_core.layers.scaling import Normalization, Rescaling, UnitNormalization
from mp_core.layers.separable import SeparableConv1D, SeparableConv2D
from mp_core.layers.spectral_normalization import SpectralNormalization
from mp_core.layers.time_distributed import TimeDistributed
from mp_core.layers.transposed_convolution import Conv1DTranspose, Conv2DTranspose, Conv3DTranspose
from mp_core.utilities.absent import refuse

if TYPE_CHECKING:
    from mp_core.training.models import Functional
    from mp_core.training.sequential import Sequential

# Keras' other names of the same classes.
AvgPool1D, AvgPool2D, AvgPool3D = AveragePooling1D, AveragePooling2D, AveragePooling3D
MaxPool1D, MaxPool2D, MaxPool3D = MaxPooling1D, MaxPooling2D, MaxPooling3D
GlobalAvgPool1D, GlobalAvgPool2D, GlobalAvgPool3D = (
    GlobalAveragePooling1D, GlobalAveragePooling2D, GlobalAveragePooling3D)  # fmt: skip
GlobalMaxPool1D, GlobalMaxPool2D, GlobalMaxPool3D = GlobalMaxPooling1D, GlobalMaxPooling2D, GlobalMaxPooling3D
Convolution1D, Convolution2D, Convolution3D = Conv1D, Conv2D, Conv3D
Convolution1DTranspose, Convolution2DTranspose, Convolution3DTranspose = (
    Conv1DTranspose, Conv2DTranspose, Conv3DTranspose)  # fmt: skip
SeparableConvolution1D, SeparableConvolution2D = SeparableConv1D, SeparableConv2D
GroupQueryAttention = GroupedQueryAttention

__all__ = [
    "ELU",
    "GRU",
    "LSTM",
    "RNN",
    "Activation",
    "ActivityRegularization",
    "AdaptiveAveragePooling1D",
    "AdaptiveAveragePooling2D",
    "AdaptiveAveragePooling3D",
    "AdaptiveMaxPooling1D",
    "AdaptiveMaxPooling2D",
    "AdaptiveMaxPooling3D",
    "Add",
    "AdditiveAttention",
    "AlphaDropout",
    "Attention",
    "AugMix",
    "Average",
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "BatchNormalization",
    "Bidirectional",
    "CategoryEncoding",
    "Concatenate",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "Cropping1D",
    "Cropping2D",
    "Cropping3D",
    "CutMix",
    "Dense",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "Discretization",
    "Dot",
    "Dropout",
    "EinsumDense",
    "Embedding",
    "Flatten",
    "Functional",
    "GRUCell",
    "GaussianDropout",
    "GaussianNoise",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalAveragePooling3D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "GlobalMaxPooling3D",
    "GroupNormalization",
    "GroupedQueryAttention",
    "Identity",
    "Input",
    "InputLayer",
    "LSTMCell",
    "Lambda",
    "Layer",
    "LayerNormalization",
    "LeakyReLU",
    "Masking",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxPooling3D",
    "Maximum",
    "Minimum",
    "MixUp",
    "MultiHeadAttention",
    "Multiply",
    "Normalization",
    "PReLU",
    "Permute",
    "RMSNormalization",
    "RandAugment",
    "RandomBrightness",
    "RandomColorDegeneration",
    "RandomColorJitter",
    "RandomContrast",
    "RandomElasticTransform",
    "RandomErasing",
    "RandomFlip",
    "RandomGaussianBlur",
    "RandomGrayscale",
    "RandomHue",
    "RandomInvert",
    "RandomPerspective",
    "RandomPosterization",
    "RandomRotation",
    "RandomSaturation",
    "RandomSharpness",
    "RandomShear",
    "RandomTranslation",
    "RandomZoom",
    "ReLU",
    "RepeatVector",
    "Rescaling",
    "Reshape",
    "SeparableConv1D",
    "SeparableConv2D",
    "Sequential",
    "SimpleRNN",
    "SimpleRNNCell",
    "Softmax",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
    "SpectralNormalization",
    "StackedRNNCells",
    "Subtract",
    "TimeDistributed",
    "UnitNormalization",
    "UpSampling1D",
    "UpSampling2D",
    "UpSampling3D",
    "ZeroPadding1D",
    "ZeroPadding2D",
    "ZeroPadding3D",
    "add",
    "average",
    "concatenate",
    "dot",
    "maximum",
    "minimum",
    "multiply",
    "subtract",
]


if not TYPE_CHECKING:  # type checkers must report unknown names

    def __getattr__(name: str) -> Any:
        """Return a class of Keras' module that a higher room defines; raise an error for any other name."""
        if name not in ABOVE:
            refuse(name, "layers")
        found = globals()[name] = getattr(import_module(ABOVE[name]), name)
        return found


def __dir__() -> list[str]:
    return __all__
