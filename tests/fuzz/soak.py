"""Soak: ``python -m fuzz.soak [--seconds N] [--seed N]``, in tests/, or ``make soak``: an hour by default.

Activities follow each other in random order, by one to three threads at once, some in the child of a fork. Each gives
the bits that it gave first. Memory, descriptors and threads must not grow: those of the last quarter of the time are
compared with those of the second one. The exit status is 1 if a result differs or something grows.
"""

import argparse
import itertools
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import numpy as np
import tiny_bert
from oracles import digest

import mp_core as mp
from mp_core import layers
from mp_core.checkpoint import convert, open_tensors, save_tensors
from mp_core.interop.keras import load_keras
from mp_core.models import BertEncoder

GROWTH, SLACK = 1.01, 1 << 20  # of resident memory: 1 % and a MiB
WARM = 600  # seconds from which growth is judged: until the allocator has its arenas and caches are full, memory grows
TEXTS = ["a b c", "d", "a b c d e f g h", "h g f e", ""]


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def activities(folder):
    """Return name -> what is done, which returns arrays: the same ones whenever it is called."""
    rng = np.random.default_rng(0)
    x, w, q = normal(rng, 60, 130), normal(rng, 130, 70), normal(rng, 2, 33, 2, 16)
    codes, numbers = mp.pack(mp.quantize(w, axis=1)), itertools.count()
    encoder = BertEncoder.from_folder(tiny_bert.write(folder / "model"))
    plan = mp.compile(lambda x: mp.softmax(mp.matmul(mp.gelu(x), w)), x)
    save_tensors(folder / "source", {"w": w, "x": x}, policy="float32")
    first = mp.Sequential([mp.Input((130,)), layers.Dense(8, activation="relu"), layers.Dense(1)])
    weights = first.get_weights()

    def converted():
        target = folder / f"out{next(numbers)}"
        convert(folder / "source", target, "int8")
        found = [mp.dequantize(x) for x in open_tensors(target).values()]
        target.unlink()
        return found

    def fitted():
        model = mp.Sequential([mp.Input((130,)), layers.Dense(8, activation="relu"), layers.Dense(1)])
        model.set_weights(weights)
        model.compile(optimizer="adam", loss="mse")
        model.fit(x, x[:, :1], epochs=2, batch_size=20, shuffle=False, verbose=0)
        path = folder / f"model{next(numbers)}.keras"
        model.save(path)
        found = load_keras(path).get_weights()
        path.unlink()
        return found

    return {
        "products": lambda: [mp.matmul(x, w), mp.matmul(mp.cast(x, "bfloat16"), mp.cast(w, "bfloat16"))],
        "dynamic products": lambda: [mp.dynamic_matmul(x, codes)],
        "attention": lambda: [mp.dot_product_attention(q, q, q)],
        "rows": lambda: [mp.layer_norm(x), mp.softmax(x, axis=0), mp.sum(x, 0)],
        "replay": lambda: [plan(x)],
        "recording": lambda: [mp.compile(lambda x: mp.relu(mp.matmul(x, w)), x)(x)],
        "encode": lambda: [encoder.encode(TEXTS)],
        "convert": converted,
        "fit and save": fitted,
    }


def used():
    """Return resident bytes, open descriptors and threads of this process."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, len(os.listdir("/proc/self/fd")), threading.active_count()


def in_child(function, expected):
    """Return whether the child of a fork gets the same bits."""
    child = os.fork()
    if child == 0:
        os._exit(digest(function()) != expected)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def step(rng, chosen, expected, wrong):
    """Do one activity, by several threads at once or in a child; note the name of one whose bits differ."""
    name = str(rng.choice(list(chosen)))
    threads = int(rng.integers(1, 4))

    def run():
        with mp.config.num_threads(threads):
            if digest(chosen[name]()) != expected[name]:
                wrong.append(f"{name}, by {threads} threads")

    if rng.random() < 0.1 and not in_child(chosen[name], expected[name]):
        wrong.append(f"{name}, in the child of a fork")
    others = [threading.Thread(target=run) for _ in range(int(rng.integers(0, 3)))]
    for thread in others:
        thread.start()
    run()
    for thread in others:
        thread.join()


def grown(samples):
    """Return what has grown from the second quarter of the samples to the last one, as text."""
    quarter = len(samples) // 4
    before, after = ([median(column) for column in zip(*part, strict=True)] for part in
                     (samples[quarter : 2 * quarter], samples[-quarter:]))  # fmt: skip
    found = [] if after[0] <= before[0] * GROWTH + SLACK else [f"memory from {before[0]} to {after[0]} bytes"]
    names = ("descriptors", "threads")
    return found + [f"{what} from {a} to {b}" for what, a, b in zip(names, before[1:], after[1:], strict=True) if b > a]


def main():
    parser = argparse.ArgumentParser(prog="soak", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, samples, wrong = np.random.default_rng(options.seed), [], []
    with tempfile.TemporaryDirectory() as folder:
        chosen = activities(Path(folder))
        expected = {name: digest(function()) for name, function in chosen.items()}
        end = time.monotonic() + options.seconds
        while not samples or (time.monotonic() < end and not wrong):
            step(rng, chosen, expected, wrong)
            samples.append(used())
    found = wrong + (grown(samples) if options.seconds >= WARM else [])
    print(f"seed {options.seed}: {len(samples)} activities, {samples[-1][0] >> 20} MiB, {samples[-1][1]} descriptors")
    print(*(found or ["every result had its bits" + ", and nothing grew" * (options.seconds >= WARM)]), sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
