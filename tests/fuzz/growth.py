"""Find leaks of single activities: ``python -m fuzz.growth [NAME ...] [--times N]``, in tests/.

Each activity of the soak is called many times, in five ways: alone, in a new thread each time, by three threads at
once, interrupted, and in the child of a fork. Between rounds of calls, the resources in use are counted
(fuzz/held.py). Each round has twice the calls of the round before: caches grow less and less per call, a leak does not.
The exit status is 1 if the last round leaves a block for each call.
"""

import argparse
import itertools
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import numpy as np

from fuzz.activities import UNINTERRUPTED, activities, interrupted
from fuzz.held import Held, held
from fuzz.soak import in_child

WAYS = {
    "alone": lambda function, rng: function(),
    "in a new thread": lambda function, rng: together(function, 1),
    "by three threads": lambda function, rng: together(function, 3),
    "interrupted": lambda function, rng: interrupted(function, rng.uniform(1e-4, 1e-2)),
    "in a child": lambda function, rng: in_child(function, None),
}


def together(function, count):
    """Call a function in so many new threads at once."""
    threads = [threading.Thread(target=function) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def growth(call, times):
    """Return what grows for each call in two rounds, after one of so many calls that warms up."""
    counts, rounds = [], [times, 2 * times, 4 * times]
    for calls in rounds:
        for _ in range(calls):
            call()
        counts.append(held())
    pairs = zip(itertools.pairwise(counts), rounds[1:], strict=True)
    return [Held(*((b - a) / calls for a, b in zip(*pair, strict=True))) for pair, calls in pairs]


def leaks(rounds):
    """Whether the last round leaves at least a block behind for each call."""
    return rounds[-1].blocks >= 1


def main():
    parser = argparse.ArgumentParser(prog="growth", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    options, found = parser.parse_args(), False
    rng = np.random.default_rng(0)
    names = ("blocks", "bytes of malloc", "resident bytes", "mapped files", "descriptors", "threads")
    print(f"{'activity':18} {'way':18}", *(f"{name:>19}" for name in names), " for each call")
    with tempfile.TemporaryDirectory() as folder:
        chosen = activities(Path(folder))
        for name in options.names or chosen:
            for way in options.ways:
                if way == "interrupted" and name in UNINTERRUPTED:
                    continue
                first, second = rounds = growth(partial(WAYS[way], chosen[name], rng), options.times)
                found |= leaks(rounds)
                columns = [f"{a:9.1f}{b:10.1f}" for a, b in zip(first, second, strict=True)]
                print(f"{name:18} {way:18}", *columns, "leaks" * leaks(rounds), flush=True)
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
