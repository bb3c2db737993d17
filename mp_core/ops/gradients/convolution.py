"""Gradient rules of convolutions. Unlike the convolutions, they store windows: copies, or gradients to be added."""

import functools
import math
from typing import Any

import numpy as np

from mp_core.arrays import Array, cast
from mp_core.arrays.dtypes import result_type
from mp_core.ops import matmul
from mp_core.ops.convolution import convolve, convolve_channels, convolve_quantized, padded, part_of
from mp_core.ops.convolution_specs import Windows
from mp_core.ops.elementwise import computed
from mp_core.ops.gradients.elementwise import FROM_RESULT, activation_gradient
from mp_core.ops.gradients.products import inner_gradient, product_gradients, transposed_operand
from mp_core.ops.gradients.registry import Addable, gradient_of, wide_type
from mp_core.ops.gradients.sums import summed_rows
from mp_core.ops.windows import overlap_add, windows_of

__all__: list[str] = []


def _views(x: Array, windows: Windows) -> Array:
    """Return a view of all windows of the padded array, shape (batch, windows ..., size ..., channels)."""
    return windows_of(padded(x, windows), windows.size, windows.strides, windows.dilation)


def _of_inputs(rows: Array, x: Array, windows: Windows, dtype: Any) -> Array:
    """Return the gradient of `x` from that of its windows, shape (batch, windows ..., size ..., channels)."""
    whole = part_of(overlap_add(rows, windows.strides, windows.dilation), windows.before, x.shape[1:-1])
    return whole if whole.dtype == dtype else cast(whole, dtype)


@gradient_of(convolve)
def _(
    d: Array, result: Array, a: Array, b: Any, *, windows: Windows, out_dtype: Any = None, bias: Any = None,
    activation: Any = None,
) -> dict[str, Any]:  # fmt: skip
    inner = inner_gradient(d, result, activation)
    groups = b.shape[0] if len(b.shape) == 3 else 1
    rank, filters = a.ndim - 2, groups * b.shape[-1]

    def by_group(x: Array, columns: int) -> Array:
        """Return rows of all groups as a matrix, or as a matrix for each group."""
        return x.reshape(-1, columns) if len(b.shape) == 2 else x.reshape(-1, groups, columns).swapaxes(0, 1)

    def of_inputs(dtype: Any) -> Array:
        y = inner if inner.dtype.itemsize <= a.dtype.itemsize else cast(inner, a.dtype)
        y = by_group(y, filters // groups)
        rows = matmul(y, transposed_operand(b, y.dtype), out_dtype=wide_type(dtype))
        if len(b.shape) == 3:  # (groups, rows, places, channels of a group) -> (rows, places, groups, channels)
            rows = rows.reshape(groups, -1, math.prod(windows.size), a.shape[-1] // groups).transpose(1, 2, 0, 3)
        rows = rows.reshape(*d.shape[:-1], *windows.size, a.shape[-1])
        return _of_inputs(rows, a, windows, dtype)

    @functools.cache
    def of_kernel() -> Any:
        rows = _views(a, windows)
        if len(b.shape) == 3:
            rows = rows.reshape(*rows.shape[:-1], groups, -1)
            rows = np.moveaxis(rows, -2, rank + 1)
        return product_gradients(by_group(inner, filters // groups), by_group(rows, b.shape[-2]), b)["b"]

    return {
        "a": of_inputs,
        "b": Addable(lambda dtype, other: of_kernel().make(dtype, other), lambda: of_kernel().sum()),
        "bias": summed_rows(inner, (filters,)),
    }


@gradient_of(convolve_quantized)
def _(
    d: Array, result: Array, a: Array, b: Any, *, windows: Windows, scales: Any = None, zeros: Any = None,
    out_dtype: Any = None, bias: Any = None, activation: Any = None,
) -> dict[str, Any]:  # fmt: skip
    if activation is None or activation in FROM_RESULT:
        inner = inner_gradient(d, result, activation)
    else:  # compute the argument of the activation again, rounded as the product rounds it
        rows = {"scales": scales, "zeros": zeros, "out_dtype": out_dtype}
        argument = convolve_quantized(a, b, windows=windows, bias=bias, **rows)
        inner = activation_gradient(activation, d, argument, d.dtype)

    def of_inputs(dtype: Any) -> Array:
        """Return the gradient of `a`; with `scales`, `b` is the matrix times these, so divide by them."""
        wide, y = wide_type(dtype), inner.reshape(-1, b.shape[-1])
        rows = matmul(y, transposed_operand(b, y.dtype), out_dtype=wide)
        rows = rows if scales is None else computed("divide", rows, scales, dtype=wide)
        return _of_inputs(rows.reshape(*d.shape[:-1], *windows.size, a.shape[-1]), a, windows, dtype)

    return {"a": of_inputs, "bias": summed_rows(inner, (b.shape[-1],))}


@gradient_of(convolve_channels)
def _(
    d: Array, result: Array, a: Array, b: Array, *, windows: Windows, out_dtype: Any = None, bias: Any = None,
    activation: Any = None,
) -> dict[str, Any]:  # fmt: skip
    inner = inner_gradient(d, result, activation)
    wide, places = wide_type(result_type(a.dtype, inner.dtype)), inner[..., np.newaxis, :]

    def of_inputs(dtype: Any) -> Array:
        rows = computed("multiply", places, b, dtype=wide).reshape(*d.shape[:-1], *windows.size, a.shape[-1])
        return _of_inputs(rows, a, windows, dtype)

    @functools.cache
    def of_kernel() -> Any:
        rows = _views(a, windows)
        products = computed("multiply", rows.reshape(*d.shape[:-1], *b.shape), places, dtype=wide)
        return summed_rows(products, b.shape, (products.ndim - 2, products.ndim - 1))

    return {
        "a": of_inputs,
        "b": Addable(lambda dtype, other: _added(of_kernel()(dtype), other), of_kernel),
        "bias": summed_rows(inner, inner.shape[-1:]),
    }


def _added(x: Array, other: Any) -> Array:
    return x if other is None else computed("add", x, other, dtype=x.dtype)
