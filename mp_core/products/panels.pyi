from typing import Any, TypeVar

import numpy as np

_Array = np.ndarray[Any, Any]

class Panels:
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
    def nbytes(self) -> int: ...
    @property
    def ndim(self) -> int: ...
    def unpack(self) -> _Array: ...

_AnyPanels = TypeVar("_AnyPanels", bound=Panels)

def aligned_empty(nbytes: int) -> _Array: ...
def pack(
    kind: type[_AnyPanels],
    b: _Array,
    dtype: np.dtype[Any],
    scale: _Array | None = None,
    zero_point: _Array | None = None,
    group_size: int | None = None,
) -> _AnyPanels: ...
