"""Measure how long an interrupt waits: ``python asv_bench/studies/interrupts.py [NAME ...] [--times N]``.

A process repeats an action. SIGINT arrives after a random time, and the process reports when it catches
KeyboardInterrupt. The script prints the median and the longest delay, and the time of the action itself.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

import mp_core as mp
from mp_core import layers
from mp_core.checkpoint import convert, save_tensors
from mp_core.cli import demo
from mp_core.models import BertEncoder

TEXTS = [f"A man is eating {number} pieces of food." for number in range(64)]


def normal(*shape: int) -> np.ndarray:
    """Return random numbers."""
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def product(size: int) -> Callable[[], object]:
    """Return one product of square matrices: a single call of C."""
    a, b, out = normal(size, size), normal(size, size), normal(size, size)
    return lambda: mp.matmul(a, b, out=out)


def casting() -> Callable[[], object]:
    """Return a cast of 2**28 elements."""
    x = np.ones(2**28, np.float32)
    out = mp.cast(x, "bfloat16")
    return lambda: mp.cast(x, "bfloat16", out=out)


def rows() -> Callable[[], object]:
    """Return the softmax of 16,384 rows."""
    x = normal(16384, 8192)
    out = np.empty_like(x)
    return lambda: mp.softmax(x, out=out)


def attending() -> Callable[[], object]:
    """Return the attention of 4,096 tokens, with 16 heads."""
    q = normal(1, 4096, 16, 64)
    return lambda: mp.dot_product_attention(q, q, q)


def converting(folder: Path) -> Callable[[], object]:
    """Return a conversion of 256 MB to int4."""
    save_tensors(folder / "in", {f"w{i}": normal(4096, 1024) for i in range(16)}, policy="float32")
    return lambda: convert(folder / "in", folder / "out", "int4/64", force=True)


def fitting() -> Callable[[], object]:
    """Return an epoch of a perceptron in batches of 256."""
    model = mp.Sequential([mp.Input((784,)), layers.Dense(1024, activation="relu"), layers.Dense(10)])
    model.compile(optimizer="adam", loss="mse")
    x, y = normal(4096, 784), normal(4096, 10)
    return lambda: model.fit(x, y, batch_size=256, verbose=0)


def encoder() -> BertEncoder:
    """Return all-MiniLM-L6-v2, of the package of the demonstration."""
    return BertEncoder.from_folder(demo.model_folder())


def calibrating() -> Callable[[], object]:
    """Return a calibration of the encoder on 64 texts."""
    model = encoder()
    return lambda: mp.calibrate(model, TEXTS, "int8")


def encoding() -> Callable[[], object]:
    """Return a call of the encoder with 2,048 texts."""
    model = encoder()
    return lambda: model.encode(TEXTS * 32)


ACTIONS: dict[str, Callable[[Path], Callable[[], object]]] = {
    "product 1024": lambda folder: product(1024),
    "product 4096": lambda folder: product(4096),
    "product 8192": lambda folder: product(8192),
    "cast": lambda folder: casting(),
    "softmax": lambda folder: rows(),
    "attention": lambda folder: attending(),
    "convert": converting,
    "calibrate": lambda folder: calibrating(),
    "fit": lambda folder: fitting(),
    "encode": lambda folder: encoding(),
}


def repeat(name: str) -> None:
    """Repeat an action until an interrupt comes, again and again; print its time, and when each one was caught."""
    with tempfile.TemporaryDirectory() as folder:
        act = ACTIONS[name](Path(folder))
        act()
        start = time.monotonic()
        act()
        print(time.monotonic() - start, flush=True)
        while True:
            try:
                while True:
                    act()
            except KeyboardInterrupt:
                print(time.monotonic(), flush=True)


def waits(name: str, times: int) -> tuple[float, list[float]]:
    """Return the seconds of an action, and the delay of each interrupt."""
    command, draw = [sys.executable, __file__, "--repeat", name], random.Random(0)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seconds, found = float(process.stdout.readline()), []
        for _ in range(times):
            time.sleep(0.05 + draw.uniform(0, min(max(seconds, 0.1), 5)))
            sent = time.monotonic()
            process.send_signal(signal.SIGINT)
            found.append(float(process.stdout.readline()) - sent)
        process.kill()
    return seconds, found


def main() -> None:
    """Print a line for each action."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--repeat", help=argparse.SUPPRESS)  # in the child process of one action
    options = parser.parse_args()
    if options.repeat:
        repeat(options.repeat)
    print(f"{'action':14} {'seconds':>8} {'median ms':>10} {'longest ms':>11}")
    for name in options.names or ACTIONS:
        seconds, found = waits(name, options.times)
        print(f"{name:14} {seconds:8.3f} {median(found) * 1e3:10.1f} {max(found) * 1e3:11.1f}", flush=True)


if __name__ == "__main__":
    main()
