"""Check that compare.py finds a planted slowdown, and finds none without it: ``python planted.py``.

- The slowdown: the kernel of softmax scales its scores several times. compare.py must report the cells of softmax, and
  no others.
- The working tree is compared with a copy of its build, `--runs` times: compare.py must report nothing.
- The same machine code is compared at other addresses, to count the cells whose speed depends on them.
"""

import argparse
import shutil
import sys

import compare
import trees
from tracked import CELLS

KERNEL = "mp_core/core/kernels/rows/softmax.h"
CALL = "number[i] = scale_row_of_scores(b, first + i, kept[i], scale);"
PLANTED = trees.Edit(KERNEL, CALL, f"for (int again = 0; again < 9; again++) {CALL}")

MESON = "mp_core/meson.build"
ALIGNED = "-falign-functions=64"
ALIGNMENTS = (16, 32, 128)  # alignment of functions in bytes; the build has 64


def expected(cells: list[str]) -> list[str]:
    return [name for name in cells if "softmax" in name]


def planted(cells: list[str]) -> bool:
    """Return whether compare.py reports exactly the cells of softmax if its kernel is slower."""
    files = trees.sources()
    base, head = trees.build(files), trees.build(trees.edited(files, (PLANTED,)))
    times = compare.regressions(base, head, cells)
    print(compare.report(times, [KERNEL]))
    return sorted(times) == sorted(expected(cells))


def unchanged(cells: list[str], runs: int) -> int:
    """Return the number of runs in which a build is compared with a copy of itself and nothing is reported."""
    base = trees.build(trees.sources())
    copy = trees.FOLDER / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(base, copy)
    silent = 0
    for run in range(1, runs + 1):
        times = compare.regressions(base, copy, cells)
        silent += not times
        print(f"run {run} of {runs}: {compare.report(times, [])}", flush=True)
    return silent


def elsewhere(files: trees.Sources, alignment: int) -> trees.Sources:
    """Return sources whose functions begin at multiples of so many bytes."""
    return trees.edited(files, (trees.Edit(MESON, ALIGNED, f"-falign-functions={alignment}"),))


def moved(cells: list[str]) -> set[str]:
    """Return the cells that are reported, in either direction, if functions have other addresses."""
    files, found = trees.sources(), set()
    for alignment in ALIGNMENTS:
        builds = trees.build(files), trees.build(elsewhere(files, alignment))
        times = compare.regressions(*builds, cells) | compare.regressions(*reversed(builds), cells)
        print(f"functions at multiples of {alignment}, in either direction: {compare.report(times, [])}", flush=True)
        found |= times.keys()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10, help="without a change (default: 10)")
    parser.add_argument("--full", action="store_true", help="all cells of compare.py, not those of the history")
    options = parser.parse_args()
    cells = compare.full() if options.full else list(CELLS)
    found = planted(cells)
    print(f"planted slowdown: {'reported exactly' if found else 'NOT reported exactly'}, {len(expected(cells))} cells")
    silent = unchanged(cells, options.runs)
    print(f"without a change: nothing reported in {silent} of {options.runs} runs")
    print(f"the same code elsewhere: {len(moved(cells))} of {len(cells)} cells reported")
    return 0 if found and silent == options.runs else 1


if __name__ == "__main__":
    sys.exit(main())
