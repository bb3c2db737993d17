"""Convolutions with a constant kernel as layers. Arrays have the channels at axis 1, kernels the filters at axis 0."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.files.program import Node
from mp_core.layers import Conv1D, Conv2D, Conv3D, DepthwiseConv1D, DepthwiseConv2D, Layer
from mp_core.programs.weights import Call, Constant, frozen, policy_for, weighted

__all__ = ["convolution"]

_LAYERS: tuple[Any, ...] = (Conv1D, Conv2D, Conv3D)
_DEPTHWISE: tuple[Any, ...] = (DepthwiseConv1D, DepthwiseConv2D)


@weighted("mp_core.conv")
def _convolution_of(node: Node, constant: Constant, *, name: str, dtype: Any) -> Call:
    """Return the call of a layer for a convolution with a constant kernel."""
    x, kernel, bias = (*node.arguments, None)[:3]
    return Call(convolution(constant(kernel), constant(bias), name=name, dtype=dtype, **node.options), (x,))


def convolution(
    kernel: Array,
    bias: Array | None,
    *,
    name: str,
    dtype: Any,
    strides: Sequence[int] | None = None,
    pads: Sequence[int] | str = "valid",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    activation: str | None = None,
) -> Layer:
    """Return a layer that shares the memory of a kernel of shape (filters, channels / groups, places ...).

    `pads` are the places before each axis, then those after each axis; or "valid" or "same".
    """
    filters, depth, *size = kernel.shape
    rank, is_depthwise = len(size), depth == 1 and group > 1 and kernel.ndim < 5
    options = {
        "strides": tuple(strides or (1,) * rank), "dilation_rate": tuple(dilations or (1,) * rank),
        "data_format": "channels_first", "activation": activation, "use_bias": bias is not None, "name": name,
        "padding": pads if isinstance(pads, str) else list(zip(pads[:rank], pads[rank:], strict=True)),
        "dtype": policy_for(kernel, dtype),
    }  # fmt: skip
    if is_depthwise:
        layer = _DEPTHWISE[rank - 1](size, depth_multiplier=filters // group, **options)
    else:
        layer = _LAYERS[rank - 1](filters, size, groups=group, kernel_initializer="zeros", **options)
    layer.build((None, depth * group, *[None] * rank))
    places = kernel.transpose(*range(2, kernel.ndim), 1, 0)
    if is_depthwise:
        layer.kernel.assign(places.reshape(*size, group, filters // group))
    else:
        layer.form.assign(frozen(places), layer.variable_dtype)
    if bias is not None:
        layer.bias.assign(np.reshape(bias, -1))
    return layer
