"""Runs in a separate process: models of Keras, their files, their outputs, and the outputs after `from_keras`.

``python keras_models.py FOLDER`` writes, for each model, NAME.keras and NAME.npz with inputs, Keras' outputs (x0 ...,
want0 ...) and those of `from_keras` (got0 ...); and names.json: the layers' paths and policies by Keras and by mp_core.
"""

import json
import os
import sys

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
from keras import layers as kl
from sklearn.datasets import load_digits

from mp_core.interop.keras import from_keras

FOLDER = sys.argv[1]
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16", "bfloat16")
rng = np.random.default_rng(0)
keras.utils.set_random_seed(0)
NAMES, REFUSED = {}, {}


def _floats(x):
    return np.asarray(keras.ops.convert_to_numpy(x)).astype(np.float64)


def save(name, model, *inputs):
    arranged = inputs[0] if len(inputs) == 1 else list(inputs)
    model.save(f"{FOLDER}/{name}.keras")
    ours = from_keras(model)
    want, got = (keras.tree.flatten(each(arranged)) for each in (model, ours))
    arrays = {"x": list(map(np.asarray, inputs)), "want": map(_floats, want), "got": map(_floats, got)}
    np.savez(f"{FOLDER}/{name}.npz", **{f"{key}{i}": x for key, xs in arrays.items() for i, x in enumerate(xs)})
    theirs = {
        p.path: (p.dtype_policy.name, [list(map(int, w.shape)) for w in p.weights])
        for p in model._flatten_layers(include_self=False)
        if p.weights and not isinstance(p, keras.Model | kl.MultiHeadAttention)
    }
    mine = {
        p.path: (p.dtype_policy.name, [list(v.shape) for v in p.weights]) for p in ours.flatten() if p.own_variables()
    }
    NAMES[name] = theirs, mine, [str(x.dtype) for x in got], [keras.backend.standardize_dtype(x.dtype) for x in want]


def shaken(model):
    """Return a model whose weights are not the initial ones: biases, gammas and statistics count."""
    for w in model.weights:
        value = _floats(w)
        w.assign((value + 0.1 * rng.random(value.shape)).astype(np.float32))
    return model


def stack(shape, *parts, name=None):
    return keras.Sequential([keras.Input(shape), *parts], name=name)


def perceptron():
    return stack(
        (64,), kl.Dense(32, activation="relu", kernel_initializer="he_normal", kernel_regularizer="l2"),
        kl.Dropout(0.1), kl.BatchNormalization(), kl.LayerNormalization(), kl.RMSNormalization(), kl.GaussianNoise(0.1),
        kl.Dense(10, activation="softmax"), name="perceptron",
    )  # fmt: skip


def images(data_format="channels_last"):
    first = {"data_format": data_format}
    return stack(
        (9, 9, 4) if data_format == "channels_last" else (4, 9, 9),
        kl.Conv2D(6, 3, padding="same", strides=2, activation="relu", **first),
        kl.DepthwiseConv2D(3, padding="same", depth_multiplier=2, activation="elu", **first),
        kl.BatchNormalization(axis=-1 if data_format == "channels_last" else 1),
        kl.MaxPooling2D(2, padding="same", **first), kl.AveragePooling2D(2, strides=1, padding="same", **first),
        kl.Flatten(**first), kl.Dense(3),
    )  # fmt: skip


def sequences():
    return stack(
        (11, 6), kl.Conv1D(6, 3, padding="causal", dilation_rate=2, activation="gelu"), kl.MaxPooling1D(2),
        kl.AveragePooling1D(2, strides=1), kl.SpatialDropout1D(0.5), kl.GlobalMaxPooling1D(), kl.Reshape((2, -1)),
    )  # fmt: skip


def attention():
    x = keras.Input((11, 6), name="x")
    a = kl.MultiHeadAttention(2, 4, name="attention")(x, x, use_causal_mask=True)
    b = kl.Add()([a, x])
    c = b + a * 2
    merges = [kl.Multiply()([a, b]), kl.Average()([a, b, c]), kl.Subtract()([a, b]), kl.Maximum()([a, b]), c]
    d = kl.Concatenate()([*merges, kl.Minimum()([a, b])])
    e = kl.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d", activation="silu", name="mixed")(d)
    outputs = [kl.GlobalAveragePooling1D()(e), kl.LeakyReLU()(c), kl.ELU()(c), kl.ReLU(1.0)(c), kl.Softmax()(c)]
    return keras.Model(x, [*outputs, kl.Activation("tanh")(c)])


def digits():
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    model = perceptron()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x[:1500], y[:1500], epochs=12, batch_size=64, verbose=0)
    save("digits", model, x[1500:])
    for policy in ("mixed_bfloat16", "mixed_float16"):
        keras.config.set_dtype_policy(policy)
        copy = perceptron()
        copy.set_weights(model.get_weights())
        save(f"digits_{policy}", copy, x[1500:])
    keras.config.set_dtype_policy("float32")
    model.quantize("int8")
    save("digits_int8", model, x[1500:])
    np.save(f"{FOLDER}/labels.npy", y[1500:])


def nested():
    a = keras.Input((5,), name="a")
    inner = keras.Model(a, [kl.Dense(4, name="one")(a), kl.Dense(2, name="two")(a)], name="inner")
    head = stack((4,), kl.Dense(5, name="three"), name="head")
    i, j = keras.Input((5,), name="i"), keras.Input((5,), name="j")
    (u, v), (w, _) = inner(i), inner(j)
    return keras.Model([i, j], {"y": head(u), "z": head(w), "v": v})


def masked():
    ids = keras.Input((7,), dtype="int32", name="ids")
    e = kl.Embedding(10, 8, mask_zero=True, name="table")(ids)
    a = kl.MultiHeadAttention(2, 4, name="attention")(e, e)
    means = kl.GlobalAveragePooling1D()(e), kl.GlobalAveragePooling1D()(kl.Dense(3)(e)), kl.GlobalAveragePooling1D()(a)
    return keras.Model(ids, list(means))


def quantized(mode):
    x = rng.random((5, 3, 256)).astype(np.float32)
    i = keras.Input((3, 256), name="i")
    d = kl.Dense(16, activation="relu", name="dense")(i)
    model = keras.Model(i, kl.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d", name="einsum")(d))
    shaken(model).quantize(mode)
    save(mode, model, x)
    if mode != "float8":
        ids = keras.Input((7,), dtype="int32", name="ids")
        table = keras.Model(ids, kl.Embedding(300, 8, name="table")(ids))
        table.quantize(mode)
        save(f"{mode}_table", table, rng.integers(0, 300, (4, 7)))
    i = keras.Input((7, 6), name="i")
    model = keras.Model(i, kl.MultiHeadAttention(2, 4, name="attention")(i, i))
    model.quantize(mode)
    save(f"{mode}_attention", model, rng.random((2, 7, 6)).astype(np.float32))


def refuse(name, model):
    try:
        from_keras(model)
    except (NotImplementedError, ValueError, TypeError) as error:
        REFUSED[name] = [type(error).__name__, str(error)]


class Doubled(keras.Model):
    def call(self, x):
        return x * 2


def refusals():
    rows = (7, 6)
    refuse(
        "several",
        stack(
            (7, 6, 3),
            kl.CenterCrop(4, 4, name="l"),
            kl.Lambda(lambda x: x, name="m"),
            kl.Dense(3, activation=keras.ops.erf),
        ),
    )
    refuse("renorm", stack(rows, kl.BatchNormalization(renorm=True, name="renormalized")))
    refuse("unbuilt", keras.Sequential([kl.Dense(3)], name="unbuilt"))
    refuse("subclass", Doubled())
    refuse("layer", kl.Dense(3))
    x = keras.Input((4,))
    refuse("training", keras.Model(x, kl.Dropout(0.5, name="always")(x, training=True)))
    refuse("operation", keras.Model(x, keras.ops.cumprod(x)))


def main():
    digits()
    for policy in POLICIES:
        keras.config.set_dtype_policy(policy)
        save(f"{policy}_images", shaken(images()), rng.random((3, 9, 9, 4)).astype(np.float32))
        save(f"{policy}_sequences", shaken(sequences()), rng.random((3, 11, 6)).astype(np.float32))
        save(f"{policy}_attention", shaken(attention()), rng.random((3, 11, 6)).astype(np.float32))
    keras.config.set_dtype_policy("float32")
    save("first", shaken(images("channels_first")), rng.random((3, 4, 9, 9)).astype(np.float32))
    save("nested", nested(), *(rng.random((3, 5)).astype(np.float32) for _ in range(2)))
    ids = rng.integers(1, 10, (4, 7))
    ids[:, 4:] = 0
    save("masked", masked(), ids)
    for mode in ("int8", "int4", "float8"):
        quantized(mode)
    refusals()
    with open(f"{FOLDER}/names.json", "w") as file:
        json.dump({"names": NAMES, "refused": REFUSED}, file)


main()
