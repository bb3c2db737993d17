"""Runs in a separate process: Keras trains adapted layers.

``python keras_lora.py FOLDER`` writes KIND.MODE.npz for each case. For an adapted convolution it writes
Conv.keras.keras, Conv.plain.keras (the same kernel without LoRA), and Conv.npz with inputs and outputs.
"""

import sys
from pathlib import Path

import keras
import lora_cases
import numpy as np

for kind, mode in lora_cases.CASES:
    np.savez(Path(sys.argv[1]) / f"{kind}.{mode}.npz", **lora_cases.computed(keras, kind, mode))


def convolution(kernel=None, **lora):
    model = keras.Sequential([keras.layers.Input((5, 6, 4)), keras.layers.Conv2D(6, (2, 3), **lora)])
    if kernel is not None:
        model.layers[0].set_weights([kernel, model.layers[0].bias])
    return model


folder, rng = Path(sys.argv[1]), np.random.default_rng(5)
adapted = convolution(lora_rank=2, lora_alpha=3)
for variable in adapted.layers[0].trainable_variables:
    variable.assign(rng.standard_normal(variable.shape) * 0.3)
plain = convolution(np.array(adapted.layers[0].kernel))
plain.layers[0].bias.assign(adapted.layers[0].bias)
x = rng.standard_normal((3, 5, 6, 4)).astype("float32")
np.savez(folder / "Conv.npz", x=x, want=np.array(adapted(x)))
adapted.save(folder / "Conv.keras.keras")
plain.save(folder / "Conv.plain.keras")
