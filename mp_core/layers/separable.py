"""Separable convolution: a depthwise convolution, then a product of the channels with one matrix at each position."""

from collections.abc import Sequence
from typing import Any

from mp_core import ops
from mp_core.arrays import Array
from mp_core.layers import activations, initializers
from mp_core.layers.depthwise import DepthwiseBase
from mp_core.layers.forms.products import packed
from mp_core.layers.shapes import Shape
from mp_core.layers.spatial import with_example
from mp_core.ops.convolution_specs import Padding
from mp_core.utilities.arguments import positive_integer

__all__ = ["SeparableConv1D", "SeparableConv2D"]

_PARAMETERS = """
    The outputs are those of a depthwise convolution without bias, followed by a convolution with kernel size 1.

    Parameters
    ----------
    filters : int
        Number of output channels.
    kernel_size, strides, dilation_rate : int or sequence of int
        For the depthwise convolution: one number for all spatial axes, or one for each.
    padding : {"valid", "same"} or sequence of (int, int)
        Pairs are the places of zeros before and after each spatial axis.
    data_format : {"channels_last", "channels_first"}, optional
        Position of the channels axis in inputs and outputs; default: last.
    depth_multiplier : int
        Number of depthwise kernels per channel.
    activation : str or callable, optional
    use_bias : bool
    depthwise_initializer, pointwise_initializer, bias_initializer : str, dict or callable
    **kwargs : those of :class:`Layer`
    """


class _SeparableConv(DepthwiseBase):
    """The base of separable convolutions. The result of the depthwise part is rounded to the compute dtype."""

    _sample_independence = "always"
    _repr_arguments = ("filters", "kernel_size")
    _options = (
        "filters", "kernel_size", "strides", "padding", "data_format", "dilation_rate", "depth_multiplier",
        "activation", "use_bias", "depthwise_initializer", "pointwise_initializer", "bias_initializer",
    )  # fmt: skip

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_rank" in vars(cls):
            cls.__doc__ = with_example(cls, _PARAMETERS, "3, 3", 8, 6)

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: Padding = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        depth_multiplier: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        pointwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            kernel_size, strides, padding, depth_multiplier, data_format, dilation_rate, activation, use_bias,
            depthwise_initializer, bias_initializer, **kwargs,
        )  # fmt: skip
        self.filters = positive_integer(filters, "filters")
        self.pointwise_initializer = initializers.checked(pointwise_initializer)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create both kernels and the bias.

        Their shapes are (*kernel_size, channels, depth_multiplier), (1, ..., channels * depth_multiplier, filters) and
        (filters,).
        """
        self.depthwise_kernel = self._add_kernel(input_shape, "depthwise_kernel")
        shape = (*(1 for _ in self.kernel_size), self._channels * self.depth_multiplier, self.filters)
        self.pointwise_kernel = self.add_weight(shape, initializer=self.pointwise_initializer, name="pointwise_kernel")
        self.bias = self._add_bias(self.filters)

    def call(self, inputs: Array) -> Array:
        """Return the outputs, shape (batch, positions ..., filters), or with the channels at axis 1."""
        hidden = self._depthwise(inputs, self.depthwise_kernel.read_value(), None)
        bias = None if self.bias is None else self.bias.read_value()
        fused = activations.FUSED.get(self.activation)
        outputs = ops.matmul(hidden, self._matrix(), bias=bias, activation=fused)
        return self._arranged(self.activation(outputs) if fused is None else outputs)

    def _matrix(self) -> Any:
        kernel = self.pointwise_kernel
        dtype = kernel.dtype
        return kernel.derived(("matrix", dtype), lambda stored: packed(stored.reshape(-1, self.filters), dtype))

    def _shape_after(self, shape: Shape) -> Shape | None:
        return self._shape_with_channels(shape, self.filters)


class SeparableConv1D(_SeparableConv):
    """A depthwise convolution of sequences, then a product of the channels of each step with one matrix."""

    _rank = 1


class SeparableConv2D(_SeparableConv):
    """A depthwise convolution of images, then a product of the channels of each pixel with one matrix."""

    _rank = 2
