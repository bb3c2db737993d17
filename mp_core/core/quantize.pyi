from typing import Any

import numpy as np

HOW: dict[str, int]

def convert_blocks(
    x: np.ndarray[Any, Any],
    fmt: int,
    q: np.ndarray[Any, Any],
    code: int,
    packed: bool,
    scale: np.ndarray[Any, Any],
    zero_point: np.ndarray[Any, Any] | None,
    blocks: tuple[int, int, int, int, int, int, int, bool],
    how: int,
    qmin: int,
    qmax: int,
    back: bool,
) -> None: ...
def positive_and_finite(scale: np.ndarray[Any, Any]) -> bool: ...
def overlaps(x: np.ndarray[Any, Any], *parts: np.ndarray[Any, Any]) -> bool: ...
def quantize_rows(
    x: np.ndarray[Any, Any], fmt: int, q: np.ndarray[Any, Any], scale: np.ndarray[Any, Any], rows: int, length: int
) -> None: ...
def pack_nibbles(codes: np.ndarray[Any, Any], packed: np.ndarray[Any, Any]) -> None: ...
def unpack_nibbles(packed: np.ndarray[Any, Any], codes: np.ndarray[Any, Any], signed: bool) -> None: ...
