from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

class PackedMatrix:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    data: _Array
    column_sums: _Array | None
    scale: _Array | None
    zero_point: _Array | None
    group_size: int | None
    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        data: _Array,
        column_sums: _Array | None = None,
        scale: _Array | None = None,
        zero_point: _Array | None = None,
        group_size: int | None = None,
    ) -> None: ...
    @property
    def parts(self) -> tuple[_Array, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def ndim(self) -> int: ...
    def unpack(self) -> _Array: ...
    def __matmul__(self, other: Any) -> _Array: ...
    def __rmatmul__(self, other: Any) -> _Array: ...

def aligned_empty(nbytes: int) -> _Array: ...
def pack(
    b: _Array,
    dtype: np.dtype[Any],
    scale: _Array | None = None,
    zero_point: _Array | None = None,
    group_size: int | None = None,
) -> PackedMatrix: ...
