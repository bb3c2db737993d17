"""Gradients that torch's backward graphs compute."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.ops.gradients.lookup import sum_taken_rows
from mp_core.ops.indexing import added_along
from mp_core.programs.aten.convolution import Sizes, sizes
from mp_core.programs.aten.elementwise import cast
from mp_core.programs.aten.products import scores_of
from mp_core.programs.aten.scattering import along, slice_scatter
from mp_core.programs.registry import operator
from mp_core.utilities.arguments import axis_of

__all__: list[str] = []


@operator("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def attention_gradients(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    dropout_p: Literal[0],
    is_causal: bool,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    """Return the gradients of query, key and value."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = scores_of(query, key, is_causal, attn_mask, scale)
    shares = ops.exp(ops.subtract(scores, ops.expand_dims(logsumexp, -1)))
    of_shares = ops.matmul(grad_out, ops.swapaxes(value, -1, -2))
    total = ops.sum(ops.multiply(grad_out, out), -1, keepdims=True)
    of_scores = ops.multiply(ops.multiply(shares, ops.subtract(of_shares, total)), factor)
    return [
        ops.matmul(of_scores, key),
        ops.matmul(ops.swapaxes(of_scores, -1, -2), query),
        ops.matmul(ops.swapaxes(shares, -1, -2), grad_out),
    ]


@operator("aten.embedding_dense_backward.default")
def table_gradient(
    grad_output: Any, indices: Any, num_weights: int, padding_idx: int, scale_grad_by_freq: Literal[False]
) -> Any:
    """Return the gradient of a table from that of its rows at indices."""
    found = sum_taken_rows(grad_output, indices, num_weights, grad_output.dtype)
    if padding_idx < 0:
        return found
    return ops.where((np.arange(num_weights) != padding_idx)[:, np.newaxis], found, 0.0)


@operator("aten.max_pool2d_with_indices_backward.default")
def max_pool_gradient(
    grad_output: Any,
    self: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Any,
) -> Any:
    """Return the gradient of an array from that of the largest elements of its windows, which are at `indices`."""
    planes, places = int(np.prod(self.shape[:-2])), int(np.prod(self.shape[-2:]))
    first = (np.arange(planes) * places).reshape(*self.shape[:-2], 1, 1)
    rows = ops.reshape(ops.add(indices, first), (-1,))
    found = sum_taken_rows(ops.reshape(grad_output, (-1, 1)), rows, planes * places, grad_output.dtype)
    return ops.reshape(found, self.shape)


@operator("aten.avg_pool2d_backward.default")
def avg_pool_gradient(
    grad_output: Any,
    self: Any,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: Literal[None],
) -> Any:
    """Return the gradient of an array from that of the means of its windows."""
    rank = self.ndim - 2
    size = sizes(kernel_size, rank)
    windows = [*zip(size, sizes(stride, rank) if stride else size, sizes(padding, rank), strict=True)]

    def means(axis: int, x: Any) -> Any:
        pool, step, width = windows[axis]
        return ops.average_pool(
            x, pool, step, [(width, width)], ceil_mode=ceil_mode, count_include_pad=count_include_pad
        )

    return _of_means(grad_output, self.shape, means)


@operator("aten._adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool_gradient(grad_output: Any, self: Any) -> Any:
    """Return the gradient of an array from that of the means of its windows."""
    counts = grad_output.shape[2:]
    return _of_means(grad_output, self.shape, lambda axis, x: ops.adaptive_average_pool(x, counts[axis]))


def _of_means(d: Any, shape: Sequence[int], means: Callable[[int, Any], Any]) -> Any:
    """Return the gradient of an array from that of its means: a product along each axis with the shares of elements."""
    found = cast(d, "float32")
    for axis, length in enumerate(shape[2:]):
        shares = means(axis, np.eye(length, dtype=np.float32)[:, :, np.newaxis])[:, :, 0].T
        found = ops.swapaxes(ops.matmul(ops.swapaxes(found, axis + 2, -1), np.ascontiguousarray(shares)), axis + 2, -1)
    return cast(found, d.dtype.name)


@operator("aten.replication_pad1d_backward.default", "aten.replication_pad2d_backward.default",
          "aten.replication_pad3d_backward.default")  # fmt: skip
def edge_gradient(grad_output: Any, self: Any, padding: Sequence[int]) -> Any:
    """Return the gradient of an array from that of the array with its ends repeated."""
    found = grad_output
    for i, before in enumerate(padding[::2]):
        axis, length = self.ndim - 1 - i, self.shape[self.ndim - 1 - i]
        places = np.clip(np.arange(found.shape[axis]) - before, 0, length - 1)
        found = added_along(found, along(places, axis, self.ndim), length, axis)
    return cast(found, grad_output.dtype.name)


@operator("aten._weight_norm_interface_backward.default")
def weight_norm_gradients(grad_w: Any, saved_v: Any, saved_g: Any, saved_norms: Any, dim: int) -> Any:
    """Return the gradients of the directions and the lengths whose products are the vectors of a matrix."""
    axes = tuple(axis for axis in range(saved_v.ndim) if axis != dim % saved_v.ndim)
    norms = cast(saved_norms, "float32")
    along_v = ops.divide(ops.sum(ops.multiply(grad_w, saved_v), axes, keepdims=True), norms)
    across = ops.subtract(grad_w, ops.multiply(saved_v, ops.divide(along_v, norms)))
    return [
        cast(ops.multiply(across, ops.divide(saved_g, norms)), saved_v.dtype.name),
        lambda: cast(along_v, saved_g.dtype.name),
    ]


@operator("aten.slice_backward.default")
def slice_gradient(grad_output: Any, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Any:
    """Return the gradient of an array from that of a part of it: zeros elsewhere."""
    axis = axis_of(dim, len(input_sizes))
    if step > 1:
        return slice_scatter(np.zeros(tuple(input_sizes), grad_output.dtype), grad_output, axis, start, end, step)
    first, last, _ = slice(start, end).indices(input_sizes[axis])
    widths = [(0, 0)] * len(input_sizes)
    widths[axis] = first, input_sizes[axis] - max(first, last)
    return ops.pad(grad_output, widths)


@operator("aten.select_backward.default")
def select_gradient(grad_output: Any, input_sizes: Sequence[int], dim: int, index: int) -> Any:
    """Return the gradient of an array from that of the part at an index: zeros elsewhere."""
    axis = axis_of(dim, len(input_sizes))
    first = index % input_sizes[axis]
    return slice_gradient(ops.expand_dims(grad_output, axis), input_sizes, axis, first, first + 1, 1)


# ---- cross entropy


@operator("aten.nll_loss_forward.default")
def nll_loss(self: Any, target: Any, weight: Literal[None], reduction: Literal[0, 1, 2], ignore_index: int) -> Any:
    """Return the negative logarithms of the probabilities of the targets, and the number of targets that count."""
    losses = ops.negative(ops.sum(ops.where(_is_target(self, target, ignore_index), self, 0.0), -1))
    if reduction == 0:
        return [losses, np.zeros((), np.float32)]
    count = ops.sum(cast(ops.not_equal(cast(target, "float32"), float(ignore_index)), "float32"))
    total = ops.sum(losses)
    return [ops.divide(total, count) if reduction == 1 else total, count]


@operator("aten.nll_loss_backward.default")
def nll_loss_gradient(
    grad_output: Any,
    self: Any,
    target: Any,
    weight: Literal[None],
    reduction: Literal[0, 1, 2],
    ignore_index: int,
    total_weight: Any,
) -> Any:
    """Return the gradient of the logarithms of probabilities."""
    d = ops.divide(grad_output, total_weight) if reduction == 1 else grad_output
    hits = ops.where(_is_target(self, target, ignore_index), -1.0, np.zeros(1, np.float32))
    return ops.multiply(hits, ops.reshape(d, (-1, *(1,) * (self.ndim - 1))))


def _is_target(scores: Any, target: Any, ignored: int) -> Any:
    """Return whether a class is the target that counts, for each row of scores."""
    wanted = cast(ops.expand_dims(target, -1), "float32")  # exact below 2^24
    classes = np.arange(scores.shape[-1], dtype=np.float32)
    return ops.logical_and(ops.equal(wanted, classes), ops.not_equal(wanted, float(ignored)))
