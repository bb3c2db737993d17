"""Check whether a revision is slower than another: ``python compare.py BASE`` compares the working tree with BASE.

Both are built for the instruction set in use (trees.py) and timed alternately on one core (builds.py). A cell is
reported if it is more than 5 % slower in the first measurement and in each of two repetitions with new processes and
more rounds; noise hardly ever does that three times. Then the exit status is 1, and the report names the changed files
that compute the reported cells.

A cell of less than a microsecond must be 15 % slower, of less than 0.6 microseconds 30 %. Such a call runs some
thousands of instructions of the interpreter and of several libraries, and their addresses change its speed: on Zen 5,
nearly the same machine code at other addresses took 0.8 to 1.27 times as long (26 November 2026; planted.py moves it).

``--short`` times only the cells of the history, and does nothing if BASE is not in the clone.
"""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

import trees
from builds import Figures, compare, names
from tracked import CELLS

SLOWER = 1.05
SHORT_CALLS = ((0.6e-6, 1.3), (1e-6, 1.15))  # limits for calls of the new build that take less than so many seconds
CLEAR = 1.03  # the least slowdown in every start of a repeated measurement
FIRST = {"starts": 2, "rounds": 15}
REPEATED = {"starts": 3, "rounds": 41}
REPEATS = 2
SHORT, LEAST = 150, 40  # seconds with --short: building and the first measurement; the least for measuring

# Cells that take long and add no information: operands beyond all caches, or a second and more in total.
LEFT_OUT = r"copies=|casts 33554432|quantize 4096x8192|2048x2048x2048|1024x1024x1024"

# Subject of a cell -> the files that compute it, in addition to those that every call uses.
KERNELS, LIBRARY = "mp_core/core/kernels", "mp_core/core/library"
PRODUCTS = (
    rf"{KERNELS}/products/|{LIBRARY}/(contract|packing|plan|product|tuning)|mp_core/arrays/products/|mp_core/core/run\."
)
QUANTIZE = rf"{KERNELS}/quantize/|{LIBRARY}/quantize|mp_core/arrays/quantization/"
COMPUTED_BY = {
    "casts": rf"{KERNELS}/casts/|{LIBRARY}/cast|mp_core/arrays/casting|mp_core/core/convert",
    "products": rf"{PRODUCTS}|{KERNELS}/casts/",
    "quantize": QUANTIZE,
    "dynamic": rf"{PRODUCTS}|{QUANTIZE}|mp_core/ops/dynamic",
    "rows": rf"{KERNELS}/rows/|{LIBRARY}/(rows|sums|tables)|mp_core/ops/(rows|activations)|mp_core/core/pointwise",
}
OF_ALL = re.compile(
    rf"{KERNELS}/[^/]+$|{KERNELS}/(simd|casts)/|{LIBRARY}/(api|machine|operation|pool\.|runtime|system)"
    r"|mp_core/core/(__init__|cpu|header|library\.pxd|recording|scopes)|mp_core/arrays/[^/]+$|meson"
)


def slower(cell: Figures) -> float:
    """Return new time / old time of a cell: the lower of two statistics, each the median over the starts."""
    return 1 / max(cell.ratio, cell.paired)


def counts(cell: Figures) -> bool:
    """Return whether the slowdown of the cell exceeds its limit."""
    return slower(cell) > next((limit for seconds, limit in SHORT_CALLS if cell.best < seconds), SLOWER)


def clearly(cell: Figures) -> bool:
    """Return whether a repeated measurement shows the slowdown in every start."""
    return counts(cell) and 1 / max(cell.ratios) > CLEAR


def regressions(base: Path, head: Path, cells: list[str], *, seconds: float | None = None) -> dict[str, float]:
    """Return the cells that the build `head` computes more slowly, with new time / old time."""
    limit = {} if seconds is None else {"limit": seconds}
    found = compare(str(base), str(head), cells, **FIRST, **limit)
    print(f"{len(found)} of {len(cells)} cells timed")
    times = {name: slower(cell) for name, cell in found.items() if counts(cell)}
    for _ in range(REPEATS):
        if times:
            print(f"looked slower, timed again: {', '.join(times)}", flush=True)
            again = compare(str(base), str(head), list(times), **REPEATED)
            times = {name: slower(cell) for name, cell in again.items() if clearly(cell)}
    return times


def suspects(cells: list[str], changed: list[str]) -> list[str]:
    """Return the changed files that compute one of the cells."""
    subjects = {cell.split()[0] for cell in cells}
    computes = re.compile("|".join(COMPUTED_BY[subject] for subject in sorted(subjects)))
    return [name for name in changed if computes.match(name) or OF_ALL.match(name)]


def report(times: dict[str, float], changed: list[str]) -> str:
    """Return the cells that are slower and the files to look at first, as text."""
    if not times:
        return "no cell is slower"
    lines = [f"{len(times)} cells are slower:", *(f"  {times[name]:5.2f} times as long  {name}" for name in times)]
    files = suspects(list(times), changed)
    return "\n".join([*lines, "suspected files:", *(f"  {name}" for name in files or ["none that computes them"])])


def full() -> list[str]:
    """Return the cells of a comparison without ``--short``."""
    return [name for name in names() if not re.search(LEFT_OUT, name)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="revision that must not be faster")
    parser.add_argument("head", nargs="?", help="revision that must not be slower (default: the working tree as it is)")
    parser.add_argument("--cells", default="", metavar="REGEX", help="only cells whose names match this pattern")
    parser.add_argument("--short", action="store_true", help="the cells of the history only")
    options = parser.parse_args()
    known = ("git", "-C", str(trees.ROOT), "rev-parse", "--quiet", "--verify", f"{options.base}^{{commit}}")
    if subprocess.run(known, stdout=subprocess.DEVNULL).returncode:
        print(f"{options.base} is not in this clone: nothing to compare with")
        return 0 if options.short else 2
    before, after = trees.sources(options.base), trees.sources(options.head)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if not [name for name in changed if name.startswith(("mp_core/", "meson"))]:
        print(f"the sources are those of {options.base}: nothing to compare")
        return 0
    start = time.monotonic()
    base, head = trees.build(before), trees.build(after)
    built = time.monotonic() - start
    print(f"built in {built:.0f} s", flush=True)
    cells = [name for name in (CELLS if options.short else full()) if re.search(options.cells, name)]
    times = regressions(base, head, cells, seconds=max(LEAST, SHORT - built) if options.short else None)
    print(report(times, changed))
    # A cell that no changed file computes is slower by where the linker or the system placed something.
    return 1 if times and suspects(list(times), changed) else 0


if __name__ == "__main__":
    sys.exit(main())
