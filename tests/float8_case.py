"""A model of float8 layers and its training, for mp_core and for Keras: float8_case.py FOLDER trains with Keras."""

import sys
from pathlib import Path

import numpy as np

STEPS, SOURCES = 4, ("float32", "mixed_bfloat16")


def trained(library, policies, source):
    """Return the variables of a model after some steps, by layer and name."""
    policy = policies.QuantizedFloat8DTypePolicy("float8", source, amax_history_length=3)
    dense, state = library.layers.Dense, np.random.default_rng(0)
    model = library.Sequential([library.Input((6,)), dense(8, "relu", dtype=policy), dense(2, dtype=policy)])
    for layer in model.layers:
        kernel = layer._kernel if hasattr(layer, "_kernel") else layer.kernel
        kernel.assign(state.uniform(-0.5, 0.5, tuple(kernel.shape)).astype(np.float32))
    model.compile(library.optimizers.AdamW(0.1), "mse")
    x, y = (state.standard_normal((16, n)).astype(np.float32) for n in (6, 2))
    for _ in range(STEPS):
        model.train_on_batch(3 * x, y)
    return {f"{i}.{w.name}": np.asarray(w.numpy()) for i, layer in enumerate(model.layers) for w in layer.weights}


if __name__ == "__main__":
    import keras

    for source in SOURCES:
        np.savez(Path(sys.argv[1]) / f"{source}.npz", **trained(keras, keras.dtype_policies, source))
