from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.core.names import Activation, FloatName

_Array = np.ndarray[Any, Any]

def matmul(
    a: Any,
    b: Any,
    *,
    out_dtype: FloatName | Literal["int32"] | DTypeLike | None = None,
    out: _Array | None = None,
    bias: ArrayLike | None = None,
    activation: Activation | None = None,
    residual: ArrayLike | None = None,
) -> _Array: ...
