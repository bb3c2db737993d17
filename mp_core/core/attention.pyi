from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]
_Ragged = tuple[_Array, tuple[_Array, float] | None, tuple[_Array, _Array, _Array, _Array, int, int] | None]

def attention(
    fmt: int,
    operands: tuple[_Array, _Array, _Array],
    out: _Array,
    scale: tuple[float, float],
    reach: tuple[int, int],
    keep: _Array | None = None,
    bias: tuple[_Array, _Array] | None = None,
    ragged: _Ragged | None = None,
) -> None: ...
def attention_gradient(
    fmt: int,
    operands: tuple[_Array, _Array, _Array, _Array],
    out: tuple[_Array, ...],
    scale: tuple[float, float],
    reach: tuple[int, int],
    keep: _Array | None = None,
    bias: tuple[_Array, _Array] | None = None,
    ragged: _Ragged | None = None,
) -> None: ...
