"""Convolutions with a constant kernel as layers. Arrays have the channels at axis 1, kernels the filters at axis 0."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.arrays.recorded import constant, recordable
from mp_core.files.program import Node
from mp_core.layers import Conv1D, Conv2D, Conv3D, DepthwiseConv1D, DepthwiseConv2D, Layer, activations
from mp_core.layers.convolution_base import KernelLayer
from mp_core.layers.forms import Inputs
from mp_core.ops.convolution_specs import Padding
from mp_core.policies.autocast import AutoCastVariable
from mp_core.programs.weights import Call, Constant, frozen, policy_for, signed, weighted

__all__ = ["OWN_LAYERS", "ConvolutionOfCodes", "convolution"]

_LAYERS: tuple[Any, ...] = (Conv1D, Conv2D, Conv3D)
_DEPTHWISE: tuple[Any, ...] = (DepthwiseConv1D, DepthwiseConv2D)


@weighted("mp_core.conv")
def _convolution_of(node: Node, constant: Constant, *, name: str, dtype: Any) -> Call:
    """Return the call of a layer for a convolution with a constant kernel."""
    x, kernel, bias = constant_arguments(node, constant)
    options = dict(node.options)
    if "inputs" in options:
        layer = convolution_of_codes(kernel, bias, name=name, dtype=policy_for(kernel, dtype), **options)
        return Call(layer, (x,))
    kernel = dequantize(kernel) if isinstance(kernel, QuantizedArray) else kernel
    return Call(convolution(kernel, bias, name=name, dtype=dtype, **options), (x,))


def constant_arguments(node: Node, constant: Constant) -> tuple[Any, Any, Any]:
    """Return the first argument of a node, and the values of the second and third one."""
    x, kernel, bias = (*node.arguments, None)[:3]
    return x, constant(kernel), constant(bias)


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
        "padding": pairs_of(pads), "dtype": policy_for(kernel, dtype),
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
    found: Layer = layer
    return found


def pairs_of(pads: Sequence[int] | str) -> Padding:
    """Return the places before and after each axis; names of paddings as they are."""
    half = len(pads) // 2
    return pads if isinstance(pads, str) else list(zip(pads[:half], pads[half:], strict=True))


def convolution_of_codes(
    kernel: QuantizedArray,
    bias: Array | None,
    *,
    inputs: Inputs,
    pads: Sequence[int] | str = "valid",
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    group: int = 1,
    **options: Any,
) -> "ConvolutionOfCodes":
    """Return a layer with the codes of a kernel; one scale and one zero point quantize its `inputs`."""
    assert group == 1, group
    kernel = signed(kernel)
    filters, channels, *size = kernel.shape
    layer = ConvolutionOfCodes(
        filters, size, strides or 1, pairs_of(pads), dilations or 1, use_bias=bias is not None, **options
    )
    layer.build((None, channels, *[None] * len(size)))
    zero = 0 if kernel.zero_point is None else kernel.zero_point.reshape(-1)
    values = {
        "codes": frozen(kernel.values), "scale": np.broadcast_to(kernel.scale.reshape(-1), filters),
        "zero_point": np.broadcast_to(np.int32(zero), filters), "inputs_scale": np.float32(inputs.scale),
        "inputs_zero_point": np.int8(inputs.zero_point), "bias": bias,
    }  # fmt: skip
    for name, x in values.items():
        if x is not None:
            getattr(layer, name).assign(x)
    return layer


class ConvolutionOfCodes(KernelLayer):
    """A convolution of int8 codes: inputs are quantized by a fixed scale, and products are exact in int32.

    Arrays have the channels at axis 1, `codes` the filters at axis 0, as in files.

    Parameters
    ----------
    filters : int
    kernel_size, strides, padding, dilation_rate, activation, use_bias
        As in :class:`~mp_core.layers.Conv2D`.
    **kwargs
        Arguments of :class:`~mp_core.layers.Layer`.
    """

    _arrays = ("inputs",)
    _sample_independence = "always"
    _options = ("filters", "kernel_size", "strides", "padding", "dilation_rate", "activation", "use_bias")

    def __init__(
        self,
        filters: int,
        kernel_size: Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: Padding = "valid",
        dilation_rate: int | Sequence[int] = 1,
        activation: Any = None,
        use_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        vars(self)["_rank"] = len(kernel_size)
        super().__init__(
            kernel_size, strides, padding, "channels_first", dilation_rate, activation, use_bias, "zeros", **kwargs
        )
        self.filters = filters

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the codes, their scales and zero points, those of the inputs, and the bias."""

        def add(name: str, dtype: str, *shape: int | None) -> AutoCastVariable:
            return self.add_weight(shape, "zeros", dtype, False, False, name=name)

        self.codes = add("codes", "int8", self.filters, input_shape[1], *self.kernel_size)
        self.scale, self.zero_point = add("scale", "float32", self.filters), add("zero_point", "int32", self.filters)
        self.inputs_scale, self.inputs_zero_point = add("inputs_scale", "float32"), add("inputs_zero_point", "int8")
        self.bias = add("bias", "float32", self.filters) if self.use_bias else None

    def call(self, inputs: Array) -> Array:
        """Return the outputs, with the channels at axis 1."""
        scale, zero = self.inputs_scale.numpy(), self.inputs_zero_point.numpy()
        codes = ops.quantize_linear(inputs, scale, zero)
        bias = None if self.bias is None else self.bias.numpy()
        fused = activations.FUSED.get(self.activation)
        geometry = self.strides, self.padding, "channels_first", self.dilation_rate
        outputs = _convolved(codes, scale, zero, self._matrix(), geometry, self.kernel_size, bias, fused)
        return ops.cast(outputs if fused else self.activation(outputs), inputs.dtype)

    def _matrix(self) -> Any:
        """Return the packed codes; they are packed again if one of the variables was assigned."""
        scale, zero = (x.numpy().reshape(1, -1) for x in (self.scale, self.zero_point))

        def pack(codes: Array) -> Any:
            lines = codes.transpose(*range(2, codes.ndim), 1, 0).reshape(-1, len(codes))
            return ops.pack(QuantizedArray(lines, scale, zero if zero.any() else None, (1,)))

        return self.codes.derived(("packed", self.scale.numpy().tobytes(), zero.tobytes()), pack)


OWN_LAYERS = {"ConvolutionOfCodes": ConvolutionOfCodes}
"""The layers that folders of programs may name besides those of :mod:`mp_core.layers`."""


@recordable
def _convolved(
    codes: Array, scale: Any, zero: Any, matrix: Any, geometry: Any, size: Any, bias: Any, activation: Any
) -> Array:
    """Return the convolution of codes as floats."""
    one = (1,) * codes.ndim
    x = QuantizedArray(codes, constant(np.full(one, scale, np.float32)), constant(np.full(one, zero, np.int32)))
    found: Array = ops.conv(x, matrix, *geometry, kernel_size=size, bias=bias, activation=activation)
    return found
