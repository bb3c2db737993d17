"""Output shapes of layers that are not built yet, compared with those of Keras."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import pytest

import mp_core as mp

LAYERS = {
    "Dense": (lambda k: k.layers.Dense(5), [(None, 7, 3)]),
    "Conv1D": (lambda k: k.layers.Conv1D(5, 3, strides=2), [(None, 21, 4)]),
    "Conv2D of any size": (lambda k: k.layers.Conv2D(5, 3, padding="same"), [(None, None, None, 4)]),
    "MaxPooling2D": (lambda k: k.layers.MaxPooling2D(2), [(2, 8, 9, 3)]),
    "Embedding": (lambda k: k.layers.Embedding(10, 4), [(None, 6)]),
    "GlobalAveragePooling1D": (lambda k: k.layers.GlobalAveragePooling1D(), [(None, None, 3)]),
    "Reshape": (lambda k: k.layers.Reshape((3, 4)), [(None, 12)]),
    "Concatenate": (lambda k: k.layers.Concatenate(), [[(None, 3), (None, 4)]]),
    "MultiHeadAttention": (lambda k: k.layers.MultiHeadAttention(2, 4), [(None, 5, 8), (None, 6, 8)]),
    "Sequential": (lambda k: k.Sequential([k.layers.Dense(5), k.layers.Dense(2)]), [(None, 3)]),
}


@pytest.mark.parametrize("make, shapes", LAYERS.values(), ids=LAYERS)
def test_shapes_of_outputs_are_those_of_keras(make, shapes):
    layer = make(mp)
    assert layer.compute_output_shape(*shapes) == tuple(make(keras).compute_output_shape(*shapes))
    assert not layer.is_placed and not layer.weights


LONG = 10**12
FIRST = {"data_format": "channels_first"}
FORMULAS = {
    **{name: (lambda k, name=name: getattr(k.layers, name)(), (None, LONG)) for name in (
        "ReLU", "LeakyReLU", "ELU", "Softmax", "Identity", "Flatten", "BatchNormalization", "LayerNormalization",
        "RMSNormalization", "UnitNormalization", "PReLU", "Masking")},
    "Activation": (lambda k: k.layers.Activation("tanh"), (3, LONG, LONG)),
    "Dropout": (lambda k: k.layers.Dropout(0.5), (LONG, 3)),
    "GroupNormalization": (lambda k: k.layers.GroupNormalization(2), (None, LONG, 4)),
    "Dense": (lambda k: k.layers.Dense(5, activation="relu"), (None, LONG)),
    "Dense of a long axis": (lambda k: k.layers.Dense(5), (None, LONG, 3)),
    "EinsumDense": (lambda k: k.layers.EinsumDense("abc,cd->abd", (LONG, 7)), (None, LONG, 4)),
    "Embedding": (lambda k: k.layers.Embedding(10, 4), (None, LONG)),
    "Conv1D": (lambda k: k.layers.Conv1D(5, 3, strides=7, dilation_rate=1), (None, LONG, 4)),
    "Conv1D causal": (lambda k: k.layers.Conv1D(5, 3, padding="causal", dilation_rate=5), (None, LONG, 4)),
    "Conv2D": (lambda k: k.layers.Conv2D(6, 3, strides=(2, 3), padding="same", **FIRST), (None, 4, LONG, 17)),
    "Conv3D": (lambda k: k.layers.Conv3D(5, 3, strides=2, padding="same", **FIRST), (2, 3, LONG, None, 4)),
    "Conv1DTranspose": (lambda k: k.layers.Conv1DTranspose(5, 2, strides=3, output_padding=1), (None, LONG, 4)),
    "Conv2DTranspose": (
        lambda k: k.layers.Conv2DTranspose(5, 3, strides=2, padding="same", output_padding=1, **FIRST),
        (None, 4, LONG, None)),
    "Conv3DTranspose": (lambda k: k.layers.Conv3DTranspose(5, 3, dilation_rate=2), (2, 3, LONG, None, 4)),
    "DepthwiseConv1D": (lambda k: k.layers.DepthwiseConv1D(3, depth_multiplier=2), (2, LONG, 4)),
    "DepthwiseConv2D": (lambda k: k.layers.DepthwiseConv2D(3, **FIRST), (2, 4, LONG, 9)),
    "SeparableConv1D": (lambda k: k.layers.SeparableConv1D(5, 3, dilation_rate=4), (2, LONG, 4)),
    "SeparableConv2D": (lambda k: k.layers.SeparableConv2D(5, 3, strides=2, padding="same"), (2, LONG, None, 4)),
    "MaxPooling1D": (lambda k: k.layers.MaxPooling1D(3, strides=11), (None, LONG, 4)),
    "AveragePooling2D": (lambda k: k.layers.AveragePooling2D(2, padding="same", **FIRST), (None, 4, LONG, 7)),
    "GlobalMaxPooling2D": (lambda k: k.layers.GlobalMaxPooling2D(keepdims=True, **FIRST), (None, 4, LONG, 7)),
    "GlobalAveragePooling1D": (lambda k: k.layers.GlobalAveragePooling1D(), (None, LONG, 4)),
    "Reshape": (lambda k: k.layers.Reshape((-1, 5)), (None, LONG, 10)),
    "Reshape of any length": (lambda k: k.layers.Reshape((-1, 5)), (LONG, None, 10)),
    "Permute": (lambda k: k.layers.Permute((2, 1)), (None, LONG, None)),
    "RepeatVector": (lambda k: k.layers.RepeatVector(LONG), (None, 3)),
    "Cropping1D": (lambda k: k.layers.Cropping1D((1, 2)), (None, LONG, 3)),
    "ZeroPadding2D": (lambda k: k.layers.ZeroPadding2D(((1, 2), (3, 4)), **FIRST), (None, 3, LONG, None)),
    "UpSampling2D": (lambda k: k.layers.UpSampling2D((2, 3)), (None, LONG, None, 3)),
    "TimeDistributed": (lambda k: k.layers.TimeDistributed(k.layers.Conv1D(5, 2)), (None, LONG, LONG, 3)),
    "Sequential": (
        lambda k: k.Sequential([k.layers.Conv1D(5, 3, padding="same"), k.layers.Flatten(), k.layers.Dense(2)]),
        (None, LONG, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("make, shape", FORMULAS.values(), ids=FORMULAS)
def test_long_arrays_have_shapes_though_they_fit_into_no_memory(make, shape):
    layer = make(mp)
    assert layer.compute_output_shape(shape) == tuple(make(keras).compute_output_shape(shape))
    assert not layer.is_placed and not layer.weights


def test_shapes_that_layers_refuse_are_refused_by_name():
    for make, shape, message in (
        (lambda: mp.layers.Conv1D(5, 4), (None, 3, 2), "smaller than the kernel"),
        (lambda: mp.layers.Conv2D(5, 4), (None, 3), "expected 4 axes"),
        (lambda: mp.layers.Cropping1D(2), (None, 4, 2), "must be larger than"),
        (lambda: mp.layers.MaxPooling1D(2), (None, 4), "expected 3 axes"),
        (lambda: mp.layers.Reshape((5, -1)), (None, 4), "must have as many elements"),
        (lambda: mp.layers.Dense(2), (None, None), "expected axis -1"),
        (lambda: mp.layers.TimeDistributed(mp.layers.Dense(2)), (None, 4), "at least 3 axes"),
    ):
        with pytest.raises(ValueError, match=message):
            make().compute_output_shape(shape)


def test_only_a_call_tells_the_shape_that_code_of_users_makes():
    class Halved(mp.layers.Dense):
        def call(self, inputs):
            return super().call(inputs)[..., ::2]

    assert Halved(6).compute_output_shape((None, 3)) == (None, 3)
    assert mp.layers.Dense(6, activation="glu").compute_output_shape((None, 3)) == (None, 3)
    assert mp.layers.Activation(lambda x: x[:, :1]).compute_output_shape((None, 3)) == (None, 1)


def test_a_built_layer_tells_the_shape_and_stays_as_it_is():
    layer = mp.layers.Dense(2)
    before = layer(np.ones((1, 3), np.float32))
    assert layer.compute_output_shape((None, 3)) == (None, 2)
    np.testing.assert_array_equal(layer(np.ones((1, 3), np.float32)), before)
    with pytest.raises(ValueError, match="4"):
        layer.compute_output_shape((None, 4))
