from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

_Array = np.ndarray[Any, Any]
R = TypeVar("R")

class UnseenError(ValueError): ...

class Note:
    name: str
    cost: dict[str, Any]
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

def recorded_on(tape: Tape, function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R: ...
def constant(array: _Array) -> _Array: ...
