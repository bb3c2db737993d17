"""Convolutions. Arrays have the channels at axis 1; operations have them last, so they get views."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from mp_core import ops
from mp_core.ops.elementwise import concatenated
from mp_core.ops.windows import windows_of
from mp_core.programs.registry import operator

__all__: list[str] = []

Sizes = int | Sequence[int]


def sizes(given: Sizes, rank: int) -> tuple[int, ...]:
    """Return a number for each spatial axis."""
    found = (given,) if isinstance(given, int) else tuple(given)
    return found * rank if len(found) == 1 else found


def last(x: Any) -> Any:
    """Return the view of an array with the channels last."""
    return ops.moveaxis(x, 1, -1)


def first(x: Any) -> Any:
    """Return the view of an array with the channels at axis 1."""
    return ops.moveaxis(x, -1, 1)


@operator("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
def conv(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Any:
    """Return the convolution with a kernel of shape (filters, channels / groups, ...)."""
    rank = weight.ndim - 2
    x = last(input)
    pads = [(width, width) for width in sizes(padding, rank)]
    if any(map(any, pads)):
        x = ops.pad(x, [(0, 0), *pads, (0, 0)])
    windows = windows_of(x, weight.shape[2:], sizes(stride, rank), sizes(dilation, rank))
    kernel = ops.transpose(weight, (*range(2, weight.ndim), 1, 0))
    width, parts = weight.shape[0] // groups, []
    depth = weight.shape[1]
    for group in range(groups):
        part = windows[..., group * depth : (group + 1) * depth]
        rows = ops.reshape(part, (*part.shape[: rank + 1], math.prod(part.shape[rank + 1 :])))
        columns = slice(group * width, (group + 1) * width)
        matrix = ops.reshape(kernel[..., columns], (-1, width))
        parts.append(ops.matmul(rows, matrix, bias=None if bias is None else bias[columns]))
    return first(parts[0] if groups == 1 else concatenated(*parts, axis=-1))


@operator("aten.conv1d.padding", "aten.conv2d.padding")
def conv_padding(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Literal["same", "valid"] = "valid",
    dilation: Sizes = 1,
    groups: int = 1,
) -> Any:
    """Return the convolution; with "same" padding, the result has the lengths of the input."""
    if padding == "same":
        rates = sizes(dilation, weight.ndim - 2)
        spans = [rate * (n - 1) for rate, n in zip(rates, weight.shape[2:], strict=True)]
        input = ops.pad(input, [(0, 0), (0, 0), *((span // 2, span - span // 2) for span in spans)])
    return conv(input, weight, bias, stride, 0, dilation, groups)


@operator("aten.convolution.default")
def convolution(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: Literal[False],
    output_padding: Sizes,
    groups: int,
) -> Any:
    """Return the convolution."""
    return conv(input, weight, bias, stride, padding, dilation, groups)
