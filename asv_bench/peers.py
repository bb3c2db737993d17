"""mp_core beside the best peers, all in one interleaved run on one thread: `make bench-peers`.

A subject is a function that yields cells; a cell is a few ways to do the same work on the same memory. Round by round
every contender of a cell is timed in turn, so that a ratio is of samples milliseconds apart and what the machine does
meanwhile cancels out; printed are the median of these ratios and each contender's best rate.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from statistics import median
from timeit import Timer

import ml_dtypes
import numkong
import numpy as np
import torch

import mp_core as mp

NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
PAIRS = [pair for name in NARROW for pair in (f"float32:{name}", f"{name}:float32")]
SIZES = (64, 1 << 12, 1 << 20, 1 << 25)
OURS, PEERS, COPY = "mp_core", ("NumPy", "torch", "NumKong"), "copy"

SAMPLE = 200e-6  # seconds: as many calls as take that long are one sample
BUDGET = 1.0  # seconds per cell, beyond MIN_ROUNDS
MIN_ROUNDS, MAX_ROUNDS = 15, 301
CACHED, MEMORY = 1 << 26, 1 << 30  # bytes: what moves more than CACHED is compared with a copy that moves MEMORY


@dataclass
class Cell:
    """One row of the table: `contenders` do `work` units (elements, operations) a call, and have to move `nbytes`."""

    size: int
    label: str
    work: int
    nbytes: int
    contenders: dict[str, Timer]
    wrong: set[str] = field(default_factory=set)


def casts(sizes: list[int], pairs: list[str]) -> Iterator[Cell]:
    """Casts between float32 and the narrow formats. Everyone reads and writes the same two arrays."""
    for size in sizes:
        for pair in pairs:
            source, target = pair.split(":")
            x, out = numbers(source, size), aligned(size, dtype(target))
            nbytes = x.nbytes + out.nbytes
            contenders = {
                OURS: Timer("cast(x, name, out=out)", globals={"cast": mp.cast, "x": x, "name": target, "out": out}),
                "NumPy": Timer("out[...] = x", globals={"x": x, "out": out}),
                "torch": Timer("copy(x)", globals={"x": as_torch(x), "copy": as_torch(out).copy_}),
                "NumKong": Timer(
                    "astype(x, name, out=out)",
                    globals={
                        "astype": numkong.astype,
                        "x": as_numkong(x),
                        "name": target.removesuffix("fn"),
                        "out": as_numkong(out),
                    },
                ),
            }
            yield Cell(size, pair, size, nbytes, contenders, wrong(contenders, out, x.astype(out.dtype)))


SUBJECTS = {"casts": casts}


def dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def numbers(name: str, size: int) -> np.ndarray:
    """Normal deviates times powers of two, within the range of every format; beyond 1 Mi elements they repeat."""
    rng = np.random.default_rng(20261121)
    few = rng.standard_normal(min(size, 1 << 20), np.float32)
    few *= np.exp2(rng.integers(-3, 4, few.size)).astype(np.float32)
    x = aligned(size, dtype(name))
    x[:] = np.resize(few.astype(x.dtype), size)
    return x


def aligned(size: int, dtype: np.dtype) -> np.ndarray:
    """Return uninitialized memory at a cache line's start, as every contender likes it."""
    raw = np.empty(size * dtype.itemsize + 64, np.uint8)
    return raw[-raw.ctypes.data % 64 :][: size * dtype.itemsize].view(dtype)


def as_torch(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x.view(f"u{x.itemsize}")).view(getattr(torch, x.dtype.name))


def as_numkong(x: np.ndarray) -> numkong.Tensor:
    """Return a view: NumKong is 30 ns a call faster on its own tensors, and reads no 8-bit floats from NumPy."""
    return numkong.from_pointer(x.ctypes.data, x.shape, x.dtype.name.removesuffix("fn"), owner=x)


def wrong(contenders: dict[str, Timer], out: np.ndarray, expected: np.ndarray) -> set[str]:
    """Return those who, called once, do not leave the expected bytes in `out`."""
    found = set()
    for name in (OURS, *PEERS):
        out.view(np.uint8).fill(0xA5)
        contenders[name].timeit(1)
        if not np.array_equal(out.view(np.uint8), expected.view(np.uint8)):
            found.add(name)
    return found


@cache
def plain_copy(nbytes: int) -> Timer:
    """Return what moves `nbytes`, half of them read and half written, by memcpy."""
    x, out = (aligned(nbytes // 2, np.dtype(np.uint8)) for _ in range(2))
    x.fill(1)  # memory never written to is one page of zeros
    return Timer("out[all] = x", globals={"x": memoryview(x), "out": memoryview(out), "all": slice(None)})


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
    copied = cell.nbytes if cell.nbytes <= CACHED else MEMORY
    seconds = measure(cell.contenders | {COPY: plain_copy(copied)})

    def ratio(name: str) -> float:
        return median(other / ours for other, ours in zip(seconds[name], seconds[OURS], strict=True))

    ratios = {name: ratio(name) for name in PEERS}
    return {
        "size": cell.size,
        "label": cell.label,
        "rounds": len(seconds[OURS]),
        "seconds": {name: min(taken) for name, taken in seconds.items()},
        "rate": {name: cell.work / min(seconds[name]) / 1e9 for name in (OURS, *PEERS)},
        "copy_bandwidth": copied / min(seconds[COPY]) / 1e9,
        "ratios": ratios,
        "best": min(ratios, key=lambda name: ratios[name]),
        "share_of_copy": ratio(COPY) * cell.nbytes / copied,
        "wrong": sorted(cell.wrong),
    }


def binary(size: int) -> str:
    for shift, unit in ((20, " Mi"), (10, " Ki")):
        if size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)


def show(row: dict) -> None:
    rates = "".join(f"{rate:8.2f}{'*' if name in row['wrong'] else ' '}" for name, rate in row["rate"].items())
    ratio = row["ratios"][row["best"]]
    print(
        f"{binary(row['size']):>6}  {row['label']:22}{rates} {row['best']:8}{ratio:6.2f}{'' if ratio >= 1 else ' <':2}"
        f"{row['share_of_copy']:6.0%}{row['copy_bandwidth']:8.1f}",
        flush=True,
    )


def show_overhead(rows: list[dict]) -> None:
    """Print what a call costs where there is hardly any work."""
    taken = {name: median(row["seconds"][name] for row in rows if row["size"] == 64) for name in (OURS, *PEERS)}
    print("64 elements, us a call:", ", ".join(f"{name} {1e6 * seconds:.2f}" for name, seconds in taken.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, metavar="ELEMENTS")
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=PAIRS, metavar="FROM:TO")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    mp.config.set_num_threads(1)
    torch.set_num_threads(1)
    about = {name: version(name) for name in ("mp_core", "numpy", "ml_dtypes", "torch", "numkong")}
    about |= {"isa": mp.config.isa(), "load average": f"{os.getloadavg()[0]:.2f}"}
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print("Gelem/s (* wrong bits); ratio: mp_core to the best peer; copy: mp_core's share of its bandwidth, in GB/s")
    print(f"{'':30}{''.join(f'{name:>8} ' for name in (OURS, *PEERS))} {'best':9}ratio    copy    GB/s")
    rows = []
    with torch.inference_mode():
        for cell in SUBJECTS[options.subject](options.sizes, options.pairs):
            rows.append(compare(cell))
            show(rows[-1])
    if 64 in options.sizes:
        show_overhead(rows)
    if options.json:
        options.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
