"""Base classes of all convolutions: arguments, kernel, and position of the channels axis."""

from collections.abc import Sequence
from typing import Any, ClassVar

from mp_core.arrays import Array
from mp_core.layers import activations, initializers
from mp_core.layers.matrix import MatrixLayer
from mp_core.layers.spatial import Spatial
from mp_core.ops.convolution_specs import Padding, pairs_of
from mp_core.ops.elementwise import floating
from mp_core.ops.spatial import data_format_of, sizes_of, spans_of
from mp_core.policies.autocast import AutoCastVariable
from mp_core.utilities.arguments import boolean, positive_integer

__all__ = ["ConvolutionBase", "KernelLayer"]

_BATCHES = {1: "sequences", 2: "images", 3: "volumes"}


class KernelLayer(Spatial):
    """A layer that applies a kernel at every position of its inputs."""

    _paddings: ClassVar[tuple[str, ...]] = ("valid", "same")
    _takes_pairs: ClassVar[bool] = True
    """Whether `padding` may also be (before, after) for each spatial axis."""

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int],
        padding: Padding,
        data_format: str | None,
        dilation_rate: int | Sequence[int],
        activation: Any,
        use_bias: bool,
        bias_initializer: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(padding, list | tuple) and self._takes_pairs:
            padding = pairs_of(padding, self._rank)
        elif padding not in self._paddings:
            raise ValueError(f"`padding` must be {' or '.join(map(repr, self._paddings))}; received {padding!r}")
        self.kernel_size = sizes_of(kernel_size, "kernel_size", self._rank)
        self.strides = sizes_of(strides, "strides", self._rank)
        self.padding = padding
        self.data_format = data_format_of(data_format)
        self.dilation_rate = sizes_of(dilation_rate, "dilation_rate", self._rank)
        self.activation = activations.get(activation)
        self.use_bias = boolean(use_bias, "use_bias")
        self.bias_initializer = initializers.checked(bias_initializer)

    def _spans(self) -> list[int]:
        return spans_of(self.kernel_size, self.dilation_rate)


class ConvolutionBase(KernelLayer, MatrixLayer):
    """A convolution whose kernel is one matrix that mixes all channels."""

    _matrix_name = "kernel"
    kernel: AutoCastVariable
    _repr_arguments = ("filters", "kernel_size")
    _depth: int

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int],
        padding: Padding,
        data_format: str | None,
        dilation_rate: int | Sequence[int],
        activation: Any,
        use_bias: bool,
        kernel_initializer: Any,
        bias_initializer: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, bias_initializer, **kwargs
        )
        self.filters = positive_integer(filters, "filters")
        self.kernel_initializer = initializers.checked(kernel_initializer)

    def _channels(self, shape: tuple[int | None, ...]) -> int | None:
        """Return the number of channels of inputs; raise ValueError if the number of axes is wrong."""
        if len(shape) != self._rank + 2:
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected {self._rank + 2} axes '
                f"(a batch of {_BATCHES[self._rank]}), but received input with shape {shape}"
            )
        return self._length_of_channels(shape)

    def _checked_inputs(self, inputs: Array) -> Array:
        """Return inputs as floats with the channels last; raise ValueError if the number of channels is wrong."""
        if self._channels(inputs.shape) != self._depth:
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected {self._depth} channels, '
                f"but received input with shape {inputs.shape} ({self.data_format})"
            )
        return self._channels_last(floating(inputs, self._compute))
