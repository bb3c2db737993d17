from typing import Any

import numpy as np

KINDS: dict[str, int]
ACTIVATIONS: dict[str | None, int]
OUT_FORMATS: dict[str, int]

class PackedMatrix:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    data: np.ndarray[Any, Any]
    column_sums: np.ndarray[Any, Any] | None
    scale: np.ndarray[Any, Any] | None
    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        data: np.ndarray[Any, Any],
        column_sums: np.ndarray[Any, Any] | None = None,
        scale: np.ndarray[Any, Any] | None = None,
    ) -> None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def ndim(self) -> int: ...
    def unpack(self) -> np.ndarray[Any, Any]: ...

def aligned_empty(nbytes: int) -> np.ndarray[Any, Any]: ...
def pack(b: np.ndarray[Any, Any], scale: np.ndarray[Any, Any] | None = None) -> PackedMatrix: ...
def product(
    a: np.ndarray[Any, Any],
    b: np.ndarray[Any, Any] | PackedMatrix,
    out: np.ndarray[Any, Any],
    kind: int,
    signed: bool,
    out_format: int,
    activation: int,
    row_scale: np.ndarray[Any, Any] | None,
    bias: np.ndarray[Any, Any] | None,
) -> None: ...
