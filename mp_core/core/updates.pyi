from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

RULES: dict[str, tuple[int, int]]
STREAM: int

def update_each(
    rule: str, items: list[tuple[Any, ...]], numbers: tuple[Any, ...], key: _Array | None = None
) -> tuple[list[list[_Array]], bool]: ...

class Updates:
    changing: list[Any]
    def __init__(
        self, variables: list[Any], slots: list[list[Any]], rests: list[Any], blocks: list[list[list[_Array]]]
    ) -> None: ...
    def run(
        self,
        rule: str,
        pairs: list[tuple[Any, Any]],
        numbers: tuple[Any, ...],
        divisor: float,
        limit: float,
        decays: list[float],
        key: _Array | None = None,
    ) -> tuple[list[_Array], bool] | None: ...

def power(base: float, exponent: int) -> float: ...
def block(blocks: list[_Array], shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Array: ...
