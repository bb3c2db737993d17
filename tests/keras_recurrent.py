"""The results of Keras on JAX for `test_recurrent.py`: outputs, gradients and files of recurrent layers."""

import sys
from pathlib import Path

import numpy as np

LENGTH, WIDTH, BATCH = 6, 5, 4
SEQUENCES = {"return_sequences": True}
ALL = {"return_sequences": True, "return_state": True}


def one(kind, **options):
    """Return what makes a recurrent layer in Keras, or the same one in mp_core."""
    return lambda layers: getattr(layers, kind)(3, **options)


def both(kind, merge_mode="concat", **options):
    return lambda layers: layers.Bidirectional(getattr(layers, kind)(3, **options), merge_mode=merge_mode)


CASES = {
    "LSTM": (one("LSTM"), ""),
    "LSTM, masked": (one("LSTM", **ALL), "mask"),
    "LSTM, backwards": (one("LSTM", go_backwards=True, **SEQUENCES), "mask"),
    "LSTM, states": (one("LSTM", activation="relu", use_bias=False, return_state=True), "mask states"),
    "LSTM, other gates": (one("LSTM", recurrent_activation="hard_sigmoid", unit_forget_bias=False), ""),
    "GRU": (one("GRU"), ""),
    "GRU, reset before": (one("GRU", reset_after=False, **ALL), "mask"),
    "GRU, zeros": (one("GRU", go_backwards=True, zero_output_for_mask=True, **ALL), "mask"),
    "SimpleRNN": (one("SimpleRNN", zero_output_for_mask=True, **SEQUENCES), "mask"),
    "SimpleRNN, states": (one("SimpleRNN", activation=None, **ALL), "mask states"),
    "cells": (lambda layers: layers.RNN([layers.LSTMCell(4), layers.GRUCell(3)], **ALL), "mask"),
    "both": (both("LSTM", **SEQUENCES), "mask"),
    "both, summed": (both("GRU", "sum", **ALL), ""),
    "both, apart": (both("SimpleRNN", None, **ALL), "mask"),
    "both, mean": (both("LSTM", "ave"), ""),
    "LSTM in bfloat16": (one("LSTM", dtype="mixed_bfloat16", **ALL), "mask"),
    "GRU in float16": (one("GRU", dtype="mixed_float16", **ALL), "mask"),
}
"""Name -> what makes the layer, and which arguments it is called with beside the sequences."""


def arguments(name):
    """Return the sequences and the other arguments of a case."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, LENGTH, WIDTH)).astype(np.float32)
    mask = np.ones((BATCH, LENGTH), bool)
    mask[0, 4:], mask[1, :2], mask[2, 3], mask[3] = False, False, False, False
    states = [rng.standard_normal((BATCH, 3)).astype(np.float32) for _ in range(1 + name.startswith("LSTM"))]
    given = CASES[name][1]
    found = {"mask": mask} if "mask" in given else {}
    return x, found | ({"initial_state": states} if "states" in given else {})


def flat(outputs):
    """Return the arrays in outputs."""
    if isinstance(outputs, list | tuple):
        return [part for item in outputs for part in flat(item)]
    return [outputs]


def weigh(outputs, total):
    """Return a number that depends on all outputs, by a function that sums an array."""
    return sum(total(x * (1.0 + 0.1 * number) * x) for number, x in enumerate(outputs))


def translate(folder):
    """Write a model that reads padded words, and says others from the states after them."""
    import keras

    words, start = (keras.Input((None,), dtype="int32", name=name) for name in ("words", "start"))
    read = keras.layers.Embedding(9, 4, mask_zero=True)(words)
    _, *states = keras.layers.LSTM(3, return_state=True)(read)
    begun = keras.layers.Embedding(9, 4, mask_zero=True)(start)
    said = keras.layers.LSTM(3, return_sequences=True)(begun, initial_state=states)
    again = keras.layers.GRU(3)(said)  # has the mask of `start`, which the layer before it did not get
    model = keras.Model([words, start], [said, again])
    model.save(folder / "translation.keras")
    given = [np.array([[3, 1, 4, 0, 0], [2, 0, 0, 0, 0]]), np.array([[5, 0, 6], [7, 8, 0]])]
    np.savez(folder / "translation.npz", *given, *[np.asarray(y) for y in model(given)])


def run(folder):
    import jax
    import keras

    for number, (name, (make, _)) in enumerate(CASES.items()):
        keras.utils.set_random_seed(number)
        layer = make(keras.layers)
        if name == "GRU in float16":
            layer.use_cudnn = False  # the other way of Keras 3.15 fails
        model = keras.Sequential([keras.Input((LENGTH, WIDTH)), layer])
        rng = np.random.default_rng(number)
        model.set_weights([0.5 * rng.standard_normal(w.shape) for w in model.get_weights()])
        x, options = arguments(name)

        def value(weights, x, layer=layer, options=options):
            outputs, _ = layer.stateless_call(weights, [v.value for v in layer.non_trainable_variables], x, **options)
            return weigh([y.astype(np.float32) for y in flat(outputs)], jax.numpy.sum), outputs

        weights = [v.value for v in layer.trainable_variables]
        function = jax.jit(jax.value_and_grad(value, argnums=(0, 1), has_aux=True))
        (_, outputs), (of_weights, of_x) = function(weights, x)
        arrays = {f"outputs{i}": np.asarray(y, np.float32) for i, y in enumerate(flat(outputs))}
        arrays |= {f"gradients{i}": np.asarray(d) for i, d in enumerate([of_x, *of_weights])}
        np.savez(folder / f"{name}.npz", **arrays)
        model.save(folder / f"{name}.keras")
    translate(folder)
    for path in folder.glob("ours *.keras"):
        model = keras.saving.load_model(path)
        x = np.load(path.with_suffix(".npy"))
        np.savez(path.with_suffix(".npz"), *[np.asarray(y) for y in flat(model(x))])
        model.save(path.with_name(path.name.replace("ours", "theirs")))


if __name__ == "__main__":
    run(Path(sys.argv[1]))
