from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.core.names import CodeName, FloatName
from mp_core.quantization import QuantizedArray

CODES: dict[str, int]

class Recipe:
    def __init__(
        self,
        shape: tuple[int, ...],
        stored: tuple[int, ...],
        storage: np.dtype[Any],
        dtype: np.dtype[Any],
        code: int,
        packed: bool,
        qmin: int,
        qmax: int,
        axes: tuple[int, ...],
        group_size: int | None,
        scale_shape: tuple[int, ...],
        blocks: tuple[int, int, int, int, int, int, int, bool],
        as_they_are: bool,
        symmetric: bool,
    ) -> None: ...
    def convert(
        self,
        x: np.ndarray[Any, Any],
        fmt: int,
        q: np.ndarray[Any, Any],
        scale: np.ndarray[Any, Any],
        zero_point: np.ndarray[Any, Any] | None,
        given: bool,
        back: bool,
        packed: bool,
    ) -> None: ...

def install(
    formats: dict[np.dtype[Any], int],
    result: type[QuantizedArray],
    recipe: Callable[..., Recipe],
    long_quantize: Callable[..., QuantizedArray],
    long_dequantize: Callable[..., np.ndarray[Any, Any]],
) -> None: ...
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
def dequantize(
    q: QuantizedArray, dtype: FloatName | DTypeLike = "float32", *, out: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]: ...
def positive_and_finite(scale: np.ndarray[Any, Any]) -> bool: ...
def pack_nibbles(codes: np.ndarray[Any, Any], packed: np.ndarray[Any, Any]) -> None: ...
def unpack_nibbles(packed: np.ndarray[Any, Any], codes: np.ndarray[Any, Any], signed: bool) -> None: ...
