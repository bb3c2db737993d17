from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

RULES: dict[str, tuple[int, int]]

def update(
    rule: str,
    w: _Array,
    g: _Array,
    slots: tuple[_Array, ...],
    numbers: tuple[Any, ...],
    how: tuple[float, float, float, float],
    w_out: _Array,
    slots_out: tuple[_Array, ...],
) -> bool: ...
def block(blocks: list[_Array], shape: tuple[int, ...]) -> _Array: ...
