"""Two builds of mp_core beside each other: `python builds.py OLD NEW`, two interpreters that import one each.

Each build runs in a process of its own, which times one cell whenever it is asked. Round by round both are asked in
turn, so that a ratio is of samples some milliseconds apart. Where a process has its arrays decides up to 20 % of a cell
that fills the second-level cache, so both are started several times. Printed per cell: the new build's best time and
the median over the starts of the median over the rounds of old / new (above 1: the new build is faster); at the end
the geometric mean and the slowest cells.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import cycle
from statistics import geometric_mean, median
from timeit import Timer

SAMPLE = 3e-3  # seconds that one build is timed for, per cell and round


def cells() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the name of each cell and what it calls: products, casts, quantization and rows as users run them."""
    import numpy as np

    import mp_core as mp

    rng = np.random.default_rng(0)
    offsets = cycle(range(0, 4096, 832))

    def placed(x: np.ndarray) -> np.ndarray:
        """Return a copy at the same place in a page in every process: loads 4 KiB from a store wait for it."""
        raw = np.empty(x.nbytes + 8192, np.uint8)
        first = -raw.ctypes.data % 4096 + next(offsets)
        copy = raw[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
        copy[...] = x
        return copy

    def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
        x = rng.standard_normal(shape, np.float32)
        return placed(np.rint(x * 30).astype(np.int8) if dtype == "int8" else mp.cast(x, dtype))

    shapes = [(1, 64, 64), (1, 1024, 1024), (1, 4096, 4096), (16, 1024, 1024), (128, 768, 3072), (512, 512, 512)]
    for dtype in ("float32", "float16", "bfloat16", "float8_e4m3fn", "int8"):
        for m, n, k in shapes:
            a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype)
            for form, right in (("packed", mp.pack(b)), ("array", b)):
                out = placed(mp.matmul(a, right))
                yield f"matmul {dtype} {m}x{n}x{k} {form}", lambda a=a, b=right, out=out: mp.matmul(a, b, out=out)
    for m, n, k in shapes[3:5]:
        x, w = normal(m, k), mp.quantize(normal(k, n), axis=1)
        q, out = mp.pack(w), placed(np.empty((m, n), np.float32))
        yield f"dynamic int8 {m}x{n}x{k}", lambda x=x, q=q, out=out: mp.dynamic_matmul(x, q, out=out)
    for size in (64, 1 << 12, 1 << 20):
        x = normal(size)
        for dtype in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
            narrow, wide = placed(mp.cast(x, dtype)), placed(np.empty(size, np.float32))
            yield f"cast {size} to {dtype}", lambda x=x, d=dtype, o=narrow: mp.cast(x, d, out=o)
            yield f"cast {size} from {dtype}", lambda x=narrow, o=wide: mp.cast(x, "float32", out=o)
    for rows in (4, 1024):
        x = normal(rows, 1024)
        for name, way in {
            "tensor": {},
            "row": {"axis": 0},
            "column": {"axis": 1},
            "group": {"axis": 0, "group_size": 64},
            "uint8": {"dtype": "uint8", "symmetric": False},
            "int4": {"axis": 0, "dtype": "int4"},
        }.items():
            q, back = mp.quantize(x, **way), placed(x)
            yield f"quantize {rows}x1024 {name}", lambda x=x, q=q, way=way: mp.quantize(x, **way, out=q)
            yield f"dequantize {rows}x1024 {name}", lambda q=q, o=back: mp.dequantize(q, out=o)
    for dtype in ("float32", "bfloat16"):
        x = normal(512, 384, dtype=dtype)
        gamma, out = np.ones(384, np.float32), placed(x)
        yield f"softmax 512x384 {dtype}", lambda x=x, o=out: mp.softmax(x, out=o)
        yield f"layer_norm 512x384 {dtype}", lambda x=x, g=gamma, o=out: mp.layer_norm(x, g, g, out=o)
        yield f"gelu 512x384 {dtype}", lambda x=x, o=out: mp.gelu(x, out=o)


def work() -> None:
    """Time the cell whose name is read from each line, and write the seconds of a call."""
    import mp_core as mp

    mp.config.set_num_threads(1)
    timers = {name: Timer(call) for name, call in cells()}
    number = {}
    for name, timer in timers.items():
        timer.timeit(1)
        once = timer.timeit(1)
        number[name] = max(1, math.ceil(SAMPLE / max(once, 1e-7)))
    print(json.dumps(list(timers)), flush=True)
    for line in sys.stdin:
        name = line.rstrip("\n")
        print(timers[name].timeit(number[name]) / number[name], flush=True)


def start(python: str) -> tuple[subprocess.Popen, list[str]]:
    """Start a build's process; return it and the names of its cells."""
    process = subprocess.Popen(
        [python, __file__, "--work"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    return process, json.loads(process.stdout.readline())


def seconds(process: subprocess.Popen, name: str) -> float:
    process.stdin.write(name + "\n")
    return float(process.stdout.readline())


def compare(old: str, new: str, rounds: int, part: str) -> dict[str, tuple[float, float]]:
    """Start both builds and return the median of old / new and the new build's best time of each cell."""
    (before, names), (after, _) = start(old), start(new)
    found = {}
    for name in [name for name in names if part in name]:
        pairs = []
        for index in range(rounds):
            order = (before, after) if index % 2 else (after, before)
            taken = {process: seconds(process, name) for process in order}
            pairs.append((taken[before], taken[after]))
        found[name] = median(ours / theirs for ours, theirs in pairs), min(theirs for _, theirs in pairs)
    for process in (before, after):
        process.communicate()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", help="interpreter that imports the old build")
    parser.add_argument("new", help="interpreter that imports the new build")
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=9, help="of each start")
    parser.add_argument("--cells", default="", help="only those whose names hold this")
    options = parser.parse_args()
    starts = [compare(options.old, options.new, options.rounds, options.cells) for _ in range(options.starts)]
    ratios = {}
    for name in starts[0]:
        each, times = zip(*(found[name] for found in starts), strict=True)
        ratios[name] = median(each)
        spread = f"{min(each):.2f} to {max(each):.2f}"
        print(f"{name:44}{min(times) * 1e6:12.2f} us{ratios[name]:8.3f}   {spread}")
    print(f"geometric mean of {len(ratios)} ratios: {geometric_mean(ratios.values()):.3f}")
    for name in sorted(ratios, key=ratios.get)[:10]:
        print(f"  {ratios[name]:.3f}  {name}")


if __name__ == "__main__":
    work() if sys.argv[1:] == ["--work"] else main()
