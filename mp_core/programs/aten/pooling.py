"""Pooling. Arrays have the channels at axis 1."""

from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.programs.aten.convolution import Sizes, first, last, sizes
from mp_core.programs.registry import operator

__all__: list[str] = []


@operator("aten.max_pool2d.default", "aten.max_pool1d.default")
def max_pool(
    self: Any,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    dilation: Literal[1] = 1,
    ceil_mode: Literal[False] = False,
) -> Any:
    """Return the largest element of each window."""
    rank = self.ndim - 2
    pads = [(width, width) for width in sizes(padding, rank)]
    x = last(self)
    x = ops.pad(x, [(0, 0), *pads, (0, 0)], -np.inf) if any(map(any, pads)) else x
    size = sizes(kernel_size, rank)
    return first(ops.window_maxima(x, size, sizes(stride, rank) if stride else size))


@operator("aten.avg_pool2d.default", "aten.avg_pool1d.default")
def avg_pool(
    self: Any,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    ceil_mode: Literal[False] = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Return the mean of each window."""
    rank = self.ndim - 2
    pads = [(0, 0), *((width, width) for width in sizes(padding, rank)), (0, 0)]
    size = sizes(kernel_size, rank)
    steps = sizes(stride, rank) if stride else size

    def sums(x: Any) -> Any:
        return ops.window_sums(ops.pad(x, pads) if any(map(any, pads)) else x, size, steps)

    x = last(self)
    if count_include_pad or divisor_override:
        count: Any = divisor_override or int(np.prod(size))
    else:
        count = sums(np.ones((1, *x.shape[1:-1], 1), np.float32))
    return ops.cast(first(ops.divide(sums(x), count)), self.dtype)


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
