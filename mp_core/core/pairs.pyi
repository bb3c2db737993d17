from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

BOOL: int
FUNCTIONS: dict[str, int]

def elementwise(
    name: str, activation: int, operands: tuple[_Array, ...], formats: tuple[int, ...], out: _Array, out_format: int
) -> None: ...
def turn(fmt: int, x: _Array, angles: _Array, out: _Array, length: int, offsets: _Array | None = None) -> None: ...
