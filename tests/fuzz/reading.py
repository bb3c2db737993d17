"""Readers of files, texts and command lines: damaged input raises ValueError or OSError, or is read.

No reader may crash, hang, or allocate much more than it reads. A row of a table of readers creates good inputs in a
folder once, and reads a damaged one.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fuzz.damage import mutated
from fuzz.limits import peak

__all__ = ["REFUSALS", "SEEDS", "SLACK", "Reader", "make", "read_one", "run", "seeds"]

REFUSALS = (ValueError, OSError)
SLACK = 8 << 20  # bytes that a reader may allocate beside twice the size of its input: caches, messages, imports
SEEDS = Path(__file__).parents[1] / "data" / "fuzz"  # READER/NAME: inputs by which something was found


class Reader(NamedTuple):
    """Good inputs, how one is read, what reading may allocate beside twice the input, and how it may refuse."""

    write: Callable[[Path], None]
    read: Callable[[Path], None]
    most: int = SLACK
    refusals: tuple[type[Exception], ...] = REFUSALS


def seeds(name):
    """Return the inputs by which something was found in a reader."""
    return sorted((SEEDS / name).glob("*"))


def make(name, reader, folder):
    """Write the good inputs of a reader, beside those by which something was found; return the folder."""
    (folder / "seeds").mkdir()
    reader.write(folder / "seeds")
    for path in seeds(name):
        (folder / "seeds" / f"found {path.name}").write_bytes(path.read_bytes())
    return folder


def run(reader, folder, rng):
    """Read one damaged input."""
    paths = sorted((folder / "seeds").iterdir())
    read_one(reader, folder, mutated(rng, paths[int(rng.integers(len(paths)))].read_bytes()))


def read_one(reader, folder, content):
    """Read an input; raise if reading takes too much memory, or ends by anything but a refusal."""
    room = folder / "room"
    room.mkdir(exist_ok=True)
    for old in room.iterdir():
        old.unlink()
    path = room / "input"
    path.write_bytes(content)
    with peak() as most:
        with contextlib.suppress(*reader.refusals):
            reader.read(path)
        allocated = most()
    assert allocated <= 2 * len(content) + reader.most, f"{allocated} bytes were allocated to read {len(content)}"
