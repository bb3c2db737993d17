from contextlib import AbstractContextManager
from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

class UnseenError(ValueError): ...

class Note:
    name: str
    rows: int
    operations: float
    moved: int
    pointers: list[tuple[int, int, int]]

class Tape:
    notes: list[Note]
    buffers: list[_Array]
    constants: list[_Array]
    def add_buffer(self, array: _Array) -> int: ...
    def add_constant(self, array: _Array) -> None: ...
    def find(self, at: int) -> tuple[int, int] | None: ...
    def holds(self, at: int) -> bool: ...
    def changes(self, array: _Array) -> bool: ...

def recorded_on(tape: Tape) -> AbstractContextManager[None]: ...
def constant(array: _Array) -> _Array: ...
