from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

def softmax(fmt: int, x: _Array, out: _Array, scale: float, keep: _Array | None = None) -> None: ...
def log_softmax(fmt: int, x: _Array, out: _Array) -> None: ...
def softmax_gradient(
    formats: tuple[int, int], y: _Array, d: _Array, out: _Array, scale: float, is_log: bool = False
) -> None: ...
def norm_gradient(
    formats: tuple[int, int],
    arrays: tuple[_Array, _Array | None, _Array, _Array, _Array | None],
    gamma: _Array | None,
    epsilon: float,
    is_centred: bool,
) -> None: ...
def layer_norm(
    fmt: int,
    x: _Array,
    out: _Array,
    epsilon: float,
    gamma: _Array | None = None,
    beta: _Array | None = None,
    residual: _Array | None = None,
) -> None: ...
def rms_norm(fmt: int, x: _Array, out: _Array, epsilon: float, gamma: _Array | None = None) -> None: ...
def activate(fmt: int, x: _Array, out: _Array, activation: int) -> None: ...
def all_finite(fmt: int, x: _Array) -> bool: ...
def gelu_float64(x: _Array, out: _Array) -> None: ...
