from typing import Any

import numpy as np

from mp_core.arrays.quantization.codes import Codes, Plan

_Array = np.ndarray[Any, Any]

KINDS: dict[str, int]

class QuantizedFields:
    values: _Array
    scale: Any
    zero_point: Any
    axis: Any
    group_size: int | None
    dtype: Any
    shape: Any

    def __init__(
        self,
        values: _Array,
        scale: _Array,
        zero_point: _Array | None,
        axis: tuple[int, ...],
        group_size: int | None,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
    ) -> None: ...

class Recipe:
    codes: Codes
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    scale_shape: tuple[int, ...]
    group_size: int | None
    as_they_are: bool
    with_zeros: bool

    def __init__(
        self, shape: tuple[int, ...], codes: Codes, stored: tuple[int, ...], plan: Plan, symmetric: bool
    ) -> None: ...
    def convert(
        self, x: _Array, fmt: int, values: _Array, q: QuantizedFields, given: bool, back: bool, packed: bool
    ) -> None: ...

def positive_and_finite(scale: _Array) -> bool: ...
def pack_nibbles(codes: _Array, packed: _Array) -> None: ...
def unpack_nibbles(packed: _Array, codes: _Array, signed: bool) -> None: ...
