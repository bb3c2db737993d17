"""Two-dimensional convolution, as one matrix product over windows."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mp_core import ops
from mp_core.arguments import boolean, positive_integer
from mp_core.arrays import Array
from mp_core.layers import activations, initializers
from mp_core.layers.matrix import MatrixLayer

__all__ = ["Conv2D"]


class Conv2D(MatrixLayer):
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

    _arrays = ("inputs",)
    _matrix_name = "kernel"
    _quantizes = False
    _told = ("filters", "kernel_size")
    _options = (
        "filters", "kernel_size", "strides", "padding", "data_format", "dilation_rate", "groups", "activation",
        "use_bias", "kernel_initializer", "bias_initializer",
    )  # fmt: skip

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = (1, 1),
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = (1, 1),
        groups: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if padding not in ("valid", "same"):
            raise ValueError(f"`padding` must be 'valid' or 'same'; received {padding!r}")
        if data_format not in (None, "channels_last", "channels_first"):
            raise ValueError(f"`data_format` must be 'channels_last' or 'channels_first'; received {data_format!r}")
        self.filters = positive_integer(filters, "filters")
        self.groups = positive_integer(groups, "groups")
        if self.filters % self.groups:
            raise ValueError(f"`groups` must divide `filters`; received groups={groups}, filters={filters}")
        self.kernel_size = _pair(kernel_size, "kernel_size")
        self.strides = _pair(strides, "strides")
        self.padding = padding
        self.data_format = data_format or "channels_last"
        self.dilation_rate = _pair(dilation_rate, "dilation_rate")
        self.activation = activations.get(activation)
        self.use_bias = boolean(use_bias, "use_bias")
        self.kernel_initializer = initializers.checked(kernel_initializer)
        self.bias_initializer = initializers.checked(bias_initializer)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create kernel (height, width, channels / groups, filters) and bias for inputs of this shape."""
        channels = self._channels(input_shape)
        if not channels or channels % self.groups:
            raise ValueError(f"`groups`={self.groups} must divide the channels of the inputs; received {input_shape}")
        self._depth = channels
        shape, bias_shape = (*self.kernel_size, channels // self.groups, self.filters), (self.filters,)
        geometry = (shape, math.prod(shape[:-1]), self.filters, bias_shape, (0, 1, 2, 3))
        self._add_kernel(bias_shape if self.use_bias else None, *geometry)

    def call(self, inputs: Array) -> Array:
        """Return the outputs, shape (batch, height, width, filters), or with the channels at axis 1."""
        if self._channels(inputs.shape) != self._depth:
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected {self._depth} channels, '
                f"but received input with shape {inputs.shape} ({self.data_format})"
            )
        if self.data_format == "channels_first":
            inputs = np.moveaxis(inputs, 1, -1)
        windows = self._windows(inputs)
        kernels = self._matrices()
        biases = [None] * self.groups if self.bias is None else np.split(self.bias.read_value(), self.groups)
        fused = activations.FUSED.get(self.activation)
        parts = [
            ops.matmul(group.reshape(*group.shape[:3], math.prod(group.shape[3:])), kernel, bias=bias, activation=fused)
            for group, kernel, bias in zip(np.split(windows, self.groups, axis=-1), kernels, biases, strict=True)
        ]
        outputs = parts[0] if self.groups == 1 else np.concatenate(parts, axis=-1)
        if fused is None:
            outputs = self.activation(outputs)
        return np.moveaxis(outputs, -1, 1) if self.data_format == "channels_first" else outputs

    def _channels(self, shape: tuple[int | None, ...]) -> int | None:
        """Return the number of channels of inputs of this shape."""
        if len(shape) != 4:
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected 4 axes (a batch of images), '
                f"but received input with shape {shape}"
            )
        return shape[-1 if self.data_format == "channels_last" else 1]

    def _windows(self, x: Array) -> Array:
        """Return a view (batch, rows, columns, kernel height, kernel width, channels)."""
        spans = [dilation * (size - 1) + 1 for dilation, size in zip(self.dilation_rate, self.kernel_size, strict=True)]
        if self.padding == "same":
            padding = [_same(length, *item) for length, *item in zip(x.shape[1:3], spans, self.strides, strict=True)]
            x = ops.pad_zeros(x, [(0, 0), *padding, (0, 0)])
        if any(length < span for length, span in zip(x.shape[1:3], spans, strict=True)):
            raise ValueError(
                f"The inputs of layer '{self.name}', {x.shape}, are smaller than its kernel's span, {spans}"
            )
        windows = sliding_window_view(x, spans, axis=(1, 2))
        rows, columns = self.strides
        down, right = self.dilation_rate
        return np.moveaxis(windows[:, ::rows, ::columns, :, ::down, ::right], 3, -1)

    def _matrices(self) -> list[Any]:
        """Return the kernel of each group as a packed matrix."""
        kernel = self.form.variables["kernel"]
        dtype = kernel.dtype

        def pack(stored: Array) -> list[Any]:
            matrix = ops.cast(stored.reshape(-1, self.filters), dtype)
            parts = np.split(matrix, self.groups, axis=-1)
            return parts if dtype.name == "float64" else [ops.pack(part) for part in parts]

        return kernel.derived(("groups", dtype), pack)


def _pair(value: int | Sequence[int], argument: str) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(pair) != 2:
        raise ValueError(f"`{argument}` must be a positive integer or a pair of them; received {value!r}")
    return positive_integer(pair[0], argument), positive_integer(pair[1], argument)


def _same(length: int, span: int, stride: int) -> tuple[int, int]:
    """Return the zeros before and after an axis so that it gives ceil(length / stride) outputs."""
    total = max((-(-length // stride) - 1) * stride + span - length, 0)
    return total // 2, total - total // 2
