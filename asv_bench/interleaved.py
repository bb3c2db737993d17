"""Contenders take turns: what `peers.py` measures with, whatever the subject.

Round by round every contender of a cell is timed in turn, so that a ratio is of samples milliseconds apart and what
the machine does meanwhile cancels out. Reported are the median of these ratios and each contender's best rate.
"""

import time
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from timeit import Timer

import ml_dtypes
import numkong
import numpy as np
import torch

SAMPLE = 200e-6  # seconds: as many calls as take that long are one sample
BUDGET = 1.0  # seconds per cell, beyond MIN_ROUNDS
MIN_ROUNDS, MAX_ROUNDS = 15, 301


@dataclass
class Cell:
    """One row of a table: ways to do the same `work` (elements, operations a call) on the same numbers."""

    key: dict[str, object]  # what identifies the row
    work: float
    contenders: dict[str, Timer]  # ours first
    ratios: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]  # column: the best of these over the best of those
    limits: dict[str, tuple[Timer, float]]  # a call takes at least each of these: so many times what the timer takes
    wrong: set[str] = field(default_factory=set)


def measure(timers: dict[str, Timer]) -> dict[str, list[float]]:
    """Return seconds per call of each timer, one entry a round."""
    calls = {}
    for name, timer in timers.items():
        calls[name] = 1
        while (taken := timer.timeit(calls[name])) < SAMPLE:
            calls[name] = max(2 * calls[name], int(1.2 * SAMPLE / taken * calls[name]))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + BUDGET
    for done in range(MAX_ROUNDS):
        if done >= MIN_ROUNDS and time.perf_counter() > end:
            break
        for name, timer in timers.items():
            timer.timeit(1)  # the caches as this contender leaves them, not the one before
            seconds[name].append(timer.timeit(calls[name]) / calls[name])
    return seconds


def compare(cell: Cell) -> dict[str, object]:
    """Measure a cell and return its row, ready for JSON."""
    seconds = measure(cell.contenders | {name: timer for name, (timer, _) in cell.limits.items()})
    taken = {name: seconds[name] for name in cell.contenders}
    least = {name: [times * each for each in seconds[name]] for name, (_, times) in cell.limits.items()}

    def ratios(ours: tuple[str, ...], theirs: tuple[str, ...]) -> dict[str, float]:
        best = min(ours, key=lambda name: median(taken[name]))
        return {name: over(taken[name], taken[best]) for name in theirs}

    return {
        **cell.key,
        "rounds": len(next(iter(taken.values()))),
        "seconds": {name: min(each) for name, each in taken.items()},
        "rate": {name: cell.work / min(each) / 1e9 for name, each in taken.items()},
        "ratios": {column: ratios(*sides) for column, sides in cell.ratios.items()},
        "least": {name: min(each) for name, each in least.items()},
        "share_of_limit": over(map(max, zip(*least.values(), strict=True)), next(iter(taken.values()))),
        "wrong": sorted(cell.wrong),
    }


def over(theirs, ours) -> float:
    """Return how many times as long they take, the median over the rounds."""
    return median(their / our for their, our in zip(theirs, ours, strict=True))


def show_ratio(ratios: dict[str, float]) -> str:
    """Return the contender to whom the ratio is lowest and that ratio, in 16 characters."""
    best = min(ratios, key=lambda name: ratios[name])
    return f"{best:8}{ratios[best]:6.2f}{'' if ratios[best] >= 1 else ' <':2}"


def show_rates(row: dict) -> str:
    return "".join(f"{rate:8.2f}{'*' if name in row['wrong'] else ' '}" for name, rate in row["rate"].items())


def dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def aligned(size: int, dtype: np.dtype) -> np.ndarray:
    """Return uninitialized memory at a cache line's start, as every contender likes it."""
    raw = np.empty(size * dtype.itemsize + 64, np.uint8)
    return raw[-raw.ctypes.data % 64 :][: size * dtype.itemsize].view(dtype)


def as_torch(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x.view(f"u{x.itemsize}")).view(getattr(torch, x.dtype.name))


def as_numkong(x: np.ndarray) -> numkong.Tensor:
    """Return a view: NumKong is 30 ns a call faster on its own tensors, and reads no 8-bit floats from NumPy."""
    return numkong.from_pointer(x.ctypes.data, x.shape, x.dtype.name.removesuffix("fn"), owner=x)


CACHED, MEMORY = 1 << 26, 1 << 30  # bytes: what moves more than CACHED is compared with a copy that moves MEMORY


def copy_limit(nbytes: int) -> dict[str, tuple[Timer, float]]:
    """Return, as limits of a cell, a plain copy that moves `nbytes`, half of them read and half written."""
    copied = nbytes if nbytes <= CACHED else MEMORY
    return {"copy": (plain_copy(copied), nbytes / copied)}


@cache
def plain_copy(nbytes: int) -> Timer:
    """Return what moves `nbytes` by memcpy."""
    x, out = (aligned(nbytes // 2, np.dtype(np.uint8)) for _ in range(2))
    x.fill(1)  # memory never written to is one page of zeros
    return Timer("out[all] = x", globals={"x": memoryview(x), "out": memoryview(out), "all": slice(None)})
