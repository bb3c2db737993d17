from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays.quantization.array import QuantizedArray
from mp_core.core.names import CodeName, FloatName

def quantize(
    x: ArrayLike,
    *,
    axis: int | Sequence[int] | None = None,
    dtype: CodeName | DTypeLike = "int8",
    symmetric: bool = True,
    group_size: int | None = None,
    scale: ArrayLike | None = None,
    zero_point: ArrayLike | None = None,
    out: QuantizedArray | None = None,
) -> QuantizedArray: ...
def quantize_blocks(
    name: str,
    x: ArrayLike,
    axis: int | Sequence[int] | None = None,
    group_size: int | None = None,
    out: QuantizedArray | None = None,
    whole: float | None = None,
    **others: tuple[Any, Any],
) -> QuantizedArray: ...
def dequantize(
    q: QuantizedArray, dtype: FloatName | DTypeLike = "float32", *, out: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]: ...
