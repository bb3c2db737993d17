"""Runs in a separate process, with Keras' NumPy backend: the cases of `keras_cases.py`.

``python keras_layers.py FOLDER`` writes, for each case, NAME.keras, and NAME.npz with the inputs ``x``, Keras' outputs
``want``, their ``dtype``, and the outputs of the model from `from_keras`: ``got`` and ``got_dtype``.
"""

import sys
from inspect import signature

import keras
import numpy as np
from keras import layers as kl
from keras_cases import INPUTS, NUMBERED, QUANTIZED, layer_name, name_of

from mp_core.interop.keras import from_keras

FOLDER = sys.argv[1]
IDS = np.array([[257, 1001, 515, 999]])
LARGE = np.array([[1e5, 2e5, 3e5, 1.0]], np.float32)
TABLE = np.cos(np.arange(1003.0)).astype(np.float32)[:, np.newaxis]


def save(name, model, x):
    want = keras.ops.convert_to_numpy(model(x))
    model.save(f"{FOLDER}/{name}.keras")
    got = from_keras(model)(x)
    several = {f"x{i}": each for i, each in enumerate(x)} if isinstance(x, list) else {"x": x}
    arrays = {**several, "want": want.astype(np.float64), "got": np.asarray(got).astype(np.float64)}
    np.savez(f"{FOLDER}/{name}.npz", **arrays, dtype=str(want.dtype), got_dtype=str(got.dtype))


# ---- the dtypes of inputs


def embedding():
    return kl.Embedding(1003, 1, embeddings_initializer=lambda shape, dtype=None: TABLE)


FIRST = {
    "floats to an Embedding": (embedding, IDS.astype(np.float32)),
    "integers to an Embedding": (embedding, IDS),
    "1e5 to a LayerNormalization": (kl.LayerNormalization, LARGE),
    "1e5 to a float32 Dense": (lambda: kl.Dense(1, kernel_initializer="ones", dtype="float32"), LARGE),
    "integers to a Softmax": (kl.Softmax, np.array([[1, 2, 3, 4]])),
    "booleans to a Dense": (lambda: kl.Dense(2, kernel_initializer="ones"), np.array([[True, False, True, True]])),
    "float64 to an Identity": (kl.Identity, np.array([[1 / 3, 1e-3, 1e5, 7.0]])),
}


def functional(layer, dtype):
    x = keras.Input((4,), dtype=dtype)
    return keras.Model(x, layer(x))


WAYS = {
    "stack": lambda layer, dtype: keras.Sequential([keras.Input((4,), dtype=dtype), layer]),
    "stack in a stack": lambda layer, dtype: keras.Sequential(
        [keras.Input((4,), dtype=dtype), keras.Sequential([keras.Input((4,)), layer])]
    ),
    "functional in a stack": lambda layer, dtype: keras.Sequential(
        [keras.Input((4,), dtype=dtype), functional(layer, "float32")]
    ),
    "stack in a functional": lambda layer, dtype: functional(keras.Sequential([keras.Input((4,)), layer]), dtype),
}


def inputs():
    for case in INPUTS:
        policy, way, first, dtype = case
        keras.config.set_dtype_policy(policy)
        make, x = FIRST[first]
        save(name_of(case), WAYS[way](make(), dtype), x)


# ---- layers

rng = np.random.default_rng(0)


def values(shape, dtype):
    if dtype == "float32":
        x = (2 * rng.standard_normal((3, *shape))).astype(np.float32)
        x[0, 0] = 0
        return x
    return rng.integers(0, 9 if dtype == "int32" else 256, (3, *shape)).astype(dtype)


def layer_cases():
    for case in NUMBERED:
        policy, _, kind, arguments, shape, dtype = (*case, "float32")[:6]
        keras.config.set_dtype_policy(policy)
        layer, shapes = getattr(kl, kind)(**arguments), shape if isinstance(shape, list) else [shape]
        x = [keras.Input(each, dtype=dtype) for each in shapes]
        options = {"training": False} if "training" in signature(layer.call).parameters else {}
        outputs = layer(x if isinstance(shape, list) else x[0], **options)
        model = keras.Model(x if isinstance(shape, list) else x[0], outputs)
        for w in model.weights:
            w.assign((0.5 + rng.random(w.shape)).astype(keras.backend.standardize_dtype(w.dtype)))
        if kind == "Normalization":
            layer.finalize_state()  # takes the new statistics over
        arrays = [values(each, dtype) for each in shapes]
        save(layer_name(case), model, arrays if isinstance(shape, list) else arrays[0])


# ---- quantization


def quantized():
    keras.config.set_dtype_policy("float32")
    for name, (kind, arguments, filters) in QUANTIZED.items():
        x = keras.Input((3,), dtype="int32")
        rows = kl.Embedding(9, 64, name="table")(x)
        outputs = kl.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d", name="einsum")(
            kl.Dense(64, name="dense")(rows)
        )
        model = keras.Model(x, outputs)
        for w in model.weights:
            w.assign(rng.standard_normal(w.shape).astype(np.float32))
        model.save(f"{FOLDER}/{name}.keras")
        config = getattr(keras.quantizers, kind)(**arguments)
        ours = from_keras(model)
        ours.quantize(config=config, filters=filters)  # Keras' own object
        model.quantize(config=config, filters=filters)
        arrays = {}
        for layer in model.layers[1:]:
            store = {}
            layer.save_own_variables(store)
            arrays |= {f"{layer.name}/{key}": keras.ops.convert_to_numpy(value) for key, value in store.items()}
            arrays[f"{layer.name}/policy"] = layer.dtype_policy.name
        arrays["modes"] = [str(layer.quantization_mode) for layer in ours.layers[1:]]
        np.savez(f"{FOLDER}/{name}.npz", **arrays)


with np.errstate(all="ignore"):
    quantized()
    inputs()
    layer_cases()
