from typing import Any

import numpy as np

from mp_core.arrays.products.panels import PackedMatrix

_Array = np.ndarray[Any, Any]

ACTIVATIONS: dict[str | None, int]
REASONS: dict[int, str]

def multiply_normal(
    a: _Array,
    b: _Array | PackedMatrix,
    out_dtype: np.dtype[Any],
    out: _Array | None,
    epilogue: tuple[_Array | None, str | None, _Array | None],
    rows: tuple[_Array | None, _Array | None],
) -> _Array: ...
def multiply_windows(
    x: _Array,
    b: _Array | PackedMatrix,
    windows: Any,
    out_dtype: np.dtype[Any],
    bias: _Array | None,
    activation: str | None,
    rows: tuple[_Array | None, _Array | None],
    quantizes: bool = False,
) -> _Array: ...
def most_exact_k(unsigned_a: bool, shifted_b: bool) -> int: ...
