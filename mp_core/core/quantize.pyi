from typing import Any

import numpy as np

def value_range(
    x: np.ndarray[Any, Any], fmt: int, outer: int, channels: int, inner: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]: ...
def symmetric_scales(lo: np.ndarray[Any, Any], hi: np.ndarray[Any, Any], qmax: int) -> np.ndarray[Any, Any]: ...
def quantize(
    x: np.ndarray[Any, Any],
    fmt: int,
    q: np.ndarray[Any, Any],
    scale: np.ndarray[Any, Any],
    zero_point: np.ndarray[Any, Any],
    outer: int,
    channels: int,
    inner: int,
    qmin: int,
    qmax: int,
) -> None: ...
def dequantize(
    q: np.ndarray[Any, Any],
    x: np.ndarray[Any, Any],
    scale: np.ndarray[Any, Any],
    zero_point: np.ndarray[Any, Any],
    outer: int,
    channels: int,
    inner: int,
    signed: bool,
) -> None: ...
def quantize_rows(
    x: np.ndarray[Any, Any], fmt: int, q: np.ndarray[Any, Any], scale: np.ndarray[Any, Any], rows: int, length: int
) -> None: ...
