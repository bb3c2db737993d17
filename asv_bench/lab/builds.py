"""Compare the speed of two builds of mp_core: `python builds.py OLD NEW`, each an interpreter or a folder with mp_core.

Each build runs in its own process, which times one cell per request. In each round both are asked in turn, so that
other load of the machine affects both. Both are pinned to the same CPUs, one for each thread, because two cores of a
shared machine differ. The ratio of a cell compares two low quantiles, because undisturbed samples are the fastest. The
addresses of a process' arrays change the time of a cell that fills the L2 cache by up to 20 %. So both builds are
started several times, and the median over the starts counts. Above 1 the new build is faster.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean, median
from timeit import Timer
from typing import NamedTuple

import shapes

SAMPLE = 4e-4  # seconds that one build is timed for, per cell and round
QUANTILE = 8  # the quantile that counts: one sample in so many is faster
WEIGHTS = ("bfloat16@int8", "bfloat16@int4", "bfloat16@int4/64")  # rows of bfloat16 times packed codes: cells.codes


def names() -> Iterator[str]:
    """Yield the names of the cells, whose calls cells.py makes: the rows of peers.py, and operations on rows."""
    matrices = shapes.PRODUCT_SHAPES[:6]
    for suffix, products in (("", shapes.PRODUCT_SHAPES), (f" copies={shapes.COPIES}", matrices)):
        for dtype in shapes.PRODUCT_DTYPES:
            for form in (shapes.PACKED, *shapes.ARRAYS):
                yield from (f"products {dtype} {shape} {form}{suffix}" for shape in products)
        for dtype in WEIGHTS:
            yield from (f"products {dtype} {shape} {shapes.PACKED}{suffix}" for shape in matrices)
    yield from (f"dynamic {shape}{kind}" for kind in ("", " int4/64") for shape in shapes.DYNAMIC_SHAPES)
    yield from (f"casts {size} {pair}" for size in shapes.CAST_SIZES for pair in shapes.CAST_PAIRS)
    yield from (f"quantize {shape} {label}" for shape in shapes.QUANTIZE_SHAPES for label in shapes.LABELS)
    for name in ("softmax", "layer_norm", "gelu"):
        yield from (f"rows 512x384 {name} {dtype}" for dtype in ("float32", "bfloat16"))


class Figures(NamedTuple):
    """A cell: old time / new time in each start, by low quantiles and by the median over the rounds; and the best time.

    `best` is the best time of the new build, in seconds.
    """

    ratios: tuple[float, ...]
    medians: tuple[float, ...]
    best: float

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def paired(self) -> float:
        return median(self.medians)


class Build:
    """A process that imports one build and times its cells."""

    def __init__(self, where: str, threads: int) -> None:
        python = where if Path(where).is_file() else sys.executable
        folder = "" if python == where else os.path.abspath(where)
        self.process = subprocess.Popen(
            [python, __file__, "--work", str(threads), folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> "Build":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate()

    def seconds(self, name: str) -> float:
        self.process.stdin.write(name + "\n")
        return float(self.process.stdout.readline())


def work(threads: int, folder: str) -> None:
    """Time the cell whose name is read from each line, and write the seconds of a call."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    if folder:
        # The finder of an editable install would be asked before the folder.
        sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "MesonpyMetaFinder"]
        sys.path.insert(0, folder)
    import cells

    import mp_core as mp

    mp.config.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter  # one thread: CPU time, without other programs
    current, timer, number = "", None, 0
    for line in sys.stdin:
        if line != current:
            current = timer = None  # free the memory of the previous cell first
            current, timer = line, Timer(cells.call(line.rstrip("\n")), timer=clock)
            timer.timeit(1)
            number = math.ceil(SAMPLE / max(min(timer.repeat(2, 1)), 1e-7))
        print(timer.timeit(number) / number, flush=True)


def compare(
    old: str,
    new: str,
    cells: list[str],
    *,
    starts: int = 3,
    rounds: int = 25,
    threads: int = 1,
    limit: float = math.inf,
) -> dict[str, Figures]:
    """Measure the cells of two builds, as many of them as `limit` seconds allow."""
    (ratios, medians), best = ({name: [] for name in cells} for _ in range(2)), dict.fromkeys(cells, math.inf)
    begin = time.monotonic()
    for start in range(starts):
        with Build(old, threads) as before, Build(new, threads) as after:
            for name in cells:
                if time.monotonic() - begin > limit * (start + 1) / starts:
                    break
                taken = {before: [], after: []}
                for turn in range(rounds):
                    for build in (before, after) if turn % 2 else (after, before):
                        taken[build].append(build.seconds(name))
                theirs, ours = (sorted(taken[build])[rounds // QUANTILE] for build in (before, after))
                ratios[name].append(theirs / ours)
                pairs = zip(taken[before], taken[after], strict=True)
                medians[name].append(median(their / our for their, our in pairs))
                best[name] = min(best[name], *taken[after])
    return {name: Figures(tuple(each), tuple(medians[name]), best[name]) for name, each in ratios.items() if each}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", help="interpreter that imports the old build, or folder with its mp_core")
    parser.add_argument("new", help="the same of the new build")
    parser.add_argument("--cells", default="", metavar="REGEX", help="only cells whose names match this pattern")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=25, help="of each start")
    parser.add_argument("--seconds", type=float, default=math.inf, help="total; cells that do not fit are left out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    cells = [name for name in names() if re.search(options.cells, name)]
    how = {"starts": options.starts, "rounds": options.rounds, "threads": options.threads, "limit": options.seconds}
    found = compare(options.old, options.new, cells, **how)
    for name, cell in found.items():
        spread = f"{min(cell.ratios):.2f} to {max(cell.ratios):.2f}"
        print(f"{name:56}{cell.best * 1e6:12.2f} us{cell.ratio:8.3f}   {spread}")
    print(f"geometric mean of {len(found)} ratios: {geometric_mean(cell.ratio for cell in found.values()):.3f}")
    for name in sorted(found, key=lambda name: found[name].ratio)[:10]:
        print(f"  {found[name].ratio:.3f}  {name}")
    if options.json:
        options.json.write_text(json.dumps({name: cell._asdict() for name, cell in found.items()}, indent=1))


if __name__ == "__main__":
    work(int(sys.argv[2]), sys.argv[3]) if sys.argv[1:2] == ["--work"] else main()
