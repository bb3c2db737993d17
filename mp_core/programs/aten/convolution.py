"""Convolutions. Arrays have the channels at axis 1; operations have them last, so they get views."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from mp_core import ops
from mp_core.ops.elementwise import concatenated
from mp_core.ops.windows import overlap_add, windows_of
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
    parts = []
    rows, matrices = _groups(input, weight, stride, padding, dilation, groups)
    for part, matrix, number in zip(rows, matrices, range(groups), strict=True):
        columns = slice(number * matrix.shape[-1], (number + 1) * matrix.shape[-1])
        parts.append(ops.matmul(part, matrix, bias=None if bias is None else bias[columns]))
    return first(parts[0] if groups == 1 else concatenated(*parts, axis=-1))


def _groups(
    x: Any, weight: Any, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> tuple[list[Any], list[Any]]:
    """Return the windows of each group of channels as rows, and its part of the kernel as a matrix."""
    rank, depth, width = weight.ndim - 2, weight.shape[1], weight.shape[0] // groups
    windows = _windows(x, weight, stride, padding, dilation)
    kernel = ops.transpose(weight, (*range(2, weight.ndim), 1, 0))
    parts = [windows[..., number * depth : (number + 1) * depth] for number in range(groups)]
    rows = [ops.reshape(part, (*part.shape[: rank + 1], math.prod(part.shape[rank + 1 :]))) for part in parts]
    columns = [kernel[..., number * width : (number + 1) * width] for number in range(groups)]
    return rows, [ops.reshape(part, (-1, width)) for part in columns]


def _windows(x: Any, weight: Any, stride: Sizes, padding: Sizes, dilation: Sizes) -> Any:
    """Return a view of the windows of the padded input: (n, places ..., kernel's lengths ..., channels)."""
    rank = weight.ndim - 2
    pads = [(width, width) for width in sizes(padding, rank)]
    x = ops.pad(last(x), [(0, 0), *pads, (0, 0)]) if any(map(any, pads)) else last(x)
    return windows_of(x, weight.shape[2:], sizes(stride, rank), sizes(dilation, rank))


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


@operator("aten.convolution_backward.default")
def convolution_gradients(
    grad_output: Any,
    input: Any,
    weight: Any,
    bias_sizes: Any,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: Literal[False],
    output_padding: Sizes,
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """Return the gradients of input, kernel and bias, each if it is wanted."""
    d = last(grad_output)
    width = weight.shape[0] // groups
    parts = [d[..., number * width : (number + 1) * width] for number in range(groups)]
    rows, matrices = _groups(input, weight, stride, padding, dilation, groups)

    def of_input() -> Any:
        rank = weight.ndim - 2
        products = [ops.matmul(part, ops.transpose(matrix)) for part, matrix in zip(parts, matrices, strict=True)]
        shape = (*d.shape[:-1], *weight.shape[2:], weight.shape[1])
        windows = [ops.reshape(each, shape) for each in products]
        joined = windows[0] if groups == 1 else concatenated(*windows, axis=-1)
        found = overlap_add(joined, sizes(stride, rank), sizes(dilation, rank))
        cuts, rest = [slice(None)], [(0, 0)]
        for length, pad, made in zip(input.shape[2:], sizes(padding, rank), found.shape[1:-1], strict=True):
            cuts.append(slice(pad, pad + length))
            rest.append((0, max(pad + length - made, 0)))
        return first(ops.pad(found[tuple(cuts)], [*rest, (0, 0)]))

    def of_weight() -> Any:
        found = [
            ops.matmul(ops.transpose(ops.reshape(x, (-1, x.shape[-1]))), ops.reshape(part, (-1, width)))
            for x, part in zip(rows, parts, strict=True)
        ]
        kernels = [ops.reshape(each, (*weight.shape[2:], weight.shape[1], width)) for each in found]
        joined = kernels[0] if groups == 1 else concatenated(*kernels, axis=-1)
        return ops.transpose(joined, (joined.ndim - 1, joined.ndim - 2, *range(joined.ndim - 2)))

    return [of_input, of_weight, lambda: ops.sum(d, tuple(range(d.ndim - 1)))]
