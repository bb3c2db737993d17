"""Pooling. Arrays have the channels at axis 1."""

from typing import Any, Literal

from mp_core import ops
from mp_core.programs.aten.convolution import Sizes, sizes
from mp_core.programs.registry import operator

__all__: list[str] = []


def _common(x: Any, kernel_size: Sizes, stride: Sizes, padding: Sizes, ceil_mode: bool) -> dict[str, Any]:
    """Return the arguments of a pooling operation."""
    rank = x.ndim - 2
    size = sizes(kernel_size, rank)
    return {
        "pool_size": size,
        "strides": sizes(stride, rank) if stride else size,
        "padding": [(width, width) for width in sizes(padding, rank)],
        "data_format": "channels_first",
        "ceil_mode": ceil_mode,
    }


@operator("aten.max_pool2d.default", "aten.max_pool1d.default")
def max_pool(
    self: Any,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Any:
    """Return the largest element of each window."""
    rates = sizes(dilation, self.ndim - 2)
    return ops.max_pool(self, **_common(self, kernel_size, stride, padding, ceil_mode), dilation=rates)


@operator("aten.max_pool2d_with_indices.default")
def max_pool_with_indices(
    self: Any,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Any:
    """Return the largest element of each window, and its place."""
    rates, common = sizes(dilation, self.ndim - 2), _common(self, kernel_size, stride, padding, ceil_mode)
    return [
        ops.max_pool(self, **common, dilation=rates),
        lambda: ops.max_pool(self, **common, dilation=rates, return_indices=True)[1],
    ]


@operator("aten.avg_pool2d.default", "aten.avg_pool1d.default")
def avg_pool(
    self: Any,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Literal[None] = None,
) -> Any:
    """Return the mean of each window; elements of the padding count, those after it do not."""
    common = _common(self, kernel_size, stride, padding, ceil_mode)
    return ops.average_pool(self, **common, count_include_pad=count_include_pad)


@operator("aten.adaptive_avg_pool2d.default", "aten._adaptive_avg_pool2d.default", "aten.adaptive_avg_pool1d.default")
def adaptive_avg_pool(self: Any, output_size: Sizes) -> Any:
    """Return means of windows, as many as `output_size` says."""
    lengths, counts = self.shape[2:], sizes(output_size, self.ndim - 2)
    if all(count == 1 for count in counts):
        return ops.mean(self, tuple(range(2, self.ndim)), keepdims=True)
    if any(length % count for length, count in zip(lengths, counts, strict=True)):
        return ops.adaptive_average_pool(self, counts, "channels_first")
    return avg_pool(self, [length // count for length, count in zip(lengths, counts, strict=True)])
