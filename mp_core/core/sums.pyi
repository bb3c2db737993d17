from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

def row_sums(fmt: int, x: _Array, out: _Array, before: _Array | None = None) -> None: ...
def sum_middle(fmt: int, x: _Array, out: _Array, divisor: float) -> None: ...
