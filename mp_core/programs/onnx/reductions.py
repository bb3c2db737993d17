"""Sums, means, maxima and norms along axes, and running sums."""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.ops.elementwise import rounded
from mp_core.programs.onnx.arguments import axes_of, cast_to, is_float, value_of
from mp_core.programs.registry import Static, operator

__all__: list[str] = []


def _reduction(name: str, function: Callable[[Any, tuple[int, ...]], Any]) -> None:
    """Register a function that reduces axes, and keeps them with length 1."""

    def reduced(x: Any, axes: Static = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        along = axes_of(axes, x.ndim)
        if not along and not noop_with_empty_axes:
            along = tuple(range(x.ndim))
        found = cast_to(function(x, along), x.dtype)
        return found if keepdims else ops.reshape(found, [n for axis, n in enumerate(x.shape) if axis not in along])

    operator(name, keeps_type=True)(reduced)


def _sum(x: Any, axes: tuple[int, ...]) -> Any:
    return ops.sum(x, axes, keepdims=True) if axes else x


def _of_floats(function: Callable[[Any, tuple[int, ...]], Any]) -> Callable[[Any, tuple[int, ...]], Any]:
    """Return a reduction that computes in float32 or float64 and rounds once."""
    return lambda x, axes: rounded(lambda wide: function(wide, axes), x) if is_float(x) else function(x, axes)


def _mean(x: Any, axes: tuple[int, ...]) -> Any:
    return ops.mean(x, axes, keepdims=True) if axes else x


def _prod(x: Any, axes: tuple[int, ...]) -> Any:
    rows = ops.moveaxis(x, axes, tuple(range(len(axes)))) if axes else x[None]
    rows = ops.reshape(
        rows, (math.prod(x.shape[axis] for axis in axes), *[1 if i in axes else n for i, n in enumerate(x.shape)])
    )
    return reduce(ops.multiply, rows) if len(rows) else np.ones(rows.shape[1:], x.dtype)


def _log_sum_exp(x: Any, axes: tuple[int, ...]) -> Any:
    is_empty = any(x.shape[axis] == 0 for axis in axes)
    return ops.log(_sum(x, axes)) if is_empty else ops.logsumexp(x, axes, True) if axes else x


def _extreme(function: Any, empty: float) -> Callable[[Any, tuple[int, ...]], Any]:
    def found(x: Any, axes: tuple[int, ...]) -> Any:
        if not axes:
            return x
        if any(x.shape[axis] == 0 for axis in axes):
            return np.full(
                [1 if axis in axes else n for axis, n in enumerate(x.shape)], _limit(x.dtype, empty), x.dtype
            )
        return function(x, axes, keepdims=True)

    return found


def _limit(dtype: Any, infinity: float) -> Any:
    """Return the smallest or largest number of a type, for the sign of an infinity."""
    if is_float(np.empty(0, dtype)):
        return infinity
    if dtype == np.bool_:
        return infinity > 0
    return np.iinfo(dtype).max if infinity > 0 else np.iinfo(dtype).min


for _name, _function in {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceProd": _of_floats(_prod),
    "ReduceMax": _extreme(ops.max, -np.inf),
    "ReduceMin": _extreme(ops.min, np.inf),
    "ReduceL1": _of_floats(lambda x, axes: _sum(ops.abs(x), axes)),
    "ReduceL2": _of_floats(lambda x, axes: ops.sqrt(_sum(ops.square(x), axes))),
    "ReduceSumSquare": _of_floats(lambda x, axes: _sum(ops.square(x), axes)),
    "ReduceLogSum": _of_floats(lambda x, axes: ops.log(_sum(x, axes))),
    "ReduceLogSumExp": _of_floats(_log_sum_exp),
}.items():
    _reduction(_name, _function)


@operator("CumSum")
def cum_sum(x: Any, axis: Static, *, exclusive: int = 0, reverse: int = 0) -> Any:
    """Return running sums along an axis, with or without the element itself."""
    along = int(value_of(np.ravel(axis)[0])) % x.ndim
    x = ops.flip(x, along) if reverse else x
    found = ops.cumsum(x, along)
    if exclusive:
        before = [(1, 0) if i == along else (0, 0) for i in range(x.ndim)]
        found = ops.pad(found, before)[tuple(slice(n) for n in x.shape)]
    return ops.flip(found, along) if reverse else found
