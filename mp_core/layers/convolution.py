"""Convolution along one, two or three axes, as one product of windows."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.layers import activations
from mp_core.layers.convolution_base import ConvolutionBase
from mp_core.layers.lora import AdaptableLayer, LoRA
from mp_core.layers.shapes import Shape, windowed_shape
from mp_core.layers.spatial import with_example
from mp_core.ops.convolution import convolve
from mp_core.ops.convolution_specs import Padding, Windows, windows_over
from mp_core.ops.elementwise import concatenated
from mp_core.utilities.arguments import positive_integer

__all__ = ["Conv1D", "Conv2D", "Conv3D"]

_PARAMETERS = """

    Parameters
    ----------
    filters : int
        Number of output channels.
    kernel_size, strides, dilation_rate : int or sequence of int
        One number for all spatial axes, or one for each.
    padding : {"valid", "same"} or sequence of (int, int), of Conv1D also "causal"
        Pairs are the places of zeros before and after each spatial axis.
        With "causal", an output depends only on its own position and earlier ones.
    data_format : {"channels_last", "channels_first"}, optional
        Position of the channels axis in inputs and outputs; default: last.
    groups : int
        Number of channel groups that are convolved separately.
    activation : str or callable, optional
    use_bias : bool
    kernel_initializer, bias_initializer : str, dict or callable
    **kwargs
        ``lora_rank`` and ``lora_alpha`` (see :meth:`enable_lora`), and the arguments of :class:`Layer`.
    """


class _Convolution(ConvolutionBase, AdaptableLayer):
    _sample_independence = "always"
    _arrays = ("inputs",)
    _matrix_name = "kernel"
    _options = (
        "filters", "kernel_size", "strides", "padding", "data_format", "dilation_rate", "groups", "activation",
        "use_bias", "kernel_initializer", "bias_initializer",
    )  # fmt: skip

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_rank" in vars(cls):
            cls.__doc__ = with_example(cls, _PARAMETERS, '3, 3, padding="same"', 8, 8)

    def __init__(
        self,
        filters: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: Padding = "valid",
        data_format: str | None = None,
        dilation_rate: int | Sequence[int] = 1,
        groups: int = 1,
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
        self.groups = positive_integer(groups, "groups")
        if self.filters % self.groups:
            raise ValueError(f"`groups` must divide `filters`; received groups={groups}, filters={filters}")

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the kernel, shape (*kernel_size, channels / groups, filters), and the bias."""
        channels = self._channels(input_shape)
        if not channels or channels % self.groups:
            raise ValueError(f"`groups`={self.groups} must divide the channels of the inputs; received {input_shape}")
        self._depth = channels
        shape, bias_shape = (*self.kernel_size, channels // self.groups, self.filters), (self.filters,)
        geometry = (shape, math.prod(shape[:-1]), self.filters, bias_shape, tuple(range(len(shape))), self.groups)
        self._add_kernel(bias_shape if self.use_bias else None, *geometry)
        self._add_requested_lora()

    def call(self, inputs: Array, training: bool = False) -> Array:
        """Return the outputs, shape (batch, positions ..., filters), or with the channels at axis 1.

        With `training`, the "gradients" of a float8 layer's scales are their next values.
        """
        x = self._checked_inputs(inputs)
        fused = activations.FUSED.get(self.activation) if self._lora is None else None
        windows = self._windows(x.shape[1:-1])
        outputs = self.form.multiply(x, self.bias, fused, self._compute, training, windows=windows)
        if self._lora is not None:
            outputs = self._adapted(x, outputs, self._lora)
        return self._arranged(self.activation(outputs) if fused is None else outputs)

    def _windows(self, lengths: tuple[int, ...]) -> Windows:
        """Return the windows of inputs with these spatial lengths."""
        before = [(span - 1, 0) for span in self._spans()]
        padding = before if self.padding == "causal" else self.padding
        return windows_over(lengths, self.kernel_size, self.strides, padding, self.dilation_rate)

    def _adapted(self, x: Array, outputs: Array, lora: LoRA) -> Array:
        """Return the outputs plus those of the thin matrices, group by group."""
        width, windows = self.filters // self.groups, self._windows(x.shape[1:-1])
        a = lora.a.read_value()
        a = a.reshape(-1, a.shape[-1])
        parts = [
            lora.added(part, convolve(group, a, windows=windows), slice(number * width, (number + 1) * width))
            for number, (group, part) in enumerate(zip(
                np.split(x, self.groups, axis=-1), np.split(outputs, self.groups, axis=-1), strict=True
            ))
        ]  # fmt: skip
        return parts[0] if self.groups == 1 else concatenated(*parts, axis=-1)

    def _shape_after(self, shape: Shape) -> Shape | None:
        channels = self._channels(shape)
        unfit = not channels or channels % self.groups or (self.built and channels != self._depth)
        if unfit or not activations.keeps_shape(self.activation):
            return None
        return windowed_shape(shape, self._spans(), self.strides, self.padding, self.data_format, self.filters)


class Conv1D(_Convolution):
    """``activation(conv(inputs, kernel) + bias)`` of sequences (batch, steps, channels)."""

    _matrix_name = "kernel"
    _rank = 1
    _paddings = ("valid", "same", "causal")


class Conv2D(_Convolution):
    """``activation(conv(inputs, kernel) + bias)`` of images (batch, height, width, channels)."""

    _matrix_name = "kernel"
    _rank = 2


class Conv3D(_Convolution):
    """``activation(conv(inputs, kernel) + bias)`` of volumes (batch, depth, height, width, channels)."""

    _matrix_name = "kernel"
    _rank = 3
