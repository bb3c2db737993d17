"""Casts between float32 and the narrow formats. All contenders read and write the same two arrays."""

import argparse
from collections.abc import Iterator
from statistics import median
from timeit import Timer

import numkong
import numpy as np
from interleaved import Cell, aligned, as_numkong, as_torch, binary, copy_limit, dtype, show_rates, show_ratio
from shapes import CAST_PAIRS, CAST_SIZES

import mp_core as mp

OURS, PEERS = "mp_core", ("NumPy", "torch", "NumKong")

HEADING = (
    "Gelem/s (* wrong bits); ratio: mp_core to the best peer; copy: mp_core's share of its bandwidth, in GB/s\n"
    f"{'':30}{''.join(f'{name:>8} ' for name in (OURS, *PEERS))} {'best':13}ratio    copy    GB/s"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", nargs="+", type=int, default=CAST_SIZES, metavar="ELEMENTS")
    parser.add_argument("--pairs", nargs="+", choices=CAST_PAIRS, default=CAST_PAIRS, metavar="FROM:TO")


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for size in options.sizes:
        for pair in options.pairs:
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
            key = {"shape": str(size), "dtype": pair, "nbytes": nbytes}
            ratios = {"best": ((OURS,), PEERS)}
            found = wrong(contenders, out, x.astype(out.dtype))
            yield Cell(key, size, contenders, ratios, copy_limit(nbytes), found)


def numbers(name: str, size: int) -> np.ndarray:
    """Normal deviates times powers of two, within the range of every format; beyond 1 Mi elements they repeat."""
    rng = np.random.default_rng(20261121)
    few = rng.standard_normal(min(size, 1 << 20), np.float32)
    few *= np.exp2(rng.integers(-3, 4, few.size)).astype(np.float32)
    x = aligned(size, dtype(name))
    x[:] = np.resize(few.astype(x.dtype), size)
    return x


def wrong(contenders: dict[str, Timer], out: np.ndarray, expected: np.ndarray) -> set[str]:
    """Return the contenders that do not write the expected bytes into `out`."""
    found = set()
    for name, contender in contenders.items():
        out.view(np.uint8).fill(0xA5)
        contender.timeit(1)
        if not np.array_equal(out.view(np.uint8), expected.view(np.uint8)):
            found.add(name)
    return found


def unit(dtype: str) -> str:
    return "Gelem/s"


def line(row: dict) -> str:
    rates, ratio = show_rates(row, (OURS, *PEERS)), show_ratio(row["ratios"]["best"])
    return (
        f"{binary(int(row['shape'])):>6}  {row['dtype']:22}{rates} {ratio}"
        f"{row['share_of_limit']:6.0%}{row['nbytes'] / row['least']['copy'] / 1e9:8.1f}"
    )


def summary(rows: list[dict]) -> str:
    """Return the cost of a call with hardly any work."""
    small = [row for row in rows if row["shape"] == "64"]
    taken = {name: median(row["seconds"][name] for row in small) for name in (OURS, *PEERS)} if small else {}
    return "64 elements, us a call: " + ", ".join(f"{name} {1e6 * each:.2f}" for name, each in taken.items())
