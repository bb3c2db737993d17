"""Runs in a separate process: SpectralNormalization is trained and saved, and compared with Keras.

``python keras_spectral_normalization.py FOLDER`` fails unless mp_core has Keras' losses, weights and files.
"""

import sys
from pathlib import Path

import keras
import numpy as np
from oracles import assert_same_bits

import mp_core as mp

LAYERS = {
    "Dense": (lambda k: k.layers.Dense(3, activation="tanh"), (8, 5)),
    "Conv2D": (lambda k: k.layers.Conv2D(3, 2, padding="same"), (4, 5, 5, 2)),
    "Conv2DTranspose": (lambda k: k.layers.Conv2DTranspose(3, 2, use_bias=False), (4, 4, 4, 2)),
    "DepthwiseConv2D": (lambda k: k.layers.DepthwiseConv2D(2), (4, 5, 5, 3)),
    "Embedding": (lambda k: k.layers.Embedding(7, 3), (6,)),
}


def _model(k, name, power_iterations=2):
    make, shape = LAYERS[name]
    inputs = k.layers.Input(shape[1:], dtype="float32")
    return k.Sequential([inputs, k.layers.SpectralNormalization(make(k), power_iterations)])


def _data(name):
    rng = np.random.default_rng(3)
    shape = LAYERS[name][1]
    x = rng.integers(0, 7, shape) if name == "Embedding" else rng.standard_normal(shape)
    x = x.astype(np.float32)
    return x, rng.standard_normal(_model(mp, name).compute_output_shape(x.shape)).astype(np.float32)


def _fitted(model, x, y, **how):
    model.compile(optimizer="sgd", loss="mse", **how)
    losses = model.fit(x, y, batch_size=len(x), epochs=4, shuffle=False, verbose=0).history["loss"]
    return losses, [np.array(value) for value in model.get_weights()]


def compare(name, folder):
    """Raise AssertionError unless training and files are those of Keras."""
    x, y = _data(name)
    theirs, mine = _model(keras, name), _model(mp, name)
    mine.set_weights([np.array(value) for value in theirs.get_weights()])
    called = copy_of(mine)
    losses, weights = _fitted(theirs, x, y)
    found, values = _fitted(mine, x, y)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    for one, other in zip(values, weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    for one, other in zip(_fitted(called, x, y, run_eagerly=True)[1], values, strict=True):
        assert_same_bits(one, other)
    want = np.array(theirs.predict(x, verbose=0))
    theirs.save(folder / "theirs.keras")
    np.testing.assert_allclose(mp.load_model(folder / "theirs.keras").predict(x, verbose=0), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mp.interop.keras.from_keras(theirs)(x), want, rtol=1e-5, atol=1e-6)
    mine.save(folder / "mine.keras")
    again = np.array(keras.models.load_model(folder / "mine.keras").predict(x, verbose=0))
    np.testing.assert_allclose(again, mine.predict(x, verbose=0), rtol=1e-5, atol=1e-6)
    mine.save_weights(folder / "mine.weights.h5")
    other_model = _model(keras, name)
    other_model.load_weights(folder / "mine.weights.h5")
    for one, other in zip(other_model.get_weights(), mine.get_weights(), strict=True):
        np.testing.assert_array_equal(np.array(one), other)


def copy_of(model):
    """A model with the same weights."""
    other = type(model).from_config(model.get_config())
    other.set_weights(model.get_weights())
    return other


for layer in LAYERS:
    compare(layer, Path(sys.argv[1]))
