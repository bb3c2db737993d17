"""Transposed convolution: one matrix product; its rows are overlapping windows of the outputs, which are added up."""

import math
from collections.abc import Sequence
from typing import Any

from mp_core import ops
from mp_core.arrays import Array
from mp_core.layers import activations
from mp_core.layers.convolution_base import ConvolutionBase
from mp_core.layers.forms.products import packed
from mp_core.layers.shapes import Shape
from mp_core.layers.spatial import with_example
from mp_core.ops.convolution_specs import Ends, ends_along, outputs_along
from mp_core.ops.spatial import sizes_of
from mp_core.utilities.arguments import integer

__all__ = ["Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"]

_PARAMETERS = """

    Parameters
    ----------
    filters : int
        Number of output channels.
    kernel_size, strides, dilation_rate : int or sequence of int
        One number for all spatial axes, or one for each. Either `strides` or `dilation_rate` must be 1.
    padding : {"valid", "same"}
        With "same", outputs are `strides` times as long as the inputs along each spatial axis.
    output_padding : int or sequence of int, optional
        Additional length of the outputs along each spatial axis, less than `strides`. Without it, "valid" outputs have
        length ``(n - 1) * stride + max(span, stride)`` for n inputs, where span is the length of the dilated kernel.
    data_format : {"channels_last", "channels_first"}, optional
        Position of the channels axis in inputs and outputs; default: last.
    activation : str or callable, optional
    use_bias : bool
    kernel_initializer, bias_initializer : str, dict or callable
        The kernel has the shape ``(*kernel_size, filters, channels)``.
    **kwargs : those of :class:`Layer`

    Raises
    ------
    ValueError
        An argument is invalid; the inputs have another number of axes or channels; the outputs would be empty.
    """


class _ConvTranspose(ConvolutionBase):
    """The base of transposed convolutions: they compute the gradient of a convolution for its inputs."""

    padding: str
    _quantizes = False
    _takes_pairs = False
    _sample_independence = "always"
    _arrays = ("inputs",)
    _matrix_name = "kernel"
    _options = (
        "filters", "kernel_size", "strides", "padding", "output_padding", "data_format", "dilation_rate", "activation",
        "use_bias", "kernel_initializer", "bias_initializer",
    )  # fmt: skip

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_rank" in vars(cls):
            cls.__doc__ = with_example(cls, _PARAMETERS, "3, 2, strides=2", 4, 8)

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        output_padding: int | Sequence[int] | None = None,
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            filters, kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias,
            kernel_initializer, bias_initializer, **kwargs,
        )  # fmt: skip
        self.output_padding = None
        if output_padding is not None:
            self.output_padding = sizes_of(output_padding, "output_padding", self._rank, integer)
        self._ends()  # checks the arguments

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the kernel, shape ``(*kernel_size, filters, channels)``, and the bias."""
        channels = self._channels(input_shape)
        if not channels:
            raise ValueError(f"The channels of the inputs to layer '{self.name}' must be known; received {input_shape}")
        self._depth = channels
        shape, bias_shape = (*self.kernel_size, self.filters, channels), (self.filters,)
        last = len(shape) - 1
        columns = math.prod(shape[:-1])
        self._add_kernel(
            bias_shape if self.use_bias else None, shape, channels, columns, bias_shape, (last, *range(last))
        )

    def call(self, inputs: Array) -> Array:
        """Return the outputs, shape (batch, positions ..., filters), or with the channels at axis 1."""
        outputs = ops.conv_transpose(
            self._checked_inputs(inputs), self._matrix(), self.strides, self.padding, self.output_padding,
            dilation_rate=self.dilation_rate, kernel_size=self.kernel_size,
            bias=None if self.bias is None else self.bias.read_value(),
        )  # fmt: skip
        return self._arranged(self.activation(outputs))

    def _matrix(self) -> Any:
        """Return the kernel as a packed matrix of shape (channels, prod(kernel_size) * filters)."""
        kernel = self.form.variables["kernel"]
        dtype = kernel.dtype
        return kernel.derived(("transposed", dtype), lambda stored: packed(stored.reshape(-1, self._depth).T, dtype))

    def _shape_after(self, shape: Shape) -> Shape | None:
        channels = self._channels(shape)
        if not channels or (self.built and channels != self._depth) or not activations.keeps_shape(self.activation):
            return None
        first = 1 if self.data_format == "channels_last" else 2
        lengths = shape[first : first + self._rank]
        counts = [outputs_along(*each) for each in zip(lengths, self.strides, self._ends(), strict=True)]
        if 0 in counts:
            return None
        return (shape[0], *counts, self.filters) if first == 1 else (shape[0], self.filters, *counts)

    def _ends(self) -> list[Ends]:
        """Return where the outputs begin and end along each spatial axis."""
        return ends_along(self.kernel_size, self.strides, self.padding, self.output_padding, self.dilation_rate)


class Conv1DTranspose(_ConvTranspose):
    """The transposed convolution of sequences (batch, steps, channels)."""

    _matrix_name = "kernel"
    _rank = 1


class Conv2DTranspose(_ConvTranspose):
    """The transposed convolution of images (batch, height, width, channels)."""

    _matrix_name = "kernel"
    _rank = 2


class Conv3DTranspose(_ConvTranspose):
    """The transposed convolution of volumes (batch, depth, height, width, channels)."""

    _matrix_name = "kernel"
    _rank = 3
