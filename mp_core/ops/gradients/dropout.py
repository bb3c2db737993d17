"""The rule of dropout."""

from typing import Any

from mp_core.arrays import Array, cast
from mp_core.ops.gradients.registry import gradient_of
from mp_core.ops.random import dropout

__all__: list[str] = []


@gradient_of(dropout)
def _(
    d: Array, out: Array, x: Any, key: Any, rate: Any, noise_shape: Any = None, rows_before: Any = None
) -> dict[str, Any]:
    return {"x": lambda dtype: cast(dropout(d, key, rate, noise_shape, rows_before), dtype)}
