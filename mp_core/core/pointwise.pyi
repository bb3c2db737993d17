from typing import Any

import numpy as np

def softmax(
    x: np.ndarray[Any, Any],
    in_format: int,
    out: np.ndarray[Any, Any],
    out_format: int,
    scale: float,
    keep: np.ndarray[Any, Any] | None = None,
) -> None: ...
def layer_norm(
    x: np.ndarray[Any, Any],
    in_format: int,
    out: np.ndarray[Any, Any],
    out_format: int,
    epsilon: float,
    gamma: np.ndarray[Any, Any] | None = None,
    beta: np.ndarray[Any, Any] | None = None,
    residual: np.ndarray[Any, Any] | None = None,
) -> None: ...
def activate(
    x: np.ndarray[Any, Any], in_format: int, out: np.ndarray[Any, Any], out_format: int, activation: int
) -> None: ...
def all_finite(x: np.ndarray[Any, Any], in_format: int) -> bool: ...
def gelu_float64(x: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> None: ...
