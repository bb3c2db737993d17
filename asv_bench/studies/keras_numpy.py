"""Compare `predict` of Keras' NumPy backend, plain, accelerated, and through `from_keras`, in interleaved rounds.

``python asv_bench/studies/keras_numpy.py [--rounds N] [--policy POLICY ...]`` prints a table. It needs the extra
`test`.
"""

import argparse
import os
import time
from collections.abc import Callable
from statistics import median

os.environ["KERAS_BACKEND"] = "numpy"

import keras
import ml_dtypes
import numpy as np
from keras import layers as kl

from mp_core.interop.keras import accelerated, from_keras

POLICIES = ("mixed_bfloat16", "mixed_float16", "int8", "float32")
rng = np.random.default_rng(0)


def perceptron() -> tuple[keras.Model, np.ndarray]:
    """256 rows through 512 x 1024 x 1024 x 10."""
    stack = [
        kl.Dense(1024, activation="relu"),
        kl.LayerNormalization(),
        kl.Dense(1024, activation="gelu"),
        kl.Dense(10),
    ]
    return keras.Sequential([keras.Input((512,)), *stack]), rng.random((256, 512)).astype(np.float32)


def transformer() -> tuple[keras.Model, np.ndarray]:
    """16 sequences of 64 tokens through two blocks of width 256."""
    x = inputs = keras.Input((64, 256))
    for _ in range(2):
        y = kl.LayerNormalization()(x)
        x = kl.Add()([x, kl.MultiHeadAttention(4, 64)(y, y)])
        y = kl.Dense(1024, activation="gelu")(kl.LayerNormalization()(x))
        x = kl.Add()([x, kl.Dense(256)(y)])
    outputs = kl.Dense(10, activation="softmax")(kl.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, outputs), rng.random((16, 64, 256)).astype(np.float32)


def contenders(make: Callable[[], tuple[keras.Model, np.ndarray]], policy: str) -> dict[str, Callable[[], object]]:
    """Return three ways to compute the same."""
    keras.config.set_dtype_policy("float32" if policy == "int8" else policy)
    model, x = make()
    if policy == "int8":
        model.quantize("int8")
    ours = from_keras(model)

    def plain() -> object:
        return model.predict(x, verbose=0)

    def fast() -> object:
        with accelerated():
            return plain()

    return {"keras": plain, "accelerated": fast, "from_keras": lambda: ours(x)}


def measure(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each contender in each round; the first call of each is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - start)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--policy", nargs="+", default=POLICIES, choices=POLICIES)
    arguments = parser.parse_args()
    print(f"Keras {keras.__version__}, NumPy {np.__version__}, ml_dtypes {ml_dtypes.__version__}")
    print(
        f"{'model':12} {'policy':15} {'keras ms':>9} {'accelerated':>12} {'from_keras':>11} {'times':>6} {'times':>6}"
    )
    for make in (perceptron, transformer):
        for policy in arguments.policy:
            taken = measure(contenders(make, policy), arguments.rounds)
            best = {name: 1e3 * min(seconds) for name, seconds in taken.items()}
            times = [
                median(a / b for a, b in zip(taken["keras"], taken[name], strict=True)) for name in list(taken)[1:]
            ]
            print(
                f"{make.__name__:12} {policy:15} {best['keras']:9.1f} {best['accelerated']:12.2f} "
                f"{best['from_keras']:11.2f} {times[0]:6.1f} {times[1]:6.1f}"
            )


main()
