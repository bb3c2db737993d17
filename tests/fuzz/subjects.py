"""The subjects of fuzzing: name -> function that prepares a folder, and function that runs a random case."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fuzz import architectures, calls, derivatives, folders, networks, operations, reading, tuning
from fuzz.arrays import Memory
from fuzz.readers import READERS

__all__ = ["SUBJECTS", "Subject"]


class Subject(NamedTuple):
    """`make` returns the state that every case gets; `run` raises what it finds."""

    make: Callable[[Path], Any]
    run: Callable[[Any, np.random.Generator], None]


SUBJECTS = {
    "operations": Subject(lambda folder: Memory(), operations.run),
    "gradients": Subject(lambda folder: Memory(), derivatives.run),
    "layers": Subject(lambda folder: Memory(), networks.run),
    "calls": Subject(lambda folder: calls.make(np.random.default_rng(0)), calls.run),
    "architectures": Subject(architectures.make, architectures.run),
    "folders": Subject(folders.make, folders.run),
    "tune": Subject(tuning.make, tuning.run),
    **{
        name: Subject(functools.partial(reading.make, name, reader), functools.partial(reading.run, reader))
        for name, reader in READERS.items()
    },
}
