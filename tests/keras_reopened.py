"""Runs in a separate process: Keras quantizes and adapts trained models, and opens the files of mp_core.

``python keras_reopened.py FOLDER`` writes KIND.MODE.keras and KIND.MODE.npz, and the contents of each ours.KIND.keras.
"""

import sys
import warnings
from pathlib import Path

import keras
import numpy as np
from keras import layers

folder = Path(sys.argv[1])
rng = np.random.default_rng(0)
X = rng.standard_normal((16, 5, 8)).astype("float32")
IDS = rng.integers(0, 9, (16, 5)).astype("int32")


def dense(x):
    return layers.Dense(3)(layers.Dense(6, activation="gelu")(x))


def einsum(x):
    return layers.Dense(3)(layers.EinsumDense("abc,cd->abd", (5, 4), bias_axes="d")(x))


def table(x):
    return layers.Dense(3)(layers.Embedding(9, 6)(x))


def attention(x):
    return layers.Dense(3)(layers.MultiHeadAttention(2, 4)(x, x))


def trained(model, x, y):
    model.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)  # compiling takes longer than two steps
    model.fit(x, y, epochs=2, verbose=0)


def adapt(model, x, y):
    for layer in model._flatten_layers():
        if hasattr(layer, "enable_lora"):
            layer.enable_lora(2)
    trained(model, x, y)


def optimizer_of(model):
    return {f"optimizer.{i}": np.array(v) for i, v in enumerate(model.optimizer.variables)}


MODES = {
    dense: ("int8", "lora", "lora.int8"), einsum: ("int4",), table: ("int4", "int8.lora"),
    attention: ("int8", "int4", "float8", "lora", "int8.lora"),
}  # fmt: skip

for kind, modes in MODES.items():
    for mode in modes:
        x = IDS if kind is table else X
        inputs = keras.Input(x.shape[1:], dtype=x.dtype.name)
        model = keras.Model(inputs, kind(inputs))
        y = rng.standard_normal((*x.shape[:2], 3)).astype("float32")
        trained(model, x, y)
        for change in mode.split("."):
            if change == "lora":
                adapt(model, x, y)
            else:
                model.quantize(change)
        outputs = model.predict(x, verbose=0)
        model.save(folder / f"{kind.__name__}.{mode}.keras")
        optimizer = optimizer_of(model)
        np.savez(folder / f"{kind.__name__}.{mode}.npz", x=x, outputs=outputs, variables=len(optimizer), **optimizer)

for path in folder.glob("ours.*.keras"):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = keras.saving.load_model(path)
    x = np.load(path.with_suffix(".npz"))["x"]
    said = np.array([str(warning.message) for warning in told])
    np.savez(path.with_suffix(".out.npz"), outputs=model.predict(x, verbose=0), told=said, **optimizer_of(model))
