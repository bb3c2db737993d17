"""Soak: ``python -m fuzz.soak [--seconds N] [--seed N]``, in tests/, or ``make soak``: an hour by default.

Activities follow each other in random order, on one to three threads at once, some in the child of a fork, some
interrupted. Each must give the same bits every time. Memory, descriptors and threads must not grow: after WARM
activities have filled all caches, the first third of the others is compared with the last third. Progress is counted in
activities, because other processes may take most of the time; with fewer than 2 WARM activities, the report says that
growth was not checked. The exit status is 1 if a result differs or something grows. ``python -m fuzz.growth`` checks
each activity alone.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from array import array
from pathlib import Path

import numpy as np
from oracles import digest

import mp_core as mp
from fuzz.activities import UNINTERRUPTED, activities, interrupted
from fuzz.held import Held, held, opened, return_pages

GROWTH = 1.01
SLACK = {"malloc": 1 << 20, "resident": 4 << 20}  # bytes more: pages that malloc cannot return come and go by 4 MB
WARM = 3000  # activities
EVERY = 1.0  # seconds between samples


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
    """Return what has grown, as text, of rows of a number of activities and what was held after so many."""
    counts, end = samples[:, 0], samples[-1, 0]
    third = (end - WARM) / 3
    before, after = (
        np.median(samples[(low <= counts) & (counts <= low + third), 1:], axis=0) for low in (WARM, end - third)
    )
    found = []
    for name, old, new in zip(Held._fields, before, after, strict=True):
        if new > old * GROWTH + SLACK.get(name, 0):
            found.append(f"{name} from {old:.0f} to {new:.0f}")
    return found


def soak(rng, chosen, seconds):
    """Do activities for so long; return how many, the samples, and what gave other bits."""
    expected = {name: digest(function()) for name, function in chosen.items()}
    samples = array("q", (0, *held()))  # a tuple of numbers for each sample would itself be what grows
    wrong, count, now = [], 0, time.monotonic()
    sampled, end = now, now + seconds
    while not count or (now < end and not wrong):
        step(rng, chosen, expected, wrong)
        count, now = count + 1, time.monotonic()
        if now >= sampled + EVERY:
            samples.extend((count, *held()))
            sampled = time.monotonic()
    return count, np.reshape(samples, (-1, 1 + len(Held._fields))), wrong


def main():
    parser = argparse.ArgumentParser(prog="soak", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    return_pages()
    with tempfile.TemporaryDirectory() as folder:
        chosen = activities(Path(folder))
        before = opened()
        count, samples, wrong = soak(np.random.default_rng(options.seed), chosen, options.seconds)
        new = opened() - before
    judged = samples[-1, 0] >= 2 * WARM
    found = wrong + (grown(samples) if judged else [])
    print(f"seed {options.seed}: {count} activities of {len(chosen)} kinds; after so many were held:")
    for done, *each in samples[:: max(1, len(samples) // 8)]:
        print(f"{done:8}", *(f"{number} {name}" for name, number in zip(Held._fields, each, strict=True)))
    print(*(f"opened since: {what}" for what in new.elements()), sep="\n")
    growth = "nothing grew" if judged else f"growth was not judged: that takes {2 * WARM} activities"
    print(*(found or [f"every result had its bits, and {growth}"]), sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
