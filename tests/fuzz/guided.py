"""Fuzz a reader by coverage: ``python -m fuzz.guided READER [--seconds N] [--corpus FOLDER]``, in tests/.

Needs the package atheris, which watches the bytecode of mp_core: libFuzzer keeps each input that reaches new code and
mutates it further, half of the time by :func:`fuzz.damage.mutated`, which knows JSON and archives. An input that
raises anything but a refusal, takes 5 seconds or too much memory is written to the corpus as crash-*, timeout-* or
oom-*, and ends the process with a status other than 0. It becomes a seed in tests/data/fuzz/READER.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import atheris
import numpy as np

with atheris.instrument_imports(include=["mp_core"]):
    from fuzz import reading
    from fuzz.damage import mutated
    from fuzz.readers import READERS

LONGEST, MEMORY = 5, 4096  # seconds of an input, and MiB of the process


def mutate(content, most, seed):
    """Mutate an input, as libFuzzer would or by what is known of files."""
    rng = np.random.default_rng(seed)
    return (mutated(rng, content) if rng.random() < 0.5 else atheris.Mutate(content, most))[:most]


def main():
    parser = argparse.ArgumentParser(prog="guided", description=__doc__.splitlines()[0])
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, help="where inputs are kept; default: nowhere")
    options = parser.parse_args()
    reader = READERS[options.reader]
    with tempfile.TemporaryDirectory() as folder:
        made = reading.make(options.reader, reader, Path(folder))
        corpus = options.corpus or Path(folder, "corpus")
        corpus.mkdir(exist_ok=True, parents=True)
        command = [sys.argv[0], corpus, made / "seeds", f"-artifact_prefix={corpus}/", "-print_final_stats=1"]
        command += [f"-max_total_time={options.seconds}", f"-timeout={LONGEST}", f"-rss_limit_mb={MEMORY}"]
        atheris.Setup([*map(str, command)], lambda x: reading.read_one(reader, made, x), custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
