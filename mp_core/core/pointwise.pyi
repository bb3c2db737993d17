from typing import Any

import numpy as np

_Array = np.ndarray[Any, Any]

def softmax(fmt: int, x: _Array, out: _Array, scale: float, keep: _Array | None = None) -> None: ...
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
