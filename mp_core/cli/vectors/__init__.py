"""``mp-core verify-machine``: compare this machine with the vectors of the contract."""

import argparse
import sys
from collections.abc import Mapping
from typing import Any

import mp_core as mp
from mp_core.cli import options
from mp_core.cli.common import DONE, FAILED
from mp_core.cli.grammar import new_command
from mp_core.cli.vectors.calls import outputs_of
from mp_core.cli.vectors.files import cases, same_bits
from mp_core.utilities.tables import aligned

__all__ = ["TILES", "add_command", "count_of_failures", "failures", "report", "table"]

TILES, WITH_TILES = "tiles", "avx512_amx"
"""The section of products in tile order, and the only instruction set that has this order."""


def add_command(commands: Any) -> None:
    """Add the command `verify-machine`."""
    examples = ["verify-machine", "verify-machine --json vectors.json"]
    summary = "compare the bits of this machine with the vectors of the contract"
    command = new_command(commands, "verify-machine", _run, summary, examples)
    options.add(command, "json", "threads")


def failures(case: Mapping[str, Any]) -> list[str]:
    """Return the names of the outputs of a case that mp_core computes with other bits."""
    found = outputs_of(case)
    return [name for name, expected in case["outputs"].items() if not same_bits(found[name], expected)]


def report() -> dict[str, Any]:
    """Return, for each instruction set of this machine, how many cases of each section pass and which fail."""
    before = mp.config.isa()
    every = list(cases())
    found: dict[str, Any] = {"version": mp.__version__, "cases": len(every), "sets": {}}
    try:
        for isa in mp.config.available_isas():
            mp.config.set_isa(isa)
            found["sets"][isa] = of_set([each for each in every if each[0] != TILES or isa == WITH_TILES])
    finally:
        mp.config.set_isa(before)
    return found


def of_set(every: list[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Run all cases under the instruction set in use. Return for each section how many passed, and what failed."""
    sections: dict[str, Any] = {section: {"passed": 0, "failed": []} for section, _ in every}
    for section, case in every:
        with mp.config.reproducible(section != TILES):
            wrong = failures(case)
        if wrong:
            sections[section]["failed"].append(f"{case['name']}: {', '.join(wrong)}")
        else:
            sections[section]["passed"] += 1
    return sections


def count_of_failures(found: Mapping[str, Any]) -> int:
    """Return how many cases failed, counted once for each instruction set."""
    return sum(len(entry["failed"]) for sections in found["sets"].values() for entry in sections.values())


def table(found: Mapping[str, Any]) -> str:
    """Return the report as a table: a row for each section, a column for each instruction set."""
    sets = found["sets"]
    rows = [("vectors", *sets)]
    for section in max(sets.values(), key=len):
        rows.append((section, *(_cell(sets[isa].get(section)) for isa in sets)))
    failed = [
        f"{isa}: {section}: {name}" for isa in sets for section, entry in sets[isa].items() for name in entry["failed"]
    ]
    return "\n".join([aligned(rows), *failed])


def _cell(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "-"
    failed = len(entry["failed"])
    return f"{failed} of {failed + entry['passed']} differ" if failed else f"{entry['passed']} ok"


def _run(arguments: argparse.Namespace) -> int:
    options.check_outputs(arguments)
    found = report()
    options.show(arguments, found, lambda: table(found))
    count = count_of_failures(found)
    if count:
        print(f"mp-core: bits differ from the contract in {count} of the runs of cases", file=sys.stderr)
    return FAILED if count else DONE
