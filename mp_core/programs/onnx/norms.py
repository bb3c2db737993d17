"""Normalizations. Statistics are computed in float32 and rounded once."""

from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.ops.elementwise import rounded
from mp_core.programs.onnx.arguments import cast_to
from mp_core.programs.registry import operator

__all__: list[str] = []


def _by_channel(x: Any, parameter: Any) -> Any:
    """Return a vector with a number for each channel, at axis 1, in the shape that `x` is multiplied by."""
    return ops.reshape(parameter, (-1, *(1,) * (x.ndim - 2)))


def _affine(x: Any, scale: Any, shift: Any) -> Any:
    """Return ``x * scale + shift``, rounded once."""
    return rounded(lambda x, scale, shift: ops.add(ops.multiply(x, scale), shift), x, scale, shift)


@operator("BatchNormalization", keeps_type=True)
def batch_norm(
    x: Any,
    scale: Any,
    shift: Any,
    mean: Any,
    variance: Any,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: Literal[0] = 0,
    spatial: Literal[1] = 1,
) -> Any:
    """Return the input normalized by given means and variances, channel by channel."""
    del momentum, training_mode, spatial

    def computed(x: Any, scale: Any, shift: Any, mean: Any, variance: Any) -> Any:
        factor = ops.multiply(scale, ops.rsqrt(ops.add(variance, epsilon)))
        offset = ops.subtract(shift, ops.multiply(mean, factor))
        return ops.add(ops.multiply(x, _by_channel(x, factor)), _by_channel(x, offset))

    return rounded(computed, x, scale, shift, mean, variance)


def _last(x: Any, axis: int) -> tuple[int, ...]:
    return tuple(range(axis % x.ndim, x.ndim))


@operator("LayerNormalization", keeps_type=True)
def layer_norm(
    x: Any, scale: Any, shift: Any = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: Literal[1] = 1
) -> tuple[Any, ...]:
    """Return the input normalized over its last axes, and the means and reciprocal deviations."""
    del stash_type
    axes = _last(x, axis)

    def wide() -> Any:
        return ops.cast(x, "float64" if x.dtype == np.float64 else "float32")

    return (
        ops.layer_norm(x, scale, shift, axis=axes, epsilon=epsilon),
        lambda: ops.mean(wide(), axes, keepdims=True),
        lambda: ops.rsqrt(ops.add(ops.var(wide(), axes, True), epsilon)),
    )


@operator("RMSNormalization", keeps_type=True)
def rms_norm(x: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: Literal[1] = 1) -> Any:
    """Return the input divided by its root mean square over its last axes, times a scale."""
    del stash_type
    return ops.rms_norm(x, scale, axis=_last(x, axis), epsilon=epsilon)


def _groups(x: Any, count: int, epsilon: float) -> Any:
    """Return the input normalized over groups of channels and all places."""
    groups = ops.reshape(x, (x.shape[0], count, -1))
    return ops.reshape(ops.layer_norm(groups, epsilon=epsilon), x.shape)


@operator("InstanceNormalization")
def instance_norm(x: Any, scale: Any, shift: Any, *, epsilon: float = 1e-5) -> Any:
    """Return each channel of each example, normalized over its places."""
    return group_norm(x, scale, shift, num_groups=x.shape[1], epsilon=epsilon)


@operator("GroupNormalization", since=21)
def group_norm(
    x: Any, scale: Any, shift: Any, *, num_groups: int, epsilon: float = 1e-5, stash_type: Literal[1] = 1
) -> Any:
    """Return the input normalized over groups of channels and all places, times a scale of each channel."""
    del stash_type

    def computed(x: Any, scale: Any, shift: Any) -> Any:
        return _affine(_groups(x, num_groups, epsilon), _by_channel(x, scale), _by_channel(x, shift))

    return rounded(computed, x, scale, shift)


@operator("GroupNormalization", since=18)
def group_norm_of_groups(x: Any, scale: Any, shift: Any, *, num_groups: int, epsilon: float = 1e-5) -> Any:
    """Return the input normalized over groups of channels and all places, times a scale of each group."""
    per = x.shape[1] // num_groups
    return group_norm(x, ops.repeat(scale, per), ops.repeat(shift, per), num_groups=num_groups, epsilon=epsilon)


@operator("LpNormalization")
def lp_norm(x: Any, *, axis: int = -1, p: Literal[1, 2] = 2) -> Any:
    """Return the input divided by its norm along an axis; zeros where the norm is zero."""

    def computed(x: Any) -> Any:
        sums = ops.sum(ops.abs(x) if p == 1 else ops.square(x), axis, keepdims=True)
        norm = sums if p == 1 else ops.sqrt(sums)
        return ops.divide(x, ops.where(ops.equal(norm, 0), ops.ones_like(norm), norm))

    return rounded(computed, x)


@operator("MeanVarianceNormalization")
def mean_variance_norm(x: Any, *, axes: tuple[int, ...] = (0, 2, 3)) -> Any:
    """Return the input with mean 0 and variance 1 over some axes."""

    def computed(x: Any) -> Any:
        centered = ops.subtract(x, ops.mean(x, axes, keepdims=True))
        return ops.divide(centered, ops.add(ops.sqrt(ops.mean(ops.square(centered), axes, keepdims=True)), 1e-9))

    return rounded(computed, x)


@operator("LRN")
def local_response_norm(x: Any, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Any:
    """Return the input divided by a power of the sum of squares of neighbouring channels."""

    def computed(x: Any) -> Any:
        before, channels = (size - 1) // 2, x.shape[1]
        pairs = [(before, size - 1 - before) if axis == 1 else (0, 0) for axis in range(x.ndim)]
        squares = ops.pad(ops.square(x), pairs)
        total = squares[:, :channels]
        for place in range(1, size):
            total = ops.add(total, squares[:, place : place + channels])
        factor = ops.add(ops.multiply(total, alpha / size), bias)
        return ops.divide(x, ops.power(factor, beta))

    return cast_to(rounded(computed, x), x.dtype)
