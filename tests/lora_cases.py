"""The cases of `keras_lora.py` (with Keras) and `test_lora.py` (with mp_core): adapted layers, trained some steps."""

import itertools

import numpy as np

RANK, ALPHA, STEPS = 2, 3.0, 10
KINDS = {
    "Dense": (lambda api: api.layers.Dense(6, activation="gelu"), (5, 12), (5, 6)),
    "EinsumDense": (lambda api: api.layers.EinsumDense("abc,cde->abde", (None, 2, 4), bias_axes="de"),
                    (3, 5, 12), (3, 5, 2, 4)),
    "Conv1D": (lambda api: api.layers.Conv1D(6, 3, padding="causal", dilation_rate=2, activation="gelu"),
               (4, 5, 4), (4, 5, 6)),
    "Conv2D": (lambda api: api.layers.Conv2D(6, (2, 3), groups=2, strides=2, padding="same"),
               (3, 5, 4, 4), (3, 3, 2, 6)),
    "Embedding": (lambda api: api.layers.Embedding(9, 6), (4, 3), (4, 3, 6)),
}  # fmt: skip
CASES = [
    (kind, mode)
    for kind, mode in itertools.product(KINDS, (None, "int8", "int4"))
    if mode is None or not kind.startswith("Conv")  # which hold floats only
]


def computed(api, kind, mode):
    """Return what is compared: outputs, the trained variables, and what a file holds, before and after training."""
    make, shape, out = KINDS[kind]
    rng = np.random.default_rng(3)
    x = rng.integers(0, 9, shape).astype("int32") if kind == "Embedding" else rng.standard_normal(shape, "float32")
    target = rng.standard_normal(out, "float32")
    layer = make(api)
    model = api.Sequential([api.layers.Input(shape[1:], dtype=x.dtype.name), layer])
    layer.set_weights([rng.standard_normal(w.shape, "float32") for w in layer.get_weights()])
    if mode is not None:
        layer.quantize(mode)
    layer.enable_lora(RANK, lora_alpha=ALPHA)
    pair = [getattr(layer, f"lora_{'embeddings' if kind == 'Embedding' else 'kernel'}_{part}") for part in "ab"]
    for variable in pair:
        variable.assign(rng.standard_normal(variable.shape, "float32") * np.float32(0.3))
    model.compile(optimizer=api.optimizers.SGD(0.05), loss="mse")
    found = {"trainable": np.array([v.name for v in layer.trainable_weights]), **_of(layer, x, "before")}
    history = model.fit(x, target, batch_size=len(x), epochs=STEPS, shuffle=False, verbose=0)
    found |= {"losses": np.array(history.history["loss"]), **_of(layer, x, "after")}
    return found | {f"{part}": np.array(v.numpy()) for part, v in zip("ab", pair, strict=True)}


def _of(layer, x, when):
    stored = {}
    layer.save_own_variables(stored)
    saved = {f"{when}.{number}": np.array(value) for number, value in stored.items()}
    if layer.quantization_mode is None:  # Keras adds floats to codes
        saved[f"{when}.sum"] = np.array(getattr(layer, "embeddings" if hasattr(layer, "embeddings") else "kernel"))
    return {f"{when}.outputs": np.array(layer(x)), **saved}
