from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

POOLINGS: dict[str, int]
WINDOWS: dict[str, int]

def pool(
    fmt: int, how: int, x: _Array, offsets: _Array, weights: _Array, skipped: int, out: _Array, column: int
) -> None: ...
def pooling_gradient(
    fmt: int, how: int, d: _Array, offsets: _Array, x: _Array, skipped: int, out: _Array, column: int
) -> None: ...
def pool_windows(
    what: str,
    window: tuple[int, ...],
    step: tuple[int, ...],
    formats: dict[np.dtype[Any], int],
    out: _Array,
    x: _Array | None = None,
    d: _Array | None = None,
) -> None: ...
def multiply_channels(
    x: _Array,
    weights: _Array,
    windows: Any,
    bias: _Array | None,
    activation: int,
    formats: dict[np.dtype[Any], int],
    out: _Array,
) -> None: ...
