from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

RULES: dict[str, tuple[int, int]]

def update_each(
    rule: str, items: list[tuple[Any, ...]], numbers: tuple[Any, ...]
) -> tuple[list[tuple[_Array, list[_Array]]], bool]: ...
def block(blocks: list[_Array], shape: tuple[int, ...]) -> _Array: ...
