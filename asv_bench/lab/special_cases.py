"""Measure the gain of each special case of the core on this CPU: `python special_cases.py FOLDER [CASE ...]`.

The checkout is built in FOLDER for the instruction set in use, once complete and once without each special case, by
meson's option `without` (mp_core/core/kernels/special_cases.h). Each of these builds is compared with the complete one,
as in builds.py, on the rows that the case affects. The table is printed as Markdown; docs/performance.md has two of
them. Builds and results that are in FOLDER already are reused.

The figure of a row is the time without the case divided by the time with it. Of the starts, the best row shows the
lowest figure and the worst row the highest: other load of the machine hardly ever looks the same in every start.
"""

import argparse
import json
import random
import re
import sys
from datetime import date
from pathlib import Path
from typing import NamedTuple

import trees
from builds import compare, names
from tracked import cpu

import mp_core as mp

SEED = 26  # shuffles the cells: if there is no time for all, some of every kind are measured
FEW = r"(float32|bfloat16|int8) (1x1024x1024|8x1024x1024|16x4096x4096)"  # products that mostly read B
MANY = r"(float32|bfloat16|int8) (64x768x768|128x768x3072|12x128x32x128)"


class Case(NamedTuple):
    name: str
    does: str
    cells: str  # a regular expression for the rows that it affects

    @property
    def option(self) -> str:
        """Its name in meson's option `without`."""
        return re.sub(r"\W+", "_", self.name).lower()


CASES = (
    Case(
        "in place",
        "Up to 24 rows of A (pairs: 18, integers: 6) are multiplied by row-major B directly; B is not packed first.",
        f"products {FEW} kn",
    ),
    Case(
        "transposed",
        "For up to 24 rows of A, pieces of transposed B that fit L1 are transposed and multiplied immediately; of int8 "
        "(12 rows), dot products along K.",
        f"products {FEW} nk",
    ),
    Case(
        "NC of row-major B",
        "Many panels are multiplied over one range of K before the next range, so that rows of B are read whole.",
        f"products {FEW} kn",
    ),
    Case(
        "one row in place",
        "One row of A and row-major B: all columns are multiplied by some rows of B, with partial sums in a cache.",
        r"products \w+ 1x(1024x1024|4096x4096) kn",
    ),
    Case(
        "panels in turn",
        "On AVX2 without VNNI, one row of A is multiplied by four packed panels from memory in turn.",
        r"products (float32|bfloat16|int8) 1x(1024x1024|4096x4096) packed",
    ),
    Case(
        "prefetch packed",
        "The next range of a packed panel is prefetched while one is multiplied.",
        f"products {FEW} packed",
    ),
    Case(
        "prefetch rows",
        "The next rows of row-major B are prefetched while some are multiplied.",
        f"products {FEW} kn",
    ),
    Case(
        "prefetch rows, one row",
        "With one row of A, the next rows of row-major B are prefetched one cache line at a time.",
        r"products \w+ 1x1024x1024 kn",
    ),
    Case(
        "prefetch columns",
        "The next columns of transposed B are prefetched while some are multiplied.",
        f"products {FEW} nk",
    ),
    Case(
        "memory or cache",
        "B that exceeds half of L2 is read in the order that suits memory.",
        f"products {FEW} (kn|nk)",
    ),
    Case(
        "decode in registers",
        "With at most `few_rows` rows of A, codes of B are decoded in registers, not into a panel first.",
        r"products (bfloat16@int.|float8_e4m3fn) (1x1024x1024|8x1024x1024|16x4096x4096) packed",
    ),
    Case(
        "decode into a panel",
        "With more rows of A, codes of B are decoded once, not in each register block.",
        r"products (bfloat16@int.|float8_e4m3fn|float16) (64x768x768|512x512x512|16x4096x4096) packed",
    ),
    Case(
        "stores before loads",
        "Loads of the next register block wait for the last stores of this one, so no register is spilled.",
        rf"products {MANY} (packed|kn)$",
    ),
    Case(
        "two vectors at once",
        "On AVX-512, register blocks of more than three rows decode 8-bit floats two vectors at a time.",
        r"products float8_e4m3fn (1x1024x1024|8x1024x1024|16x4096x4096) packed",
    ),
    Case(
        "made wider",
        "On AVX2, with 16 or more rows of A, pairs of bfloat16 are multiplied as float32, and int8 as int16.",
        r"products (bfloat16|bfloat16@int.|float8_e4m3fn|int8) (64x768x768|128x768x3072|512x512x512) (packed|nk)$",
    ),
    Case(
        "micro-panels",
        "On AVX2 and AArch64, with many rows of A, panels are copied, decoded or made wider into micro-panels of 16 "
        "columns, and longer ranges of K are multiplied at once.",
        r"products (float32|bfloat16|float16|int8) (64x768x768|128x768x3072|512x512x512|1024x1024x1024) packed",
    ),
    Case(
        "two groups in an iteration",
        "On AVX2, the loop along K of float32 multiplies two groups in an iteration.",
        r"products (float32|bfloat16|float16) (8x1024x1024|64x768x768|128x768x3072|512x512x512|1024x1024x1024) packed",
    ),
    Case(
        "wide blocks of few rows",
        "On AVX2 and AArch64, register blocks of one row have 64 columns, those of two or three rows 32, not 16.",
        r"products (float32|bfloat16|float16|int8) (1x1024x1024|1x4096x4096|1x64x64|8x1024x1024) packed",
    ),
    Case(
        "columns where they lie",
        "One row of A is multiplied by columns of a transposed B that are not copied: of float32, and on AVX-512 of "
        "bfloat16 and float16.",
        r"products (float32|bfloat16|float16) 1x(1024x1024|4096x4096|64x64) nk",
    ),
    Case(
        "transposing by eight",
        "On AVX2, 8 columns at a time are transposed, because transposing 16 columns of 16 words needs 32 registers.",
        r"products (float32|bfloat16|int8) (8x1024x1024|16x4096x4096|64x768x768) nk",
    ),
    Case(
        "small calls",
        "A product of fewer than 2^20 multiplications by one packed B has a small plan: one task, without ranges of K.",
        r"products \w+ (1x64x64|4x16x16|16x64x64) packed",
    ),
    Case(
        "kept plans",
        "A thread keeps the plans of its last products.",
        r"products \w+ (1x64x64|4x16x16|16x64x64) (packed|kn|nk)",
    ),
    Case(
        "even heights",
        "Rows of A are divided into register blocks of almost equal height: seven rows into 4 and 3, not 6 and 1.",
        r"products \w+ (8x1024x1024|16x4096x4096|64x768x768|16x64x64|4x16x16) packed$",
    ),
    Case(
        "blocks in one call",
        "One call of a micro-kernel computes all consecutive register blocks of the same height.",
        f"products {MANY} packed$",
    ),
    Case(
        "epilogue in registers",
        "Scales, bias and narrowing are applied to the accumulators before they are stored.",
        f"products ({FEW}|{MANY}) packed",
    ),
    Case(
        "zero points first",
        "Accumulators of int8 start with the contribution of the zero points.",
        "products int8 (64x768x768|128x768x3072|12x128x32x128|16x64x64) packed$|dynamic",
    ),
    Case(
        "streaming stores",
        "Results of casts and quantization that exceed the caches are stored with non-temporal stores.",
        f"casts {1 << 25} |quantize 4096x8192 .*(given|back)",
    ),
    Case(
        "reciprocals",
        "Quantization multiplies by the inverse of a scale, and divides only where that may give another code.",
        r"quantize (1024x1024|64x64) (?!.*back)",
    ),
)
BY_NAME = {case.name: case for case in CASES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder for the builds and their measurements")
    parser.add_argument("cases", nargs="*", choices=[[], *BY_NAME], metavar="CASE", help="default: all")
    parser.add_argument("--seconds", type=float, default=60, help="per case, for measuring")
    parser.add_argument("--build", action="store_true", help="only build")
    parser.add_argument("--table", action="store_true", help="only print the stored results")
    options = parser.parse_args()
    cases = [BY_NAME[name] for name in options.cases or BY_NAME]
    for case in [] if options.table else cases:
        for each in (None, case):
            build(options.folder, each)
        if not options.build:
            measure(options.folder, case, options.seconds)
    if not options.build:
        print(table(options.folder, cases))


def place(folder: Path, case: Case | None) -> Path:
    """Return the folder of the build without `case`, or of the complete build."""
    return folder / (case.name.replace(" ", "_") if case else "everything")


def build(folder: Path, case: Case | None) -> None:
    """Build the checkout without a special case, unless the build exists."""
    target = place(folder, case)
    if not target.exists():
        print(f"building {target}", file=sys.stderr)
        trees.install(trees.sources(), folder / "sources", target, f"-Dwithout={case.option if case else ''}")


def measure(folder: Path, case: Case, seconds: float) -> None:
    """Compare the two builds, unless the results exist; write the ratio of each start of each cell."""
    file = place(folder, case).with_suffix(".json")
    if file.exists():
        return
    cells = [name for name in names() if re.search(case.cells, name)]
    random.Random(SEED).shuffle(cells)
    found = compare(*(str(place(folder, each)) for each in (case, None)), cells, starts=2, rounds=13, limit=seconds)
    figures = {name: cell.ratios for name, cell in found.items()}
    file.write_text(json.dumps({"date": f"{date.today():%d %B %Y}", "of": len(cells), "ratios": figures}, indent=1))


def table(folder: Path, cases: list[Case]) -> str:
    """Return the results as Markdown."""
    lines = [f"{cpu()}, `{mp.config.isa()}`, one thread.", ""]
    lines += ["| case | what it does | best gain | worst row | rows | measured |", "|---|---|---|---|---|---|"]
    for case in cases:
        file = place(folder, case).with_suffix(".json")
        if file.exists():
            read = json.loads(file.read_text())
            ratios = read["ratios"]
            best, worst = (
                max(ratios, key=lambda name: min(ratios[name])),
                min(ratios, key=lambda name: max(ratios[name])),
            )
            figures = [
                f"{ratio:.2f} `{name}`" for name, ratio in ((best, min(ratios[best])), (worst, max(ratios[worst])))
            ]
            lines.append("| " + " | ".join((case.name, case.does, *figures, f"{len(ratios)}", read["date"])) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
