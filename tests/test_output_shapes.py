"""Shapes of outputs, as layers tell them before they are built, beside those of Keras."""

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
    assert not layer.built and not layer.weights


def test_a_built_layer_tells_the_shape_and_stays_as_it_is():
    layer = mp.layers.Dense(2)
    before = layer(np.ones((1, 3), np.float32))
    assert layer.compute_output_shape((None, 3)) == (None, 2)
    np.testing.assert_array_equal(layer(np.ones((1, 3), np.float32)), before)
    with pytest.raises(ValueError, match="4"):
        layer.compute_output_shape((None, 4))
