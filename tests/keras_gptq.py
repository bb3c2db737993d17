"""Runs in a separate process, with Keras' NumPy backend: models under Keras' policies gptq and awq.

``python keras_gptq.py FOLDER`` writes for each case NAME.npz with the outputs for the same tokens of

- ``exact``: the float model;
- ``want``: the model that Keras quantized; ``got``: what `from_keras` makes of it;
- ``ours``: the model that mp_core quantized with the same configuration; ``reopened``: its file, opened by Keras.
"""

import sys
from pathlib import Path

import keras
import numpy as np
from keras import layers as kl

from mp_core.interop.keras import from_keras

FOLDER = Path(sys.argv[1])
TOKENS = np.random.default_rng(0).integers(0, 50, 600)
X = np.random.default_rng(1).integers(0, 50, (5, 8))
SAMPLE = {"num_samples": 16, "sequence_length": 8}


def model():
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 24))
    y = kl.Dense(33, activation="relu", name="hidden")(x)
    y = kl.EinsumDense("abc,cde->abde", (None, 4, 6), bias_axes="de", name="heads")(y)
    y = kl.EinsumDense("abde,dec->abc", (None, 40), bias_axes="c", name="joined")(y)
    block = keras.Model(x, y, name="block")
    tokens = keras.Input((8,), dtype="int32")
    y = block(kl.Embedding(50, 24, name="table")(tokens))
    return keras.Model(tokens, kl.Dense(3, use_bias=False, name="head")(y))


CASES = {
    "gptq4": ("gptq", {"weight_bits": 4, "group_size": 8}),
    "gptq4_channels": ("gptq", {"weight_bits": 4, "group_size": -1}),
    "gptq4_symmetric": ("gptq", {"weight_bits": 4, "group_size": 8, "symmetric": True}),
    "gptq4_ordered": ("gptq", {"weight_bits": 4, "group_size": 8, "activation_order": True}),
    "gptq8": ("gptq", {"weight_bits": 8, "group_size": 16}),
    "gptq3": ("gptq", {"weight_bits": 3, "group_size": 8}),
    "gptq2": ("gptq", {"weight_bits": 2, "group_size": 8}),
    "awq4": ("awq", {"group_size": 8}),
    "awq4_channels": ("awq", {"group_size": -1}),
}
KINDS = {"gptq": keras.quantizers.GPTQConfig, "awq": keras.quantizers.AWQConfig}


def main():
    for name, (mode, options) in CASES.items():
        theirs = model()
        ours = from_keras(theirs)
        config = KINDS[mode]([TOKENS], object(), **SAMPLE, **options)
        found = {"exact": ours(X)}
        for each in (theirs, ours):
            # Keras cannot save a configuration that holds the structure itself.
            each.get_quantization_layer_structure = lambda _, each=each: {
                "pre_block_layers": [each.get_layer("table")], "sequential_blocks": [each.get_layer("block")]
            }  # fmt: skip
            each.quantize(mode, config=config, filters="hidden|heads|joined")
        ours.save(FOLDER / f"{name}.keras")
        reopened = keras.models.load_model(FOLDER / f"{name}.keras")
        found |= {"want": theirs(X), "got": from_keras(theirs)(X), "ours": ours(X), "reopened": reopened(X)}
        np.savez(FOLDER / f"{name}.npz", **{key: np.asarray(value) for key, value in found.items()})


if __name__ == "__main__":
    main()
