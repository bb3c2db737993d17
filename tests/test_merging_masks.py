"""Multiply, Maximum and Minimum of arrays with masks, compared with Keras."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import pytest

import mp_core as mp

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of Keras on torch

X = np.float32([[[0, 0], [-1, -2], [0, 0], [-3, 4]], [[0, 0], [0, 0], [5, -6], [7, 8]]])
Y = np.float32([[[0, 0], [0, 0], [-1, 2], [-3, 5]], [[1, 2], [0, 0], [0, 0], [-2, 3]]])
Z = np.float32([[[9, 9], [8, -8], [0, 0], [0, 0]], [[-1, -2], [0, 0], [3, -3], [1, 1]]])


def model_of(library, name, masked):
    """Return a model of a layer with several inputs, and a mask for some of these."""
    inputs = [library.Input((4, 2)) for _ in masked]
    arrays = [library.layers.Masking()(x) if on else x for x, on in zip(inputs, masked, strict=True)]
    return library.Model(inputs, getattr(library.layers, name)()(arrays))


@pytest.mark.parametrize("masked", [(1, 1), (1, 0), (0, 1), (0, 0), (1, 1, 1), (0, 1, 1), (1, 1, 0), (1, 0, 1)])
@pytest.mark.parametrize("name", ["Multiply", "Maximum", "Minimum", "Add"])
def test_what_masks_leave_out_does_not_count_as_in_keras(name, masked):
    inputs = [X, Y, Z][: len(masked)]
    model, expected = model_of(mp, name, masked), model_of(keras, name, masked).predict(inputs, verbose=0)
    np.testing.assert_array_equal(model(inputs), expected)
    np.testing.assert_array_equal(model.predict(inputs, verbose=0), model(inputs))


def test_masks_of_16_bits_and_of_another_number():
    layer, keep = mp.layers.Multiply(dtype="bfloat16"), np.array([[True, False]])
    x = np.float32([[[3], [5]]])
    assert layer([x, x], mask=[keep, None]).astype(float).ravel().tolist() == [9.0, 5.0]
    with pytest.raises(ValueError, match="`mask` of layer 'multiply' must be a list of 2; received 1"):
        mp.layers.Multiply(name="multiply")([x, x], mask=[keep])
    for wrong in (np.array([True]), np.ones((1, 3), bool), np.ones((1, 2, 1), bool)):
        with pytest.raises(ValueError, match=r"must have the shape \(1, 2\) of its input"):
            mp.layers.Maximum()([x, x], mask=[wrong, None])
    nothing = np.zeros((0, 2, 1), np.float32)
    assert mp.layers.Minimum()([nothing, nothing], mask=[nothing[..., 0], None]).shape == (0, 2, 1)


def trained_kernel(library, name):
    """Return a kernel before a layer with masked inputs, after one step of SGD."""
    x, dense = library.Input((4, 2)), library.layers.Dense(2, kernel_initializer="ones", use_bias=False)
    arrays = [library.layers.Masking()(x), library.layers.Masking()(dense(x))]
    model = library.Model(x, getattr(library.layers, name)()(arrays))
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=2, verbose=0)
    return dense.get_weights()[0]


@pytest.mark.parametrize("name", ["Multiply", "Maximum", "Minimum"])
def test_gradients_pass_where_masks_keep_as_in_keras(name):
    np.testing.assert_allclose(trained_kernel(mp, name), trained_kernel(keras, name), rtol=1e-5, atol=1e-6)
