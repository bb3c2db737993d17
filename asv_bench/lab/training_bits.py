"""Train two small networks under three policies, on every instruction set and some numbers of threads, and print the
SHA-256 of the weights: one for each network and policy, here and on every other machine."""

import argparse
import hashlib
import os
import subprocess
import sys

import numpy as np

import mp_core as mp

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
CHILD = "child"  # the argument of a child process, which trains on one instruction set and number of threads


def main() -> int:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split()))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2, 4], metavar="N")
    options = parser.parse_args()
    found: dict[str, dict[str, list[str]]] = {}
    for isa in mp.config.available_isas():
        for threads in options.threads:
            for line in trained(isa, threads):
                name, digest = line.rsplit(maxsplit=1)
                found.setdefault(name, {}).setdefault(digest, []).append(f"{isa}/{threads}")
    for name, digests in found.items():
        for digest, runs in digests.items():
            print(f"{name:28} {digest}  {len(runs)} runs" + (f": {' '.join(runs)}" if len(digests) > 1 else ""))
    return any(len(digests) > 1 for digests in found.values())


def trained(isa: str, threads: int) -> list[str]:
    """Return the lines that a separate process prints with these settings."""
    settings = {"MP_CORE_ISA": isa, "MP_CORE_NUM_THREADS": str(threads), "MP_CORE_REPRODUCIBLE": "1"}
    command = [sys.executable, __file__, CHILD]
    run = subprocess.run(command, env=os.environ | settings, stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout.splitlines()


def child() -> None:
    for policy in POLICIES:
        mp.config.set_dtype_policy(policy)
        for name, make in NETWORKS.items():
            mp.random.set_seed(1)
            print(name, policy, digest(fitted(make())))


def fitted(model: "mp.Model") -> "mp.Model":
    """Return a model after three epochs on samples that are the same on every machine."""
    rng = np.random.default_rng(7)
    x = rng.random((1500, 64), np.float32) * 4 - 2  # NumPy's normal deviates differ by C library
    y = x[:, :10].argmax(axis=1).astype(np.int32)
    model.set_weights([rng.uniform(-0.2, 0.2, w.shape) for w in model.get_weights()])
    model.compile("adamw", mp.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, batch_size=128, epochs=3, verbose=0)
    return model


def dense() -> "mp.Model":
    layers = mp.layers
    hidden = [
        layers.Dense(96, "gelu"),
        layers.LayerNormalization(),
        layers.Dropout(0.2, seed=3),
        layers.Dense(48, "silu"),
    ]
    return mp.Sequential([mp.Input((64,)), *hidden, layers.Dense(10, dtype="float32")])


def convolutional() -> "mp.Model":
    layers = mp.layers
    hidden = [layers.Conv2D(8, 3, activation="relu"), layers.MaxPooling2D(2), layers.Flatten()]
    return mp.Sequential([mp.Input((64,)), layers.Reshape((8, 8, 1)), *hidden, layers.Dense(10, dtype="float32")])


NETWORKS = {"dense": dense, "convolutional": convolutional}


def digest(model: "mp.Model") -> str:
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()


if __name__ == "__main__":
    if sys.argv[1:] == [CHILD]:
        child()
    else:
        sys.exit(main())
