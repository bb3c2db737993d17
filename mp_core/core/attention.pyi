from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

def attention(
    fmt: int,
    query: _Array,
    key: _Array,
    value: _Array,
    out: _Array,
    scale: float,
    keep: _Array | None = None,
    bias: tuple[_Array, _Array] | None = None,
) -> None: ...
def ragged_attention(
    fmt: int,
    query: _Array,
    key: _Array,
    value: _Array,
    out: _Array,
    offsets: _Array,
    scale: float,
    bias: tuple[_Array, _Array] | None = None,
) -> None: ...
