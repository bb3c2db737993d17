from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays.products.panels import PackedMatrix
from mp_core.core.names import Activation, FloatName

_Array = np.ndarray[Any, Any]

def fixed_matmul(
    a: ArrayLike,
    b: PackedMatrix,
    scales: _Array,
    zeros: _Array,
    *,
    bias: ArrayLike | None = None,
    activation: Activation | None = None,
) -> _Array: ...
def dynamic_matmul(
    a: ArrayLike,
    b: PackedMatrix,
    *,
    scale: float | None = None,
    out_dtype: FloatName | DTypeLike | None = None,
    out: _Array | None = None,
    bias: ArrayLike | None = None,
    activation: Activation | None = None,
    residual: ArrayLike | None = None,
) -> _Array: ...
