"""Convolutions with a constant kernel as layers. Arrays have the channels at axis 1, kernels the filters at axis 0."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.files.program import Node
from mp_core.layers import Conv1D, Conv2D, Conv3D, DepthwiseConv1D, DepthwiseConv2D, Layer
from mp_core.layers.forms import Inputs
from mp_core.ops.convolution_specs import Padding
from mp_core.programs.weights import Call, Constant, frozen, policy_for, set_codes, weighted

__all__ = ["convolution", "has_lines", "is_by_channel"]

_LAYERS: tuple[Any, ...] = (Conv1D, Conv2D, Conv3D)
_DEPTHWISE: tuple[Any, ...] = (DepthwiseConv1D, DepthwiseConv2D)


@weighted("mp_core.conv")
def _convolution_of(node: Node, constant: Constant, *, name: str, dtype: Any) -> Call:
    """Return the call of a layer for a convolution with a constant kernel."""
    x, kernel, bias = constant_arguments(node, constant)
    return Call(convolution(kernel, bias, name=name, dtype=dtype, **node.options), (x,))


def constant_arguments(node: Node, constant: Constant) -> tuple[Any, Any, Any]:
    """Return the first argument of a node, and the values of the second and third one."""
    x, kernel, bias = (*node.arguments, None)[:3]
    return x, constant(kernel), constant(bias)


def convolution(
    kernel: Array | QuantizedArray,
    bias: Array | None,
    *,
    name: str,
    dtype: Any,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | str = "valid",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    activation: str | None = None,
    inputs: Inputs | None = None,
) -> Layer:
    """Return a layer that shares the memory of a kernel of shape (filters, channels / groups, places ...).

    `pads` are the places before each axis, then those after each axis; or "valid" or "same". Codes of int8 are stored
    as they are, except in depthwise layers. With `inputs`, one scale and one zero point quantize the layer's inputs.
    """
    filters, depth, *size = kernel.shape
    rank, is_depthwise = len(size), is_by_channel(kernel, group)
    if isinstance(kernel, QuantizedArray) and (is_depthwise or not has_lines(kernel)):
        kernel = dequantize(kernel)
    options = {
        "strides": tuple(strides or (1,) * rank), "dilation_rate": tuple(dilations or (1,) * rank),
        "data_format": "channels_first", "activation": activation, "use_bias": bias is not None, "name": name,
        "padding": pairs_of(pads), "dtype": policy_for(kernel, dtype),
    }  # fmt: skip
    if is_depthwise:
        layer = _DEPTHWISE[rank - 1](size, depth_multiplier=filters // group, **options)
    else:
        layer = _LAYERS[rank - 1](filters, size, groups=group, kernel_initializer="zeros", **options)
    layer.build((None, depth * group, *[None] * rank))
    if isinstance(kernel, QuantizedArray):
        set_codes(layer, lines_of(kernel), inputs)
    elif is_depthwise:
        layer.kernel.assign(places_first(kernel).reshape(*size, group, filters // group))
    else:
        layer.form.assign(frozen(places_first(kernel)), layer.variable_dtype)
    if bias is not None:
        layer.bias.assign(np.reshape(bias, -1))
    found: Layer = layer
    return found


def is_by_channel(kernel: Any, group: int) -> bool:
    """Return whether each channel has its own kernels, and layers for it exist."""
    return kernel.shape[1] == 1 and group > 1 and len(kernel.shape) < 5


def has_lines(kernel: Any) -> bool:
    """Return whether a kernel has codes of 8 bits with one scale, or one for each filter."""
    is_codes = isinstance(kernel, QuantizedArray) and kernel.dtype.name in ("int8", "uint8")
    return is_codes and kernel.group_size is None and set(kernel.axis) <= {0}


def lines_of(kernel: QuantizedArray) -> QuantizedArray:
    """Return the codes of a kernel as the matrix of a layer, (filters, places ... and channels)."""
    values = kernel.values.transpose(0, *range(2, len(kernel.shape)), 1).reshape(len(kernel.values), -1)
    zero = None if kernel.zero_point is None else kernel.zero_point.reshape(-1, 1)
    return QuantizedArray(np.ascontiguousarray(values), kernel.scale.reshape(-1, 1), zero, kernel.axis)


def places_first(kernel: Array) -> Array:
    """Return a kernel (filters, channels, places ...) as layers store it: (places ..., channels, filters)."""
    return kernel.transpose(*range(2, kernel.ndim), 1, 0)


def pairs_of(pads: Sequence[int] | str) -> Padding:
    """Return the places before and after each axis; names of paddings as they are."""
    half = len(pads) // 2
    return pads if isinstance(pads, str) else list(zip(pads[:half], pads[half:], strict=True))
