"""Hammer: ``python -m fuzz.hammer [--threads N] [--seconds N] [--seed N]`` in tests/: many threads call everything.

Each thread calls all public operations and one plan in its own order, on shared operands, alone or with a team. Every
result must have the bits that one caller got before; else the exit status is 1. It is most useful in a free-threaded
interpreter, where ``.ci/threads`` runs it, and needs only NumPy and ml_dtypes.
"""

import argparse
import functools
import sys
import threading
import time
from collections import Counter

import numpy as np
from oracles import digest

import mp_core as mp
from fuzz.operations import OPERATIONS

CASES = 3  # of each operation


def calls(seed):
    """Return name -> a function that returns arrays: the same ones whenever it is called."""
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(lengths).astype(np.float32) for lengths in ((60, 130), (130, 70)))
    codes, packed, kernel = mp.quantize(x, axis=0), mp.pack(mp.quantize(w, axis=1)), mp.AutoCastVariable(w)
    plan = mp.compile(lambda x: mp.softmax(mp.matmul(mp.gelu(x), packed)), x)
    found = {
        "plan": lambda: [plan(x)],
        "recording": lambda: [mp.compile(lambda x: mp.relu(mp.matmul(x, w)), x)(x)],
        "gradient": lambda: mp.grad(lambda x: mp.mean(mp.tanh(mp.matmul(x, kernel))), [kernel])(x),
        "pack": lambda: [mp.pack(w, dtype="bfloat16").unpack()],
        "quantize": lambda: [mp.quantize(x, axis=1).values],
        "dequantize": lambda: [mp.dequantize(codes)],
        "einsum": lambda: [mp.einsum("ab,bc->ca", x, w)],
    }
    for name, draw in OPERATIONS.items():
        found |= {f"{name} {number}": functools.partial(_result, draw(rng)) for number in range(CASES)}
    return found


def _result(case):
    """Return what a case gives, with zeros for NaN, whose payload is no part of the contract."""
    result = case.function(*case.arrays, **case.options)
    return [np.where(result == result, result, np.zeros((), result.dtype))]


def hammered(functions, threads, seconds):
    """Call the functions by so many threads for so long; return how many calls there were, and what had other bits."""
    expected = {name: digest(function()) for name, function in functions.items()}
    end, made, wrong = time.monotonic() + seconds, [0] * threads, Counter()

    def caller(index):
        rng = np.random.default_rng(index)
        with np.errstate(all="ignore"):
            while not made[index] or time.monotonic() < end:
                name, team = str(rng.choice(list(functions))), int(rng.integers(1, 4))
                with mp.config.num_threads(team):
                    found = digest(functions[name]())
                made[index] += 1
                if found != expected[name]:
                    wrong[f"{name}, by thread {index} on a team of {team}"] += 1

    callers = [threading.Thread(target=caller, args=(index,)) for index in range(threads)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    return sum(made), wrong


def main():
    parser = argparse.ArgumentParser(prog="hammer", description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with np.errstate(all="ignore"):
        functions = calls(options.seed)
        made, wrong = hammered(functions, options.threads, options.seconds)
    print(f"seed {options.seed}: {options.threads} threads made {made} calls of {len(functions)} functions")
    print(*(f"other bits, {count} times: {name}" for name, count in wrong.items()), sep="\n")
    print("some results had other bits" if wrong else "every result had its bits")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
