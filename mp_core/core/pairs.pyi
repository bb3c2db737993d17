from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

ADD: int
MULTIPLY: int

def combine(
    how: int, activation: int, x: _Array, x_format: int, y: _Array, y_format: int, out: _Array, out_format: int
) -> None: ...
def turn(fmt: int, x: _Array, angles: _Array, out: _Array, length: int, offsets: _Array | None = None) -> None: ...
