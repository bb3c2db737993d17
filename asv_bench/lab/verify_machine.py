"""Print one page about this machine, in Markdown: instruction sets, bits, exactness, speed compared with the peers.

Run `make -s verify-machine > machine.md` on a CPU or system that docs/platforms.md does not have, and send the page to
the maintainers. The exit status is 1 if bits differ from the stored hashes of all machines or from the vectors of the
contract (docs/vectors.md). After an intended change of
numerics, `--learn` stores new hashes.
"""

import argparse
import json
import platform
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bits
import generation_bits
import ml_dtypes
import numpy as np
import training_bits

import mp_core as mp
from mp_core.cli import vectors
from mp_core.cli.benchmark import operations
from mp_core.config import available_isas, show_config

KNOWN = Path(__file__).with_name("known_bits.json")
"""Family of calls, or training or generation and its policy -> its hash, the same on every machine."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the best instruction set and one thread")
    parser.add_argument("--learn", action="store_true", help=f"write the hashes of this machine to {KNOWN.name}")
    options = parser.parse_args()
    isas = available_isas()[: 1 if options.quick else None]
    threads = (1,) if options.quick else tuple(sorted({1, 2, mp.config.get_num_threads()}))
    mp.config.set_reproducible(True)
    print(*machine(), sep="\n", flush=True)
    found = hashes(isas, threads)
    if options.learn:
        KNOWN.write_text(json.dumps({name: next(iter(each)) for name, each in found.items()}, indent=2) + "\n")
    known = json.loads(KNOWN.read_text())
    mp.config.set_isa(isas[0])  # the set that was hashed last is the slowest
    checked = vectors.report()
    print(*of_bits(found, known), *of_vectors(checked), *of_casts(), *of_speed(), sep="\n")
    differ = any(set(each) != {known[name]} for name, each in found.items()) or vectors.count_of_failures(checked)
    return bool(differ or any(inexact().values()))


def machine() -> Iterator[str]:
    """Yield the description of the machine and the build."""
    config = show_config(as_dict=True)
    yield f"# mp_core {config['version']} ({config['commit']}) on {processor()}\n"
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}"
    yield f"{datetime.now(UTC):%d %B %Y}, {config['platform']}, {versions}."
    yield f"Instruction sets: {', '.join(available_isas())}; {config['threads']} threads.\n"


def processor() -> str:
    """Return the name of the CPU, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = facts.get("model name") or facts.get("CPU part", platform.machine())
    return f"{name}, family {facts['cpu family']}, model {facts['model']}" if "cpu family" in facts else name


def hashes(isas: list[str], threads: tuple[int, ...]) -> dict[str, dict[str, list[str]]]:
    """Return what was hashed, as in `KNOWN` -> hash -> the instruction sets and threads with this hash."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in bits.lines(tuple(isas), threads):
        family, isa, count, digest = line.split()
        found[family][digest].append(f"{isa}/{count}")
    for isa in isas:
        for count in threads:
            for line in training_bits.trained(isa, count):
                name, digest = line.rsplit(maxsplit=1)
                found[f"trained {name}"][digest[:16]].append(f"{isa}/{count}")
            for policy, digest in generation_bits.continued(isa, count):
                found[f"generated {policy}"][digest[:16]].append(f"{isa}/{count}")
    return found


def of_bits(found: dict[str, dict[str, list[str]]], known: dict[str, str]) -> Iterator[str]:
    """Yield a table of the hashes."""
    yield "## Bits, in the reproducible order of sums\n"
    yield "| calls | hash | runs | |\n|---|---|---|---|"
    for name, each in found.items():
        for digest, runs in each.items():
            verdict = "as everywhere" if digest == known[name] else f"**differs from {known[name]}**: {' '.join(runs)}"
            yield f"| {name} | {digest} | {len(runs)} | {verdict} |"


def of_vectors(checked: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report on the vectors of the contract."""
    yield "\n## Vectors of the contract\n"
    yield f"```text\n{vectors.table(checked)}\n```"


def inexact() -> dict[str, int]:
    """Return cast -> number of results that differ from ml_dtypes and NumPy, for all codes and 16 million floats."""
    codes = np.arange(2**16, dtype=np.uint16)
    patterns = np.random.default_rng(1).integers(0, 2**32, 2**24, np.uint32).view(np.float32)
    found = {}
    for kind in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        name = np.dtype(kind).name
        every = (codes if np.dtype(kind).itemsize == 2 else codes[:256].astype(np.uint8)).view(kind)
        found[f"{name} to float32"] = differing(mp.cast(every, "float32"), every.astype(np.float32))
        with np.errstate(all="ignore"):
            found[f"float32 to {name}"] = differing(mp.cast(patterns, name), patterns.astype(kind))
    return found


def differing(got: np.ndarray, expected: np.ndarray) -> int:
    """Return the number of elements with different bits; NaN equals NaN, whatever its payload."""
    bits_of = f"u{got.itemsize}"
    both_nan = np.isnan(got.astype(np.float32)) & np.isnan(expected.astype(np.float32))
    return int(((got.view(bits_of) != expected.view(bits_of)) & ~both_nan).sum())


def of_casts() -> Iterator[str]:
    """Yield a table of the casts."""
    yield "\n## Exactness\n"
    yield "| cast | results that differ from ml_dtypes and NumPy |\n|---|---|"
    yield from (f"| {name} | {count} |" for name, count in inexact().items())


def of_speed() -> Iterator[str]:
    """Yield a table of speeds, compared with the installed peers."""
    yield "\n## Speed\n"
    rows = operations.run(("cast", "matmul"), quick=True)
    peers = list(dict.fromkeys(name for row in rows for name in row["rates"]))
    yield f"| call | unit | {' | '.join(peers)} | ratio to the best other |\n|---|---|{'---|' * len(peers)}---|"
    for row in rows:
        rates = " | ".join(f"{row['rates'][name]:.1f}" if name in row["rates"] else "" for name in peers)
        yield f"| {row['operation']} {row['shape']} | {row['unit']} | {rates} | {row['speedup']:.2f} |"


if __name__ == "__main__":
    sys.exit(main())
