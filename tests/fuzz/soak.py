"""Soak: ``python -m fuzz.soak [--seconds N] [--seed N]``, in tests/, or ``make soak``: an hour by default.

Activities follow each other in random order, by one to three threads at once, some in the child of a fork, some
interrupted. Each gives the bits that it gave first. Memory, descriptors and threads must not grow: those of the last
quarter of the time are compared with those of the second one. The exit status is 1 if a result differs or something
grows. ``python -m fuzz.growth`` tells of each activity alone what it leaves behind.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import numpy as np
from oracles import digest

import mp_core as mp
from fuzz.activities import UNINTERRUPTED, activities, interrupted

GROWTH, SLACK = 1.01, 1 << 20  # of resident memory: 1 % and a MiB
WARM = 2400  # seconds from which growth is judged: memory grew for the first 500 of 900 seconds, then no more (Zen 4)
EVERY = 1.0  # seconds between samples: kept for each activity, they would themselves be what grows


def used():
    """Return resident bytes, open descriptors and threads of this process."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, len(os.listdir("/proc/self/fd")), threading.active_count()


def in_child(function, expected):
    """Return whether the child of a fork gets the same bits."""
    child = os.fork()
    if child == 0:
        failed = True
        try:
            failed = digest(function()) != expected
        finally:
            os._exit(failed)  # whatever was raised: the caller goes on in the parent alone
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
    if rng.random() < 0.1 and name not in UNINTERRUPTED:
        interrupted(chosen[name], rng.uniform(1e-4, 2e-2))
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


def soak(rng, chosen, seconds):
    """Do activities for so long; return how many, the samples, and what gave other bits."""
    expected = {name: digest(function()) for name, function in chosen.items()}
    samples, wrong, count, now = [used()], [], 0, time.monotonic()
    sampled, end = now, now + seconds
    while not count or (now < end and not wrong):
        step(rng, chosen, expected, wrong)
        count, now = count + 1, time.monotonic()
        if now >= sampled + EVERY:
            samples.append(used())
            sampled = now
    return count, samples, wrong


def main():
    parser = argparse.ArgumentParser(prog="soak", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        chosen = activities(Path(folder))
        count, samples, wrong = soak(np.random.default_rng(options.seed), chosen, options.seconds)
    found = wrong + (grown(samples) if options.seconds >= WARM else [])
    megabytes = [f"{resident / 2**20:.1f}" for resident, *_ in samples[:: max(1, len(samples) // 8)]]
    print(f"seed {options.seed}: {count} activities, {samples[-1][1]} descriptors; MiB over time:", *megabytes)
    print(*(found or ["every result had its bits" + ", and nothing grew" * (options.seconds >= WARM)]), sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
