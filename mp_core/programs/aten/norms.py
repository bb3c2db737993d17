"""Normalizations and softmax."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.programs.aten.elementwise import cast
from mp_core.programs.registry import operator

__all__: list[str] = []


@operator("aten.softmax.int", "aten._softmax.default", "aten._safe_softmax.default")
def softmax(self: Any, dim: int, half_to_float: bool = False, dtype: str | None = None) -> Any:
    """Return ``exp(x)`` divided by its sum along an axis."""
    return ops.softmax(cast(self, dtype), axis=dim)


@operator("aten.log_softmax.int", "aten._log_softmax.default")
def log_softmax(self: Any, dim: int, half_to_float: bool = False, dtype: str | None = None) -> Any:
    """Return the logarithm of the softmax."""
    return ops.log_softmax(cast(self, dtype), axis=dim)


@operator("aten.layer_norm.default")
def layer_norm(
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    """Return the input normalized over its last axes."""
    return ops.layer_norm(input, weight, bias, axis=_last(normalized_shape), epsilon=eps)


@operator("aten.native_layer_norm.default")
def native_layer_norm(input: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    """Return the normalized input, the means, and the reciprocals of the standard deviations."""
    axes = _last(normalized_shape)
    return [
        layer_norm(input, normalized_shape, weight, bias, eps),
        lambda: ops.mean(cast(input, "float32"), axes, keepdims=True),
        lambda: ops.rsqrt(ops.add(ops.var(cast(input, "float32"), axes, True), eps)),
    ]


@operator("aten.rms_norm.default", "aten._fused_rms_norm.default")
def rms_norm(input: Any, normalized_shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    """Return the input divided by its root mean square over the last axes."""
    epsilon = float(np.finfo(np.float32).eps) if eps is None else eps
    return ops.rms_norm(input, weight, axis=_last(normalized_shape), epsilon=epsilon)


@operator("aten.rms_norm.last")
def rms_norm_of_rows(input: Any, weight: Any = None, epsilon: float = 0.0) -> Any:
    """Return the input divided by its root mean square over the last axis: the name of a pattern, not of torch."""
    return ops.rms_norm(input, weight, epsilon=epsilon)


def _last(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(-len(shape), 0))


@operator("aten.group_norm.default")
def group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Any:
    """Return the input normalized over groups of channels and all places."""
    return ops.group_normalization(input, num_groups, 1, weight, bias, eps)


@operator("aten.native_group_norm.default")
def native_group_norm(
    input: Any, weight: Any, bias: Any, count: int, channels: int, places: int, group: int, eps: float
) -> Any:
    """Return the normalized input, the means, and the reciprocals of the standard deviations."""

    def groups() -> Any:
        return ops.reshape(cast(input, "float32"), (count, group, -1))

    return [
        group_norm(input, group, weight, bias, eps),
        lambda: ops.mean(groups(), -1),
        lambda: ops.rsqrt(ops.add(ops.var(groups(), -1), eps)),
    ]


@operator("aten._native_batch_norm_legit_no_training.default")
def batch_norm_of_averages(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Any:
    """Return the input normalized by moving averages, channel by channel, and two empty arrays."""
    found = ops.batch_normalization(input, running_mean, running_var, 1, bias, weight, eps)
    return [found, np.zeros(0, np.float32), np.zeros(0, np.float32)]


@operator("aten._native_batch_norm_legit_functional.default")
def batch_norm_of_batch(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: Literal[True],
    momentum: float,
    eps: float,
) -> Any:
    """Return the input normalized by statistics of the batch, these, and the new moving averages."""
    found, mean, deviation, variance = _normalized(input, weight, bias, eps)
    count = input.size // input.shape[1]

    def moved(average: Any, value: Any) -> Any:
        return ops.add(ops.multiply(average, 1 - momentum), ops.multiply(value, momentum))

    return [
        found,
        mean,
        deviation,
        lambda: moved(running_mean, mean),
        lambda: moved(running_var, ops.multiply(variance, count / max(count - 1, 1))),
    ]


@operator("aten._native_batch_norm_legit.no_stats")
def batch_norm_without_averages(
    input: Any, weight: Any, bias: Any, training: Literal[True], momentum: float, eps: float
) -> Any:
    """Return the input normalized by statistics of the batch, the means, and the reciprocals of deviations."""
    return list(_normalized(input, weight, bias, eps)[:3])


def _normalized(input: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any, Any]:
    """Return the input normalized by statistics of the batch; means, reciprocals of deviations, and variances."""
    axes, x = (0, *range(2, input.ndim)), cast(input, "float32")
    mean, variance = ops.mean(x, axes), ops.var(x, axes)
    found = ops.batch_normalization(input, mean, variance, 1, bias, weight, eps)
    return found, mean, lambda: ops.rsqrt(ops.add(variance, eps)), variance
