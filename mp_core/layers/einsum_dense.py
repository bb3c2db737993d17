"""Dense layer over several axes, by an einsum equation."""

import math
from typing import Any

import numpy as np

from mp_core.arguments import positive_integer
from mp_core.arrays import Array
from mp_core.autocast import AutoCastVariable
from mp_core.contraction import Equation, Labels, einsum, parse
from mp_core.layers import activations
from mp_core.layers.layer import Layer
from mp_core.layers.projection import add_kernel, fix_inputs, project, read_bias
from mp_core.layers.quantized import MODES, Matrix

__all__ = ["EinsumDense"]


class EinsumDense(Layer):
    """``activation(einsum(equation, inputs, kernel) + bias)``.

    Parameters
    ----------
    equation : str
        Such as ``"abc,cde->abde"``; ``...`` may stand for leading axes.
    output_shape : int or tuple of (int or None)
        Without the batch axis and those of ``...``; None keeps the length of the input's axis.
    activation : str or callable, optional
    bias_axes : str, optional
        The output axes along which the bias varies, such as ``"de"``; None is no bias.
    kernel_initializer, bias_initializer : str, dict or callable
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> import numpy as np
    >>> layer = EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de")
    >>> layer(np.ones((1, 5, 4), np.float32)).shape, layer.kernel.shape, layer.bias.shape
    ((1, 5, 2, 3), (4, 2, 3), (2, 3))
    """

    _modes = MODES
    kernel: AutoCastVariable
    kernel_scale: AutoCastVariable | None = None
    kernel_zero: AutoCastVariable | None = None
    g_idx: AutoCastVariable | None = None
    fixed_inputs: tuple[AutoCastVariable, AutoCastVariable] | None = None
    bias: AutoCastVariable | None
    _options = ("equation", "output_shape", "activation", "bias_axes", "kernel_initializer", "bias_initializer")

    def __init__(
        self,
        equation: str,
        output_shape: int | tuple[int | None, ...],
        activation: Any = None,
        bias_axes: str | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.equation = equation
        shape = (output_shape,) if isinstance(output_shape, int | np.integer) else tuple(output_shape)
        self.output_shape = tuple(n if n is None else positive_integer(n, "output_shape") for n in shape)
        self.activation = activations.get(activation)
        self.bias_axes = bias_axes
        self.kernel_initializer = kernel_initializer
        self.bias_initializer = bias_initializer

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create kernel and bias for inputs of this shape."""
        labels = parse(self.equation, len(input_shape))
        sizes = _sizes(labels, input_shape, self.output_shape)
        self._labels = labels
        self._is_product = _is_product(labels)
        summed = _summed(labels)
        self._summed_axes = len(summed)
        self._lengths = {label: sizes[label] for label in labels.a if label in labels.b}
        self._summed = tuple(sizes[label] for label in summed)
        self.depth = math.prod(self._summed)
        self._tail = tuple(sizes[label] for label in labels.b[self._summed_axes :])
        if not set(self.bias_axes or "") <= set(labels.out):
            raise ValueError(
                f"`bias_axes` must be axes of the output of {self.equation!r}; received {self.bias_axes!r}"
            )
        shape = tuple(sizes[label] for label in labels.b)
        scale_shape = tuple(sizes[label] if label in labels.b else 1 for label in labels.out)
        self._matrix = Matrix("kernel", shape, self.depth, math.prod(self._tail), axis=0, scale_shape=scale_shape)
        bias_shape = None
        if self.bias_axes:
            labelled = labels.out[min(labels.out.index(label) for label in self.bias_axes) :]
            bias_shape = tuple(sizes[label] if label in self.bias_axes else 1 for label in labelled)
        add_kernel(self, bias_shape)
        self._fuses_bias = self._is_product and self.bias is not None and self.bias.shape == self._tail

    def call(self, inputs: Array, training: bool = False) -> Array:
        """Return the outputs; with `training`, a float8 layer moves its scales on afterwards."""
        outputs: Array
        fused = None
        if self.bias is not None and not self._fuses_bias:
            outputs = self._multiply(inputs, None, None, training) + read_bias(self, self.bias)
        else:
            fused = activations.FUSED.get(self.activation) if self._is_product else None
            outputs = self._multiply(inputs, self.bias, fused, training)
        return outputs if fused or self.activation is None else self.activation(outputs)

    def _multiply(self, inputs: Array, bias: AutoCastVariable | None, activation: str | None, training: bool) -> Array:
        if not self._fits(inputs.shape):
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected the axes of '
                f"{self.equation!r} to have lengths {self._lengths}, but received input with shape {inputs.shape}"
            )
        if not self._is_product:
            return einsum(self.equation, inputs, self.kernel.value())
        leading = inputs.shape[: inputs.ndim - self._summed_axes]
        rows = inputs.reshape(*leading, self.depth)
        outputs = project(self, rows, bias, activation, training)
        return outputs.reshape(*leading, *self._tail)

    def _fits(self, shape: tuple[int, ...]) -> bool:
        """Whether inputs of this shape have the lengths of the kernel; einsum itself would broadcast a length of 1."""
        labels = self._labels.a
        same_rank = len(shape) == len(labels)
        if self._is_product:  # any leading axes may be the ellipsis
            return shape[-self._summed_axes :] == self._summed and (same_rank or "..." in self.equation)
        return same_rank and all(
            self._lengths.get(label, length) == length for label, length in zip(labels, shape, strict=True)
        )

    def _check_mode(self, mode: str) -> None:
        super()._check_mode(mode)
        if not self._is_product:
            raise NotImplementedError(
                f"A quantized EinsumDense needs an equation like '...S,SN->...N'; received {self.equation!r}"
            )

    fix_inputs = fix_inputs


def _summed(labels: Equation) -> Labels:
    """Return the labels that are summed over, in the kernel's order."""
    return tuple(label for label in labels.b if label not in labels.out)


def _is_product(labels: Equation) -> bool:
    """Whether it is ``...S,SN->...N``: then it is one matrix product, without any transposition."""
    summed = _summed(labels)
    kept, rest = labels.a[: len(labels.a) - len(summed)], labels.b[len(summed) :]
    return bool(summed) and labels == (kept + summed, summed + rest, kept + rest) and not set(kept) & set(rest)


def _sizes(
    labels: Equation, input_shape: tuple[int | None, ...], output_shape: tuple[int | None, ...]
) -> dict[str, int]:
    """Return the length of every labelled axis; those of the kernel must be known."""
    sizes = {label: size or 0 for label, size in zip(labels.a, input_shape, strict=True)}
    letters = [label for label in labels.out if not label.startswith("...")]
    named = letters if len(output_shape) <= len(letters) else labels.out
    for label, size in zip(reversed(named), reversed(output_shape), strict=False):
        if size is not None and sizes.setdefault(label, size) not in (0, size):
            raise ValueError(f"Axis {label!r} has length {sizes[label]} in the inputs, but {size} in `output_shape`")
    unknown = [label for label in labels.b if not sizes.get(label)]
    if unknown:
        raise ValueError(f"The lengths of the kernel's axes {unknown} must be given by the inputs or `output_shape`")
    return sizes
