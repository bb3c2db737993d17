from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

RULES: dict[str, tuple[int, int]]

def update_each(
    rule: str, items: list[tuple[Any, ...]], numbers: tuple[Any, ...]
) -> tuple[list[tuple[_Array, list[_Array]]], bool]: ...

class Updates:
    changing: list[Any]
    def __init__(self, variables: list[Any], slots: list[list[Any]], blocks: list[list[list[_Array]]]) -> None: ...
    def run(
        self,
        rule: str,
        pairs: list[tuple[Any, Any]],
        numbers: tuple[Any, ...],
        divisor: float,
        limit: float,
        decays: list[float],
    ) -> tuple[list[_Array], bool] | None: ...

def power(base: float, exponent: int) -> float: ...
def block(blocks: list[_Array], shape: tuple[int, ...]) -> _Array: ...
