"""Depthwise convolution: each channel is convolved with its own kernels."""

from collections.abc import Sequence
from typing import Any

from mp_core import ops
from mp_core.arrays import Array
from mp_core.layers import activations, initializers
from mp_core.layers.convolution_base import KernelLayer
from mp_core.layers.shapes import Shape, windowed_shape
from mp_core.layers.spatial import with_example
from mp_core.ops.convolution_specs import Padding
from mp_core.ops.elementwise import floating
from mp_core.utilities.arguments import positive_integer

__all__ = ["DepthwiseBase", "DepthwiseConv1D", "DepthwiseConv2D"]

_PARAMETERS = """

    Parameters
    ----------
    kernel_size, strides, dilation_rate : int or sequence of int
        One number for all spatial axes, or one for each.
    padding : {"valid", "same"} or sequence of (int, int)
        Pairs are the places of zeros before and after each spatial axis.
    depth_multiplier : int
        Number of kernels per channel, and so of output channels per input channel.
    data_format : {"channels_last", "channels_first"}, optional
        Position of the channels axis in inputs and outputs; default: last.
    activation : str or callable, optional
    use_bias : bool
    depthwise_initializer, bias_initializer : str, dict or callable
    **kwargs : those of :class:`Layer`
    """


class DepthwiseBase(KernelLayer):
    """The base of depthwise and separable convolutions: sums over the kernel, channel by channel."""

    _arrays = ("inputs",)

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: Padding = "valid",
        depth_multiplier: int = 1,
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, bias_initializer, **kwargs
        )
        self.depth_multiplier = positive_integer(depth_multiplier, "depth_multiplier")
        self.depthwise_initializer = initializers.checked(depthwise_initializer)

    def _add_kernel(self, input_shape: tuple[int | None, ...], name: str) -> Any:
        """Create and return the kernel, shape (*kernel_size, channels, depth_multiplier)."""
        is_batch = len(input_shape) == self._rank + 2
        channels = self._length_of_channels(input_shape) if is_batch else None
        if channels is None:
            what = "images" if self._rank == 2 else "sequences"
            raise ValueError(f"The channels of a batch of {what} must be known; received shape {input_shape}")
        self._channels = channels
        shape = (*self.kernel_size, channels, self.depth_multiplier)
        return self.add_weight(shape, initializer=self.depthwise_initializer, name=name)

    def _add_bias(self, channels: int) -> Any:
        """Create and return the bias, shape (channels,); None without bias."""
        return self.add_weight((channels,), initializer=self.bias_initializer, name="bias") if self.use_bias else None

    def _depthwise(self, inputs: Array, kernel: Array, bias: Array | None, activation: str | None = None) -> Array:
        """Return ``activation(depthwise convolution + bias)`` with the channels last."""
        x = floating(inputs, self._compute)
        x = self._channels_last(x) if x.ndim > 1 else x
        if x.ndim != self._rank + 2 or x.shape[-1] != self._channels:
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected {self._rank + 2} axes and '
                f"{self._channels} channels, but received input with shape {inputs.shape} ({self.data_format})"
            )
        return ops.depthwise_conv(
            x, kernel, self.strides, self.padding, dilation_rate=self.dilation_rate, bias=bias, activation=activation
        )

    def _shape_with_channels(self, shape: Shape, filters: int | None) -> Shape | None:
        """Return the output shape with `filters` output channels; None if only a call can determine it."""
        if filters is None or len(shape) != self._rank + 2 or not activations.keeps_shape(self.activation):
            return None
        channels = self._length_of_channels(shape)
        if channels is None or (self.built and channels != self._channels):
            return None
        return windowed_shape(shape, self._spans(), self.strides, self.padding, self.data_format, filters)


class _DepthwiseConv(DepthwiseBase):
    _sample_independence = "always"
    _repr_arguments = ("kernel_size",)
    _options = (
        "kernel_size", "strides", "padding", "depth_multiplier", "data_format", "dilation_rate", "activation",
        "use_bias", "depthwise_initializer", "bias_initializer",
    )  # fmt: skip

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_rank" in vars(cls):
            cls.__doc__ = with_example(cls, _PARAMETERS, "3", 8, 6)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the kernel, shape (*kernel_size, channels, depth_multiplier), and the bias."""
        self.kernel = self._add_kernel(input_shape, "kernel")
        self.bias = self._add_bias(self._channels * self.depth_multiplier)

    def call(self, inputs: Array) -> Array:
        """Return the outputs, shape (batch, positions ..., channels * depth_multiplier), or with channels at axis 1."""
        bias = None if self.bias is None else self.bias.read_value()
        fused = activations.FUSED.get(self.activation)
        outputs = self._depthwise(inputs, self.kernel.read_value(), bias, fused)
        return self._arranged(self.activation(outputs) if fused is None else outputs)

    def _shape_after(self, shape: Shape) -> Shape | None:
        channels = self._length_of_channels(shape) if len(shape) > 1 else None
        return self._shape_with_channels(shape, None if channels is None else channels * self.depth_multiplier)


class DepthwiseConv1D(_DepthwiseConv):
    """``activation(conv(channel, its kernels) + bias)`` for each channel of sequences, accumulated in float32."""

    _rank = 1


class DepthwiseConv2D(_DepthwiseConv):
    """``activation(conv(channel, its kernels) + bias)`` for each channel of images, accumulated in float32."""

    _rank = 2
