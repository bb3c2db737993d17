"""Convolution along one or two axes, as one matrix product over windows."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mp_core import ops
from mp_core.arrays import Array
from mp_core.autocast import AutoCastVariable
from mp_core.forms.products import packed
from mp_core.layers import activations, initializers
from mp_core.layers.configuration import data_format_of, sizes_of
from mp_core.layers.elementwise import floating
from mp_core.layers.matrix import MatrixLayer
from mp_core.layers.shapes import Shape, after_windows
from mp_core.ops.elementwise import concatenated
from mp_core.utilities.arguments import boolean, positive_integer

__all__ = ["Conv1D", "Conv2D", "same_padding"]


class _Convolution(MatrixLayer):
    """``activation(conv(inputs, kernel) + bias)`` (a cross-correlation, as everywhere in deep learning)."""

    _arrays = ("inputs",)
    _matrix_name = "kernel"
    kernel: AutoCastVariable
    _quantizes = False
    _rank: ClassVar[int]
    _paddings: ClassVar[tuple[str, ...]] = ("valid", "same")
    _told = ("filters", "kernel_size")
    _options = (
        "filters", "kernel_size", "strides", "padding", "data_format", "dilation_rate", "groups", "activation",
        "use_bias", "kernel_initializer", "bias_initializer",
    )  # fmt: skip

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        groups: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if padding not in self._paddings:
            raise ValueError(f"`padding` must be {' or '.join(map(repr, self._paddings))}; received {padding!r}")
        self.filters = positive_integer(filters, "filters")
        self.groups = positive_integer(groups, "groups")
        if self.filters % self.groups:
            raise ValueError(f"`groups` must divide `filters`; received groups={groups}, filters={filters}")
        self.kernel_size = sizes_of(kernel_size, "kernel_size", self._rank)
        self.strides = sizes_of(strides, "strides", self._rank)
        self.padding = padding
        self.data_format = data_format_of(data_format)
        self.dilation_rate = sizes_of(dilation_rate, "dilation_rate", self._rank)
        self.activation = activations.get(activation)
        self.use_bias = boolean(use_bias, "use_bias")
        self.kernel_initializer = initializers.checked(kernel_initializer)
        self.bias_initializer = initializers.checked(bias_initializer)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create kernel (lengths ..., channels / groups, filters) and bias for inputs of this shape."""
        channels = self._channels(input_shape)
        if not channels or channels % self.groups:
            raise ValueError(f"`groups`={self.groups} must divide the channels of the inputs; received {input_shape}")
        self._depth = channels
        shape, bias_shape = (*self.kernel_size, channels // self.groups, self.filters), (self.filters,)
        geometry = (shape, math.prod(shape[:-1]), self.filters, bias_shape, tuple(range(len(shape))))
        self._add_kernel(bias_shape if self.use_bias else None, *geometry)

    def call(self, inputs: Array) -> Array:
        """Return the outputs, shape (batch, places ..., filters), or with the channels at axis 1."""
        if self._channels(inputs.shape) != self._depth:
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected {self._depth} channels, '
                f"but received input with shape {inputs.shape} ({self.data_format})"
            )
        inputs = floating(inputs, self._compute)
        if self.data_format == "channels_first":
            inputs = np.moveaxis(inputs, 1, -1)
        windows, axes = self._windows(inputs), self._rank + 1
        kernels = self._matrices()
        biases = [None] * self.groups if self.bias is None else np.split(self.bias.read_value(), self.groups)
        fused = activations.FUSED.get(self.activation)
        parts = [
            ops.matmul(
                group.reshape(*group.shape[:axes], math.prod(group.shape[axes:])), kernel, bias=bias, activation=fused
            )
            for group, kernel, bias in zip(np.split(windows, self.groups, axis=-1), kernels, biases, strict=True)
        ]
        outputs = parts[0] if self.groups == 1 else concatenated(*parts, axis=-1)
        if fused is None:
            outputs = self.activation(outputs)
        return np.moveaxis(outputs, -1, 1) if self.data_format == "channels_first" else outputs

    def _shape_after(self, shape: Shape) -> Shape | None:
        channels = self._channels(shape)
        unfit = not channels or channels % self.groups or (self.built and channels != self._depth)
        if unfit or not activations.keeps_shape(self.activation):
            return None
        return after_windows(shape, self._spans(), self.strides, self.padding, self.data_format, self.filters)

    def _channels(self, shape: tuple[int | None, ...]) -> int | None:
        """Return the number of channels of inputs of this shape."""
        if len(shape) != self._rank + 2:
            what = "a batch of images" if self._rank == 2 else "a batch of sequences"
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected {self._rank + 2} axes '
                f"({what}), but received input with shape {shape}"
            )
        return shape[-1 if self.data_format == "channels_last" else 1]

    def _windows(self, x: Array) -> Array:
        """Return a view (batch, places ..., lengths of the kernel ..., channels)."""
        spans = self._spans()
        if self.padding != "valid":
            x = ops.pad_zeros(x, [(0, 0), *map(self._padded, x.shape[1:-1], spans, self.strides), (0, 0)])
        if any(length < span for length, span in zip(x.shape[1:-1], spans, strict=True)):
            raise ValueError(
                f"The inputs of layer '{self.name}', {x.shape}, are smaller than its kernel's span, {spans}"
            )
        windows = sliding_window_view(x, spans, axis=tuple(range(1, self._rank + 1)))
        steps = (slice(None, None, step) for step in (*self.strides, 1, *self.dilation_rate))
        return np.moveaxis(windows[:, *steps], self._rank + 1, -1)

    def _spans(self) -> list[int]:
        return [dilation * (size - 1) + 1 for dilation, size in zip(self.dilation_rate, self.kernel_size, strict=True)]

    def _padded(self, length: int, span: int, stride: int) -> tuple[int, int]:
        """Return the zeros before and after an axis."""
        return same_padding(length, span, stride) if self.padding == "same" else (span - 1, 0)

    def _matrices(self) -> list[Any]:
        """Return the kernel of each group as a packed matrix."""
        kernel = self.form.variables["kernel"]
        dtype = kernel.dtype

        def pack(stored: Array) -> list[Any]:
            parts = np.split(stored.reshape(-1, self.filters), self.groups, axis=-1)
            return [packed(part, dtype) for part in parts]

        return kernel.derived(("groups", dtype), pack)


class Conv1D(_Convolution):
    """The convolution of sequences: arrays (batch, places, channels).

    Parameters
    ----------
    filters : int
        Channels of the outputs.
    kernel_size, strides, dilation_rate : int or sequence of one int
    padding : {"valid", "same", "causal"}
        With "causal", an output depends on its own place and those before.
    data_format : {"channels_last", "channels_first"}, optional
        Where inputs and outputs have their channels; default: last.
    groups : int
        Groups of channels that do not mix.
    activation : str or callable, optional
    use_bias : bool
    kernel_initializer, bias_initializer : str, dict or callable
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> layer = Conv1D(5, 3, padding="causal")
    >>> layer(np.ones((1, 8, 4), np.float32)).shape, layer.kernel.shape
    ((1, 8, 5), (3, 4, 5))
    """

    _matrix_name = "kernel"
    _rank = 1
    _paddings = ("valid", "same", "causal")


class Conv2D(_Convolution):
    """``activation(conv(inputs, kernel) + bias)`` (a cross-correlation, as everywhere in deep learning).

    Parameters
    ----------
    filters : int
        Channels of the outputs.
    kernel_size, strides, dilation_rate : int or pair of int
    padding : {"valid", "same"}
    data_format : {"channels_last", "channels_first"}, optional
        Where inputs and outputs have their channels; default: last.
    groups : int
        Groups of channels that do not mix.
    activation : str or callable, optional
    use_bias : bool
    kernel_initializer, bias_initializer : str, dict or callable
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> layer = Conv2D(5, 3, padding="same")
    >>> layer(np.ones((1, 8, 8, 4), np.float32)).shape, layer.kernel.shape
    ((1, 8, 8, 5), (3, 3, 4, 5))
    """

    _matrix_name = "kernel"
    _rank = 2


def same_padding(length: int, span: int, stride: int) -> tuple[int, int]:
    """Return the zeros before and after an axis so that it gives ceil(length / stride) outputs."""
    total = max((-(-length // stride) - 1) * stride + span - length, 0)
    return total // 2, total - total // 2
