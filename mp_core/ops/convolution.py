"""Convolutions of arrays with one to three spatial axes.

A convolution is one product: a row is a window of the inputs, which kernels read where it is, without a copy of all
windows in memory. Padding is not stored either.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, F64, FORMATS, I8, U8, Array, as_vector, cast, contiguous
from mp_core.arrays.dtypes import WIDE, is_float, name_of, parse
from mp_core.arrays.products import float64
from mp_core.arrays.products.general import activation_named, check_depth, factors_of, product_type
from mp_core.arrays.products.matmul import matmul
from mp_core.arrays.products.operands import ACTIVATIONS, multiply_normal, multiply_windows
from mp_core.arrays.products.panels import PackedMatrix
from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.arrays.recorded import recordable
from mp_core.core.pooling import multiply_channels
from mp_core.ops import convolution_specs as specs
from mp_core.ops.activations import activate
from mp_core.ops.arrangement import array_of
from mp_core.ops.choosing import repeat
from mp_core.ops.convolution_specs import Padding, Windows
from mp_core.ops.padding import pad, pad_zeros
from mp_core.ops.pairs import add
from mp_core.ops.registry import operation
from mp_core.ops.spatial import sizes_of
from mp_core.ops.windows import overlap_add, windows_of
from mp_core.utilities.arguments import integer

__all__ = [
    "conv", "conv_transpose", "convolve", "convolve_channels", "convolve_quantized", "depthwise_conv",
    "multiply_codes", "padded", "part_of", "rows_of_windows",
]  # fmt: skip

_OPTIONS = "strides padding data_format dilation_rate"


@operation(specs.convolved, "inputs kernel", _OPTIONS, home="nn")
def conv(
    inputs: ArrayLike | QuantizedArray,
    kernel: ArrayLike | PackedMatrix | QuantizedArray,
    strides: int | Sequence[int] = 1,
    padding: Padding = "valid",
    data_format: str | None = None,
    dilation_rate: int | Sequence[int] = 1,
    *,
    kernel_size: Sequence[int] | None = None,
    bias: ArrayLike | None = None,
    activation: str | None = None,
) -> Array:
    """Return ``activation(windows @ kernel + bias)``: a convolution along one to three spatial axes.

    The bits are those of :func:`matmul` of the matrix of windows, with padding written out, and the kernel as a matrix.

    Parameters
    ----------
    inputs : array-like or QuantizedArray
        Shape (batch, places ..., channels), or with the channels at axis 1; integers that are not quantized become
        float32. Channels that are contiguous in memory are read where they are, also in a transposed view.
    kernel : array-like, PackedMatrix or QuantizedArray
        Shape (size ..., channels / groups, filters); the number of groups follows from the channels. Or, with
        `kernel_size`, a matrix: ``pack(kernel.reshape(-1, filters))``; for groups, shape (groups, k, filters / groups).
    strides, dilation_rate : int or sequence of int
        One number for all spatial axes, or one for each.
    padding : {"valid", "same"} or sequence of (int, int)
        Or the places of zeros before and after, for each spatial axis.
    data_format : {"channels_last", "channels_first"}, optional
        The position of the channels in inputs and result; default: last. With "channels_first" the result is a
        transposed view of an array with the channels last.
    kernel_size : sequence of int, optional
        If given, `kernel` is a matrix, packed or not, and this is the size along each spatial axis.
    bias : array-like, optional
        Shape (filters,).
    activation : str, optional
        One of those of :func:`matmul`.

    Returns
    -------
    ndarray
        Shape (batch, windows ..., filters), or with the filters at axis 1. The type is that of the product.

    Raises
    ------
    ValueError
        Shapes do not fit, an argument is invalid, or the padded inputs are smaller than the kernel.

    Notes
    -----
    Quantized inputs with one scale, or one for each example (``quantize(x, axis=0)``), and a kernel of int8 codes with
    one scale, or one for each filter, multiply as integers. Then padding has the code of zero. Other quantized operands
    multiply as :func:`matmul` multiplies them; kernels of several groups are dequantized.

    Examples
    --------
    >>> image = np.arange(9, dtype=np.float32).reshape(1, 3, 3, 1)
    >>> conv(image, np.ones((2, 2, 1, 1), np.float32))[0, :, :, 0]
    array([[ 8., 12.],
           [20., 24.]], dtype=float32)
    >>> conv(image, np.ones((3, 3, 1, 4), np.float16), strides=2, padding="same", activation="relu").shape
    (1, 2, 2, 4)
    """
    x = _codes_or_floats(inputs)
    lengths, channels = specs.places_of(x.shape, data_format)
    matrix, size = _matrix(kernel, kernel_size, len(lengths), channels)
    windows = specs.windows_over(lengths, size, strides, padding, dilation_rate, _fill(x))
    if data_format == "channels_first":
        x = _with_channels_last(x)
    return _arranged(convolve(x, matrix, windows=windows, bias=bias, activation=activation), data_format)


def _floats(x: Any) -> Array:
    """Return an array; integers and booleans in float32."""
    array = array_of(x)
    return array if is_float(array.dtype) else cast(array, F32)


def _codes_or_floats(x: Any) -> Any:
    """Return codes that can multiply as integers as they are; everything else as floats."""
    if not isinstance(x, QuantizedArray):
        return _floats(x)
    shared = x.dtype in (I8, U8) and x.group_size is None and set(x.axis) <= {0}
    return x if shared and (x.zero_point is None or x.zero_point.size == 1) else dequantize(x)


def _with_channels_last(x: Any) -> Any:
    if not isinstance(x, QuantizedArray):
        return np.moveaxis(x, 1, -1)
    zero = None if x.zero_point is None else np.moveaxis(x.zero_point, 1, -1)
    return QuantizedArray(np.moveaxis(x.values, 1, -1), np.moveaxis(x.scale, 1, -1), zero, x.axis)


def _arranged(outputs: Array, data_format: str | None) -> Array:
    return np.moveaxis(outputs, -1, 1) if data_format == "channels_first" else outputs


def _fill(x: Any) -> int:
    """Return the byte of padding: the code of zero."""
    return int(x.zero_point.reshape(-1)[0]) & 255 if isinstance(x, QuantizedArray) and x.zero_point is not None else 0


def _matrix(kernel: Any, size: Any, rank: int, channels: int | None) -> tuple[Any, tuple[int, ...]]:
    """Return a kernel as a matrix (k, n) or, for several groups, matrices (groups, k, n); and its size."""
    if size is not None:
        size, shape = sizes_of(tuple(size), "kernel_size", rank), tuple(kernel.shape)
        groups = shape[0] if len(shape) == 3 else 1
        if not 2 <= len(shape) <= 3 or not groups or groups * shape[-2] != math.prod(size) * (channels or 0):
            raise ValueError(
                f"a `kernel` with `kernel_size` must have the shape (k, n) or (groups, k, n), k = {math.prod(size)} * "
                f"channels / groups; received shape {shape}, and inputs with {channels} channels"
            )
        return kernel, size
    _refuse_packed(kernel)
    found = kernel if isinstance(kernel, QuantizedArray) else _floats(kernel)
    specs.check_kernel(found.shape, rank)
    *size, depth, filters = found.shape
    groups = specs.groups_of(channels, depth, filters)
    if isinstance(found, QuantizedArray):
        if groups == 1 and found.dtype in (I8, U8) and found.group_size is None and set(found.axis) <= {rank + 1}:
            return _codes_as_matrix(found), tuple(size)
        found = dequantize(found)
    if groups == 1:
        return found.reshape(-1, filters), tuple(size)
    return found.reshape(-1, groups, filters // groups).swapaxes(0, 1), tuple(size)


def _refuse_packed(kernel: Any) -> None:
    if isinstance(kernel, PackedMatrix):
        raise ValueError("`kernel_size` must be given for a packed `kernel`; received None")


def _codes_as_matrix(q: QuantizedArray) -> QuantizedArray:
    """Return the codes of a kernel, with scales for each filter at most, as a matrix (k, n)."""
    zero = None if q.zero_point is None else q.zero_point.reshape(1, -1)
    return QuantizedArray(q.values.reshape(-1, q.shape[-1]), q.scale.reshape(1, -1), zero, (1,) if q.axis else ())


# ---- the product


@recordable
def convolve(
    a: Array | QuantizedArray,
    b: Array | PackedMatrix | QuantizedArray,
    *,
    windows: Windows,
    out_dtype: Any = None,
    bias: Any = None,
    activation: str | None = None,
) -> Array:
    """Return ``activation(windows of a @ b + bias)``: :func:`conv` of inputs with the channels last, and of a matrix.

    `b` has the shape (k, n), or (groups, k, n) for groups of channels. `windows` are those of the lengths of `a`.
    """
    activation_named(activation)
    groups = b.shape[0] if len(b.shape) == 3 else 1
    filters = groups * b.shape[-1]
    specs.check_elements(a.shape[0], windows.counts, filters)
    x, matrix, scale, zero, promoted = factors_of(a, b)
    if isinstance(a, QuantizedArray) and scale is None:  # they multiply as floats
        windows = replace(windows, fill=0)
    check_depth(x.dtype, math.prod(windows.size) * x.shape[-1] // groups, matrix, zero)
    bias = None if bias is None else as_vector(bias, filters, "bias", F64 if x.dtype == F64 else F32)
    target = promoted if out_dtype is None else parse(out_dtype)
    if x.dtype == F64:
        return cast(_float64(x, matrix, windows, bias, activation), target)
    scale, zero = (None if part is None else _for_windows(part, len(x), windows, groups) for part in (scale, zero))
    return multiply_windows(_with_contiguous_channels(x), matrix, windows, target, bias, activation, (scale, zero))


@recordable
def convolve_quantized(
    a: Array,
    b: PackedMatrix,
    *,
    windows: Windows,
    scales: Array | None = None,
    zeros: Array | None = None,
    out_dtype: Any = None,
    bias: Any = None,
    activation: str | None = None,
) -> Array:
    """Return :func:`convolve` of floats whose windows are quantized to int8 during the product.

    Without `scales` the bits are those of :func:`dynamic_matmul` of the matrix of windows: each has its own scale. With
    `scales` and `zeros`, contiguous float32 and int32 of shape (k,), they are those of :func:`fixed_matmul`. Padding is
    quantized like other elements. `b` has the shape (k, n); the result has by default the type of `a`.
    """
    activation_named(activation)
    k, filters = b.shape
    specs.check_elements(a.shape[0], windows.counts, filters)
    if k != math.prod(windows.size) * a.shape[-1]:
        raise ValueError(f"`b` must have {math.prod(windows.size) * a.shape[-1]} rows; received shape {b.shape}")
    check_depth(I8, k, b, None)
    x = _with_contiguous_channels(a if name_of(a.dtype) in WIDE else cast(a, F32))
    bias = None if bias is None else as_vector(bias, filters, "bias", F32)
    target = a.dtype if out_dtype is None else parse(out_dtype)
    wide = target if name_of(target) in WIDE else F32
    return cast(multiply_windows(x, b, windows, wide, bias, activation, (scales, zeros), quantizes=True), target)


@recordable
def multiply_codes(
    codes: Array, scale: Array, zero_point: Array, b: PackedMatrix, *, windows: Windows | None = None, bias: Any = None
) -> Array:
    """Return ``scale (codes - zero_point) @ b + bias`` in float32, of rows or windows; sums are exact in int32.

    `codes` are int8 or uint8 with one float32 scale and one int32 zero point of shape (1,), which a plan may compute;
    `b` has the shape (k, n), and int8 codes with one scale for each column. Windows have no padding.
    """
    k, filters = b.shape
    check_depth(codes.dtype, k, b, zero_point)
    bias = None if bias is None else as_vector(bias, filters, "bias", F32)
    rows = scale, zero_point
    if windows is None:
        return multiply_normal(contiguous(codes), b, F32, None, (bias, None, None), rows)
    return multiply_windows(_with_contiguous_channels(codes), b, windows, F32, bias, None, rows)


def _for_windows(part: Array, images: int, windows: Windows, groups: int) -> Array:
    """Return a scale or zero point for all windows, or one for each of all groups."""
    if part.size == 1:
        return part.reshape(1)
    each = np.repeat(part.reshape(-1), math.prod(windows.counts))
    return np.ascontiguousarray(np.broadcast_to(each, (groups, each.size)))


def _with_contiguous_channels(x: Array) -> Array:
    """Return `x` if the channels of a place are neighbours in memory, else a contiguous copy."""
    return x if x.shape[-1] <= 1 or x.strides[-1] == x.itemsize else contiguous(x)


def _float64(x: Array, b: Any, windows: Windows, bias: Array | None, activation: str | None) -> Array:
    """Compute a convolution by NumPy: one product for each group."""
    parts = b if b.ndim == 3 else b[np.newaxis]
    rows = np.split(padded(x, windows), len(parts), axis=-1)
    views = (windows_of(part, windows.size, windows.strides, windows.dilation) for part in rows)
    flat = [view.reshape(*view.shape[: x.ndim - 1], b.shape[-2]) for view in views]
    result = np.concatenate([np.matmul(row, part) for row, part in zip(flat, parts, strict=True)], axis=-1)
    return _finished(result, bias, activation)


def _finished(result: Array, bias: Array | None, activation: str | None) -> Array:
    result = result if bias is None else result + bias
    return result if activation is None else float64.ACTIVATIONS[activation](result)


def rows_of_windows(x: Array, windows: Windows) -> Array:
    """Return all windows of inputs with the channels last as rows of a matrix, shape (batch, windows ..., k)."""
    views = windows_of(padded(x, windows), windows.size, windows.strides, windows.dilation)
    return views.reshape(*views.shape[: x.ndim - 1], -1)


def padded(x: Array, windows: Windows) -> Array:
    """Return inputs with their padding of zeros."""
    return pad_zeros(x, [(0, 0), *windows.padding, (0, 0)]) if any(map(any, windows.padding)) else x


# ---- depthwise


@operation(specs.convolved_by_channel, "inputs kernel", _OPTIONS, home="nn")
def depthwise_conv(
    inputs: ArrayLike,
    kernel: ArrayLike,
    strides: int | Sequence[int] = 1,
    padding: Padding = "valid",
    data_format: str | None = None,
    dilation_rate: int | Sequence[int] = 1,
    *,
    bias: ArrayLike | None = None,
    activation: str | None = None,
) -> Array:
    """Return a convolution of each channel with its own kernels; then bias and activation.

    Sums start at +0. The places of the kernel are added in C order, each by one multiply-add in float32; the result is
    rounded once. (float64 is computed by NumPy.)

    Parameters
    ----------
    inputs : array-like
        As in :func:`conv`.
    kernel : array-like
        Shape (size ..., channels, multiplier). Channel c of the inputs gives the channels from c * multiplier on.
    strides, padding, data_format, dilation_rate
        As in :func:`conv`.
    bias : array-like, optional
        Shape (channels * multiplier,).
    activation : str, optional
        One of those of :func:`matmul`.

    Returns
    -------
    ndarray
        Shape (batch, windows ..., channels * multiplier), or with these channels at axis 1.

    Raises
    ------
    ValueError
        Shapes do not fit, an argument is invalid, or the padded inputs are smaller than the kernel.

    Examples
    --------
    >>> depthwise_conv(np.ones((1, 3, 2), np.float32), np.ones((2, 2, 1), np.float32), bias=[0, 1])
    array([[[2., 3.],
            [2., 3.]]], dtype=float32)
    """
    x, weights = _floats(inputs), _floats(kernel)
    lengths, channels = specs.places_of(x.shape, data_format)
    rank = len(lengths)
    specs.check_kernel(weights.shape, rank)
    specs.check_depth(channels, weights.shape)
    windows = specs.windows_over(lengths, weights.shape[:rank], strides, padding, dilation_rate)
    x = np.moveaxis(x, 1, -1) if data_format == "channels_first" else x
    if weights.shape[-1] != 1:
        x = repeat(x, weights.shape[-1], axis=-1)
    weights = weights.reshape(math.prod(weights.shape[:rank]), -1)
    return _arranged(convolve_channels(x, weights, windows=windows, bias=bias, activation=activation), data_format)


@recordable
def convolve_channels(
    a: Array,
    b: Array,
    *,
    windows: Windows,
    out_dtype: Any = None,
    bias: Any = None,
    activation: str | None = None,
) -> Array:
    """Return :func:`depthwise_conv` of inputs with the channels last; `b` has the shape (places, channels)."""
    activation_named(activation)
    promoted = product_type(a.dtype, b.dtype)
    target, channels = promoted if out_dtype is None else parse(out_dtype), a.shape[-1]
    wide = F64 if promoted == F64 else F32
    specs.check_elements(a.shape[0], windows.counts, channels)
    bias = None if bias is None else as_vector(bias, channels, "bias", wide)
    if wide == F64:
        return cast(_channels_float64(cast(a, F64), cast(b, F64), windows, bias, activation), target)
    out = np.empty((len(a), *windows.counts, channels), target)
    if out.size:
        x, weights = _with_contiguous_channels(a), contiguous(cast(b, F32))
        multiply_channels(x, weights, windows, bias, ACTIVATIONS[activation], FORMATS, out)
    return out


def _channels_float64(x: Array, b: Array, windows: Windows, bias: Array | None, activation: str | None) -> Array:
    view = windows_of(padded(x, windows), windows.size, windows.strides, windows.dilation)
    places = view.reshape(*view.shape[: x.ndim - 1], *b.shape)
    return _finished((places * b).sum(axis=-2), bias, activation)


# ---- transposed


@operation(
    specs.transposed, "inputs kernel", "strides padding output_padding data_format dilation_rate", home="nn"
)  # fmt: skip
def conv_transpose(
    inputs: ArrayLike,
    kernel: ArrayLike | PackedMatrix,
    strides: int | Sequence[int] = 1,
    padding: str = "valid",
    output_padding: int | Sequence[int] | None = None,
    data_format: str | None = None,
    dilation_rate: int | Sequence[int] = 1,
    *,
    kernel_size: Sequence[int] | None = None,
    bias: ArrayLike | None = None,
    activation: str | None = None,
) -> Array:
    """Return a transposed convolution: each position adds the kernel, times its element, to a window of the result.

    The products of all positions are float32 and are added in C order (batch, positions, places of the kernel); then
    the bias, and one rounding. The activation is of the rounded sums. (float64 stays float64.)

    Parameters
    ----------
    inputs : array-like
        Shape (batch, positions ..., channels), or with the channels at axis 1; integers become float32.
    kernel : array-like or PackedMatrix
        Shape (size ..., filters, channels). Or, with `kernel_size`, a matrix: ``pack(kernel.reshape(-1, channels).T)``.
    strides, dilation_rate : int or sequence of int
        One number for all spatial axes, or one for each. Either `strides` or `dilation_rate` must be 1.
    padding : {"valid", "same"}
        With "same", results are `strides` times as long as the inputs along each spatial axis.
    output_padding : int or sequence of int, optional
        Additional length of the result along each spatial axis, less than `strides`. Without it, "valid" results have
        length ``(n - 1) * stride + max(span, stride)`` for n inputs, where span is the length of the dilated kernel.
    data_format : {"channels_last", "channels_first"}, optional
        As in :func:`conv`.
    kernel_size : sequence of int, optional
        If given, `kernel` is a matrix, packed or not, and this is the size along each spatial axis.
    bias : array-like, optional
        Shape (filters,).
    activation : str, optional
        One of those of :func:`matmul`.

    Returns
    -------
    ndarray
        Shape (batch, places ..., filters), or with the filters at axis 1. The type is that of the product.

    Raises
    ------
    ValueError
        Shapes do not fit, an argument is invalid, or the result would be empty.

    Examples
    --------
    >>> conv_transpose(np.float32([1, 2]).reshape(1, 2, 1), np.ones((3, 1, 1), np.float32), strides=2).ravel()
    array([1., 1., 3., 2., 2.], dtype=float32)
    """
    x = _floats(inputs)
    lengths, channels = specs.places_of(x.shape, data_format)
    rank = len(lengths)
    matrix, size = _transposed_matrix(kernel, kernel_size, rank, channels)
    strides, dilation = sizes_of(strides, "strides", rank), sizes_of(dilation_rate, "dilation_rate", rank)
    more = None if output_padding is None else sizes_of(output_padding, "output_padding", rank, integer)
    ends = specs.ends_along(size, strides, padding, more, dilation)
    counts: list[Any] = [specs.outputs_along(*each) for each in zip(lengths, strides, ends, strict=True)]
    filters = matrix.shape[-1] // math.prod(size)
    specs.check_elements(x.shape[0], counts, filters * math.prod(size))
    if 0 in counts:
        raise ValueError(f"`inputs` must give results with elements; received shape {x.shape}: they would be empty")
    activation_named(activation)
    x = np.moveaxis(x, 1, -1) if data_format == "channels_first" else x
    dtype = product_type(x.dtype, matrix.dtype)
    wide = F64 if dtype == F64 else F32
    windows = matmul(x, matrix, out_dtype=wide).reshape(*x.shape[:-1], *size, filters)
    outputs = part_of(overlap_add(windows, strides, dilation), [end.first for end in ends], counts)
    if bias is not None:
        bias = _floats(bias)
        if bias.shape != (filters,):
            raise ValueError(f"`bias` must have shape {(filters,)}; received {bias.shape}")
        outputs = add(outputs, cast(bias, wide))
    outputs = outputs if outputs.dtype == dtype else cast(outputs, dtype)
    return _arranged(outputs if activation is None else activate(activation, outputs), data_format)


def _transposed_matrix(kernel: Any, size: Any, rank: int, channels: int | None) -> tuple[Any, tuple[int, ...]]:
    """Return the kernel of a transposed convolution as a matrix (channels, places * filters), and its size."""
    if size is not None:
        size, matrix = sizes_of(tuple(size), "kernel_size", rank), kernel
    else:
        _refuse_packed(kernel)
        found = _floats(kernel)
        specs.check_kernel(found.shape, rank)
        size, matrix = tuple(found.shape[:rank]), found.reshape(-1, found.shape[-1]).T
    if len(matrix.shape) != 2 or matrix.shape[0] != channels or matrix.shape[1] % math.prod(size):
        raise ValueError(
            f"`kernel` must have shape (size ..., filters, channels) with the {channels} channels of `inputs`; "
            f"received shape {kernel.shape}"
        )
    return matrix, size


def part_of(x: Array, first: Sequence[int], counts: Sequence[Any]) -> Array:
    """Return `counts` elements of each spatial axis from `first` on, padded with zeros beyond the end."""
    stops = [start + count for start, count in zip(first, counts, strict=True)]
    beyond = [(0, max(stop - length, 0)) for stop, length in zip(stops, x.shape[1:-1], strict=True)]
    x = pad(x, [(0, 0), *beyond, (0, 0)]) if any(map(any, beyond)) else x
    return x[:, *map(slice, first, stops)]
