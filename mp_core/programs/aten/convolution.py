"""Convolutions. Arrays have the channels at axis 1; operations compute with the channels last, and return views."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.ops.convolution import convolve
from mp_core.ops.convolution_specs import windows_over
from mp_core.ops.gradients.registry import rule_of
from mp_core.programs.registry import operator

__all__ = ["Sizes", "sizes"]

Sizes = int | Sequence[int]


def sizes(given: Sizes, rank: int) -> tuple[int, ...]:
    """Return a number for each spatial axis."""
    found = (given,) if isinstance(given, int) else tuple(given)
    return found * rank if len(found) == 1 else found


def _pairs(padding: Sizes, rank: int) -> list[tuple[int, int]]:
    return [(width, width) for width in sizes(padding, rank)]


@operator("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
def conv(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Any = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Any:
    """Return the convolution with a kernel of shape (filters, channels / groups, size ...)."""
    rank, places = weight.ndim - 2, range(2, weight.ndim)
    common = {
        "strides": sizes(stride, rank),
        "padding": padding if isinstance(padding, str) else _pairs(padding, rank),
        "data_format": "channels_first",
        "dilation_rate": sizes(dilation, rank),
        "bias": bias,
    }
    if weight.shape[1] > 1 or groups == 1:
        return ops.conv(input, ops.transpose(weight, (*places, 1, 0)), **common)
    kernel = ops.reshape(ops.transpose(weight, (*places, 0, 1)), (*weight.shape[2:], groups, -1))
    return ops.depthwise_conv(input, kernel, **common)


@operator("aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding")
def conv_padding(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Literal["same", "valid"] = "valid",
    dilation: Sizes = 1,
    groups: int = 1,
) -> Any:
    """Return the convolution; with "same" padding, which needs a stride of 1, the result has the input's lengths."""
    return conv(input, weight, bias, stride, padding, dilation, groups)


@operator("aten.convolution.default")
def convolution(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Any:
    """Return the convolution; the transposed one is the gradient of a convolution's input."""
    if not transposed:
        return conv(input, weight, bias, stride, padding, dilation, groups)
    given = [sizes(each, input.ndim - 2) for each in (stride, padding, dilation, output_padding)]
    lengths = [
        (n - 1) * step - 2 * width + rate * (span - 1) + 1 + more
        for n, span, step, width, rate, more in zip(input.shape[2:], weight.shape[2:], *given, strict=True)
    ]
    whole = np.broadcast_to(np.zeros((), input.dtype), (len(input), weight.shape[1] * groups, *lengths))
    found = _gradients(input, whole, weight, stride, padding, dilation, groups)[0]()
    return found if bias is None else ops.add(found, ops.reshape(bias, (-1, *(1,) * len(lengths))))


@operator("aten.convolution_backward.default")
def convolution_gradients(
    grad_output: Any,
    input: Any,
    weight: Any,
    bias_sizes: Any,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """Return the gradients of input, kernel and bias, each if it is used."""
    if not transposed:
        return _gradients(grad_output, input, weight, stride, padding, dilation, groups)
    _, of_weight, _ = _gradients(input, grad_output, weight, stride, padding, dilation, groups)
    return [
        lambda: conv(grad_output, weight, None, stride, padding, dilation, groups),
        of_weight,
        lambda: ops.sum(grad_output, (0, *range(2, grad_output.ndim))),
    ]


def _gradients(
    grad_output: Any, input: Any, weight: Any, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> list[Callable[[], Any]]:
    """Return functions that compute the gradients of input, kernel and bias of a convolution."""
    rank, width = weight.ndim - 2, weight.shape[0] // groups
    windows = windows_over(
        input.shape[2:], weight.shape[2:], sizes(stride, rank), _pairs(padding, rank), sizes(dilation, rank)
    )
    kernel = ops.transpose(weight, (*range(2, weight.ndim), 1, 0))
    matrix = ops.reshape(kernel, (-1, weight.shape[0]))
    if groups > 1:
        matrix = ops.swapaxes(ops.reshape(matrix, (-1, groups, width)), 0, 1)
    x, d = ops.moveaxis(input, 1, -1), ops.moveaxis(grad_output, 1, -1)
    found = rule_of(convolve)(d, None, x, matrix, windows=windows)

    def of_weight() -> Any:
        of_matrix = found["b"].make(weight.dtype, None)
        rows = ops.swapaxes(of_matrix, 0, 1) if groups > 1 else of_matrix
        return ops.transpose(ops.reshape(rows, kernel.shape), (rank + 1, rank, *range(rank)))

    return [
        lambda: ops.moveaxis(found["a"](input.dtype), -1, 1),
        of_weight,
        lambda: found["bias"](grad_output.dtype),
    ]
