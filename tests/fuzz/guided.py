"""Fuzz readers by coverage: ``python -m fuzz.guided [READER ...] [--seconds N] [--corpus FOLDER]`` in tests/.

Needs the package atheris (``make fuzz-guided`` installs it), which watches the bytecode of mp_core. libFuzzer keeps
each input that reaches new code and mutates it further, half of the time with :func:`fuzz.damage.mutated`, which knows
JSON and archives. Every reader runs in a separate process. An input that raises anything except an allowed error,
crashes, or takes 5 seconds of CPU time or too much memory ends the process, and another one continues. The input is
stored beside the corpus FOLDER/READER as READER-crash-*, -timeout-* or -oom-*. With the fix, it becomes a seed in
tests/data/fuzz/READER.
"""

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from fuzz import __main__ as command
from fuzz.limits import counting

COMMAND = [sys.executable, "-m", "fuzz.guided"]  # what starts the process of a reader
CORPUS = Path(__file__).parents[2] / "build/fuzz"
MEMORY = 4096  # MiB of the process
STUCK = 60  # seconds after which an input that takes no CPU time is a finding


class Found(NamedTuple):
    """What came of a reader: inputs, edges of bytecode that they reached, findings."""

    inputs: int = 0
    coverage: int = 0
    findings: int = 0


# ---- the process of one reader


def explore(name, options):
    """Give libFuzzer a reader, until time is up or something is found."""
    import atheris
    import numpy as np

    with tempfile.TemporaryDirectory() as folder:
        with atheris.instrument_imports(include=["mp_core"]):
            from fuzz import reading
            from fuzz.damage import mutated
            from fuzz.readers import READERS

            reader = READERS[name]
            made = reading.make(name, reader, Path(folder))
            for path in sorted((made / "seeds").iterdir()):  # which imports what a reader imports at its first use
                reading.read_one(reader, made, path.read_bytes())

        def read(content):
            signal.setitimer(signal.ITIMER_PROF, command.LONGEST)
            reading.read_one(reader, made, content)
            signal.setitimer(signal.ITIMER_PROF, 0)

        def mutate(content, most, seed):
            rng = np.random.default_rng(seed)
            return (mutated(rng, content) if rng.random() < 0.5 else atheris.Mutate(content, most))[:most]

        signal.signal(signal.SIGPROF, command.slow)
        corpus = options.corpus / name
        settings = [f"-artifact_prefix={corpus}-", f"-max_total_time={max(1, round(options.seconds))}"]
        settings += [f"-timeout={STUCK}", f"-rss_limit_mb={MEMORY}", "-print_final_stats=1"]
        atheris.Setup([sys.argv[0], str(corpus), str(made / "seeds"), *settings], read, custom_mutator=mutate)
        atheris.Fuzz()


# ---- all readers


def fuzz(name, options, environment):
    """Explore a reader in processes; print what is found."""
    total, end = Found(), time.monotonic() + options.seconds
    (options.corpus / name).mkdir(exist_ok=True, parents=True)
    seconds = options.seconds
    while seconds > 1:
        given = [name, "--corpus", options.corpus, "--seconds", seconds, "--child"]
        run = subprocess.run(
            [*COMMAND, *map(str, given)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, check=False,
        )  # fmt: skip
        told = run.stdout.decode(errors="replace")
        inputs = [0, *map(int, re.findall(r"^#(\d+)\t", told, re.M))]
        edges = [int(x) for x in re.findall(r"\bcov: (\d+)", told)]
        if "INFO: Seed" not in told:
            raise SystemExit(f"{name} did not begin:\n{told}")
        found = run.returncode != 0
        total = Found(total.inputs + inputs[-1], max([total.coverage, *edges]), total.findings + found)
        if run.returncode:
            print(f"{name}: the process ended with {run.returncode}\n{told[-4000:]}", flush=True)
        seconds = end - time.monotonic()
    return total


def main():
    """Explore each reader, and print a line about it; return the exit status."""
    parser = argparse.ArgumentParser(prog="guided", description=__doc__.splitlines()[0])
    parser.add_argument("readers", nargs="*", metavar="READER")
    parser.add_argument("--seconds", type=float, default=60, help="of each reader (default: 60)")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="where inputs are kept (default: build/fuzz)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)  # in a process of one reader
    options = parser.parse_args()
    if options.child:
        explore(options.readers[0], options)
    from fuzz.readers import READERS

    if unknown := set(options.readers) - set(READERS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected some of {', '.join(READERS)}")
    findings = 0
    with tempfile.TemporaryDirectory() as folder:
        environment = counting(Path(folder))
        for name in options.readers or READERS:
            start, found = time.monotonic(), fuzz(name, options, environment)
            findings += found.findings
            print(
                f"{name:12} {found.inputs:8} inputs {time.monotonic() - start:7.1f} s {found.coverage:6} edges"
                f" {found.findings:4} found",
                flush=True,
            )
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
