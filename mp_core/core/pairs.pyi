from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

BOOL: int
FUNCTIONS: dict[str, int]
RANDOM: dict[str, int]
INTEGERS: dict[np.dtype[Any], int]
SINGLE: int
SIGNED: int
UNSIGNED: int
DOUBLE: int

def elementwise(
    name: str,
    activation: int,
    operands: tuple[_Array, ...],
    formats: tuple[int, ...],
    out: _Array,
    out_format: int,
    wide: int,
) -> None: ...
def add_windows(fmt: int, x: _Array, to: _Array) -> None: ...
def randomize(
    kind: str,
    fmt: int,
    key: _Array,
    out: _Array,
    x: _Array | None = None,
    rate: float = 0.0,
    shared: tuple[int, ...] = (),
    rows_before: _Array | None = None,
) -> None: ...
def round_randomly(
    fmt: int,
    out_format: int,
    key: _Array,
    x: _Array,
    out: _Array,
    stream: tuple[int, int, int] = (0, 0, 0),
    saturate: bool = False,
) -> None: ...
def turn(
    fmt: int,
    x: _Array,
    angles: _Array,
    out: _Array,
    length: int,
    offsets: _Array | None = None,
    few: int = 0,
    past: _Array | None = None,
) -> None: ...
