from typing import Any

import numpy as np

from mp_core.core.steps import Note

_Array = np.ndarray[Any, Any]

class Replay:
    notes: list[Note]
    def __init__(self, notes: list[Note], sizes: tuple[int, ...] = ()) -> None: ...
    def run(self, bases: _Array, rows: _Array, threads: int) -> None: ...
    def timed(self, bases: _Array, rows: _Array, threads: int) -> list[float]: ...

def run_passes(replays: list[Replay], bases: _Array, given: _Array, addresses: _Array, rows: _Array) -> None: ...
def c_plan(
    replay: Replay, bases: _Array, inputs: int, results: _Array, kept: tuple[object, ...]
) -> object: ...
