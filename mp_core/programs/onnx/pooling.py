"""Pooling. Arrays have the channels at axis 1."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.ops.elementwise import rounded
from mp_core.programs.onnx.windows import AutoPad, Ints, windows_of
from mp_core.programs.registry import operator

__all__: list[str] = []


@operator("MaxPool", keeps_type=True)
def max_pool(
    x: Any,
    *,
    kernel_shape: Sequence[int],
    strides: Ints = None,
    pads: Ints = None,
    dilations: Ints = None,
    auto_pad: AutoPad = "NOTSET",
    ceil_mode: Literal[0, 1] = 0,
    storage_order: Literal[0, 1] = 0,
) -> tuple[Any, Any]:
    """Return the largest element of each window, and its index in the whole array."""
    w = windows_of(x, kernel_shape, strides, dilations, pads, auto_pad)
    options: dict[str, Any] = {"dilation": w.dilations, "ceil_mode": bool(ceil_mode), "data_format": "channels_first"}

    def indices() -> Any:
        places = ops.max_pool(x, w.size, w.strides, w.pads, return_indices=True, **options)[1]
        lengths = x.shape[2:]
        if storage_order:  # the first axis of places varies fastest
            order = np.arange(math.prod(lengths)).reshape(lengths[::-1]).T
            places = ops.take(np.ascontiguousarray(order).ravel(), places, 0)
        planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * len(lengths))
        return ops.add(ops.cast(places, "int64"), planes * math.prod(lengths))

    return ops.max_pool(x, w.size, w.strides, w.pads, **options), indices


@operator("AveragePool", keeps_type=True)
def average_pool(
    x: Any,
    *,
    kernel_shape: Sequence[int],
    strides: Ints = None,
    pads: Ints = None,
    dilations: Ints = None,
    auto_pad: AutoPad = "NOTSET",
    ceil_mode: Literal[0, 1] = 0,
    count_include_pad: Literal[0, 1] = 0,
) -> Any:
    """Return the mean of each window."""
    w = windows_of(x, kernel_shape, strides, dilations, pads, auto_pad)
    return ops.average_pool(
        x, w.size, w.strides, w.pads, "channels_first", dilation=w.dilations, ceil_mode=bool(ceil_mode),
        count_include_pad=bool(count_include_pad),
    )  # fmt: skip


@operator("LpPool")
def lp_pool(
    x: Any,
    *,
    kernel_shape: Sequence[int],
    p: int = 2,
    strides: Ints = None,
    pads: Ints = None,
    dilations: Ints = None,
    auto_pad: AutoPad = "NOTSET",
    ceil_mode: Literal[0, 1] = 0,
) -> Any:
    """Return the norm of each window."""
    w = windows_of(x, kernel_shape, strides, dilations, pads, auto_pad)
    count = math.prod(w.size)

    def computed(x: Any) -> Any:
        means = ops.average_pool(
            _power(ops.abs(x), p), w.size, w.strides, w.pads, "channels_first", dilation=w.dilations,
            ceil_mode=bool(ceil_mode), count_include_pad=True,
        )  # fmt: skip
        return _power(ops.multiply(means, count), 1 / p)

    return rounded(computed, x)


def _power(x: Any, exponent: float) -> Any:
    if exponent == 1:
        return x
    return ops.square(x) if exponent == 2 else ops.power(x, exponent)


def _places(x: Any) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@operator("GlobalAveragePool", keeps_type=True)
def global_average_pool(x: Any) -> Any:
    """Return the mean of all places."""
    return ops.mean(x, _places(x), keepdims=True)


@operator("GlobalMaxPool", keeps_type=True)
def global_max_pool(x: Any) -> Any:
    """Return the largest element of all places."""
    return ops.max(x, _places(x), keepdims=True)


@operator("GlobalLpPool")
def global_lp_pool(x: Any, *, p: int = 2) -> Any:
    """Return the norm of all places."""
    return rounded(lambda x: _power(ops.sum(_power(ops.abs(x), p), _places(x), keepdims=True), 1 / p), x)
