from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.core.names import Activation, FloatName
from mp_core.core.packed import PackedMatrix

_Array = np.ndarray[Any, Any]

OUT_FORMATS: dict[str, int]
ACTIVATIONS: dict[str | None, int]

def product(
    a: _Array,
    b: _Array | PackedMatrix,
    out: _Array,
    bias: _Array | None,
    activation: str | None,
    residual: _Array | None,
    row_scale: _Array | None,
    row_zero: _Array | None,
) -> None: ...
def install(
    dtypes: dict[str, np.dtype[Any]],
    results: dict[tuple[str, str], str],
    long_way: Callable[..., _Array],
    long_dynamic: Callable[..., _Array],
) -> None: ...
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
def fixed_matmul(
    a: ArrayLike,
    b: PackedMatrix,
    steps: _Array,
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
