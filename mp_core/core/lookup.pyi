from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

def gather(
    table: _Array, indices: _Array, out: _Array, src_format: int, dst_format: int, scale: _Array | None = None
) -> None: ...
def count_places(ids: _Array, padding: int, places: _Array) -> None: ...
