"""Depthwise convolution: every channel by kernels of its own."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.layers import activations, initializers
from mp_core.layers.configuration import data_format_of, sizes_of
from mp_core.layers.convolution import same_padding
from mp_core.layers.elementwise import accumulate, floating, rounded
from mp_core.layers.layer import Layer
from mp_core.utilities.arguments import boolean, positive_integer

__all__ = ["DepthwiseConv2D"]


class DepthwiseConv2D(Layer):
    """``activation(conv(channel, kernels of this channel) + bias)``, accumulated in float32.

    Parameters
    ----------
    kernel_size, strides, dilation_rate : int or pair of int
    padding : {"valid", "same"}
    depth_multiplier : int
        How many kernels a channel has, and so how many channels of the outputs come from it.
    data_format : {"channels_last", "channels_first"}, optional
        Where inputs and outputs have their channels; default: last.
    activation : str or callable, optional
    use_bias : bool
    depthwise_initializer, bias_initializer : str, dict or callable
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> layer = DepthwiseConv2D(3, depth_multiplier=2)
    >>> layer(np.ones((1, 8, 8, 4), np.float32)).shape, layer.kernel.shape
    ((1, 6, 6, 8), (3, 3, 4, 2))
    """

    _arrays = ("inputs",)
    _told = ("kernel_size",)
    _options = (
        "kernel_size", "strides", "padding", "depth_multiplier", "data_format", "dilation_rate", "activation",
        "use_bias", "depthwise_initializer", "bias_initializer",
    )  # fmt: skip

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        depth_multiplier: int = 1,
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if padding not in ("valid", "same"):
            raise ValueError(f"`padding` must be 'valid' or 'same'; received {padding!r}")
        self.kernel_size = sizes_of(kernel_size, "kernel_size", 2)
        self.strides = sizes_of(strides, "strides", 2)
        self.padding = padding
        self.depth_multiplier = positive_integer(depth_multiplier, "depth_multiplier")
        self.data_format = data_format_of(data_format)
        self.dilation_rate = sizes_of(dilation_rate, "dilation_rate", 2)
        self.activation = activations.get(activation)
        self.use_bias = boolean(use_bias, "use_bias")
        self.depthwise_initializer = initializers.checked(depthwise_initializer)
        self.bias_initializer = initializers.checked(bias_initializer)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create kernel (height, width, channels, depth_multiplier) and bias for inputs of this shape."""
        channels = input_shape[-1 if self.data_format == "channels_last" else 1] if len(input_shape) == 4 else None
        if channels is None:
            raise ValueError(f"The channels of a batch of images must be known; received shape {input_shape}")
        self._channels = channels
        shape = (*self.kernel_size, channels, self.depth_multiplier)
        self.kernel = self.add_weight(shape, initializer=self.depthwise_initializer, name="kernel")
        self.bias = None
        if self.use_bias:
            outputs = (channels * self.depth_multiplier,)
            self.bias = self.add_weight(outputs, initializer=self.bias_initializer, name="bias")

    def call(self, inputs: Array) -> Array:
        """Return the outputs, shape (batch, rows, columns, channels * depth_multiplier), or with them at axis 1."""
        x = floating(inputs, self._compute)
        if x.ndim == 4 and self.data_format == "channels_first":
            x = np.moveaxis(x, 1, -1)
        if x.ndim != 4 or x.shape[-1] != self._channels:
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected 4 axes and {self._channels} '
                f"channels, but received input with shape {inputs.shape} ({self.data_format})"
            )
        kernel = self.kernel.read_value()
        bias = np.zeros((), x.dtype) if self.bias is None else self.bias.read_value()
        outputs = self.activation(rounded(self._convolved, ops.pad_zeros(x, self._padding(x)), kernel, bias))
        return np.moveaxis(outputs, -1, 1) if self.data_format == "channels_first" else outputs

    def _spans(self) -> list[int]:
        return [dilation * (size - 1) + 1 for dilation, size in zip(self.dilation_rate, self.kernel_size, strict=True)]

    def _padding(self, x: Array) -> list[tuple[int, int]]:
        """Return the zeros before and after each axis."""
        lengths, spans = x.shape[1:3], self._spans()
        if self.padding == "same":
            return [(0, 0), *map(same_padding, lengths, spans, self.strides), (0, 0)]
        if any(length < span for length, span in zip(lengths, spans, strict=True)):
            raise ValueError(
                f"The inputs of layer '{self.name}', {x.shape}, are smaller than its kernel's span, {spans}"
            )
        return [(0, 0)] * 4

    def _convolved(self, x: Array, kernel: Array, bias: Array) -> Array:
        """Return the sum over the places of the kernel, in the order of its rows, and the bias."""
        rows, columns = (
            range(0, length - span + 1, stride)
            for length, span, stride in zip(x.shape[1:3], self._spans(), self.strides, strict=True)
        )
        outputs = np.zeros((x.shape[0], len(rows), len(columns), *kernel.shape[2:]), x.dtype)
        for i, j in itertools.product(*map(range, self.kernel_size)):
            down, right = i * self.dilation_rate[0], j * self.dilation_rate[1]
            part = x[:, down : down + rows.stop : rows.step, right : right + columns.stop : columns.step]
            outputs = accumulate(outputs, part[..., np.newaxis] * kernel[i, j])
        return outputs.reshape(*outputs.shape[:3], self._channels * self.depth_multiplier) + bias
