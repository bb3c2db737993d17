"""Pooling. Arrays have the channels at axis 1."""

from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.programs.aten.convolution import Sizes, first, last, sizes
from mp_core.programs.registry import operator

__all__: list[str] = []


def _windows(
    x: Any, kernel_size: Sizes, stride: Sizes, padding: Sizes, ceil_mode: bool
) -> tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the lengths of windows, the steps between them, and the padding that is asked for and that is needed.

    With `ceil_mode`, the last window may end after the padding; then more is needed.
    """
    rank = x.ndim - 2
    size = sizes(kernel_size, rank)
    steps, pads = sizes(stride, rank) if stride or stride == 0 else size, sizes(padding, rank)
    asked = [(0, 0), *((pad, pad) for pad in pads), (0, 0)]
    needed = list(asked)
    if ceil_mode:
        for axis, (length, span, step, pad) in enumerate(zip(x.shape[2:], size, steps, pads, strict=True), 1):
            count = -(-(length + 2 * pad - span) // step) + 1
            count -= (count - 1) * step >= length + pad
            needed[axis] = (pad, max((count - 1) * step + span - length - pad, pad))
    return size, steps, asked, needed


def _padded(x: Any, pads: list[tuple[int, int]], value: float) -> Any:
    return ops.pad(x, pads, value) if any(map(any, pads)) else x


@operator("aten.max_pool2d.default", "aten.max_pool1d.default")
def max_pool(
    self: Any,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    dilation: Literal[1] = 1,
    ceil_mode: bool = False,
) -> Any:
    """Return the largest element of each window."""
    size, steps, _, needed = _windows(self, kernel_size, stride, padding, ceil_mode)
    return first(ops.window_maxima(_padded(last(self), needed, -np.inf), size, steps))


@operator("aten.avg_pool2d.default", "aten.avg_pool1d.default")
def avg_pool(
    self: Any,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Return the mean of each window; elements of the padding count, those after it do not."""
    size, steps, asked, needed = _windows(self, kernel_size, stride, padding, ceil_mode)
    x = last(self)
    count: Any = divisor_override or int(np.prod(size))
    if divisor_override is None and (needed != asked or not count_include_pad):
        ones = np.ones((1, *x.shape[1:-1], 1), np.float32)
        rest = [(0, needed[axis][1] - asked[axis][1]) for axis in range(x.ndim)]
        counted = np.pad(ones, asked, constant_values=float(count_include_pad))
        count = ops.window_sums(np.pad(counted, rest), size, steps)
    return ops.cast(first(ops.divide(ops.window_sums(_padded(x, needed, 0.0), size, steps), count)), self.dtype)


@operator("aten.adaptive_avg_pool2d.default", "aten._adaptive_avg_pool2d.default", "aten.adaptive_avg_pool1d.default")
def adaptive_avg_pool(self: Any, output_size: Sizes) -> Any:
    """Return means of windows, as many as `output_size` says; with equal windows only."""
    rank = self.ndim - 2
    lengths, counts = self.shape[2:], sizes(output_size, rank)
    if all(count == 1 for count in counts):
        return ops.mean(self, tuple(range(2, self.ndim)), keepdims=True)
    if any(length % count for length, count in zip(lengths, counts, strict=True)):
        raise ValueError(f"`output_size` must divide the lengths {lengths}; received {counts}")
    size = [length // count for length, count in zip(lengths, counts, strict=True)]
    return avg_pool(self, size)
