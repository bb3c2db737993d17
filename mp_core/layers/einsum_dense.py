"""A dense layer over several axes, defined by an einsum equation."""

import functools
import math
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.core.names import Activation
from mp_core.layers import activations, initializers
from mp_core.layers.forms.form import floating
from mp_core.layers.lora import AdaptableLayer, LoRA
from mp_core.layers.shapes import Shape
from mp_core.ops.contraction import Equation, einsum, parse
from mp_core.policies.autocast import AutoCastVariable
from mp_core.utilities.arguments import positive_integer

__all__ = ["EinsumDense"]


class EinsumDense(AdaptableLayer):
    """``activation(einsum(equation, inputs, kernel) + bias)``.

    The layer can be quantized if the equation is one matrix product: inputs and kernel share exactly the axes that are
    summed.

    Parameters
    ----------
    equation : str
        Such as ``"abc,cde->abde"``; ``...`` stands for any leading axes.
    output_shape : int or tuple of (int or None)
        Without the batch axis and the axes of ``...``; None keeps the length of the input's axis.
    activation : str or callable, optional
    bias_axes : str, optional
        The output axes along which the bias varies, such as ``"de"``. None: no bias.
    kernel_initializer, bias_initializer : str, dict or callable
    **kwargs
        ``lora_rank`` and ``lora_alpha`` (see :meth:`enable_lora`), and the arguments of :class:`Layer`.

    Examples
    --------
    >>> layer = EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de")
    >>> layer(np.ones((1, 5, 4), np.float32)).shape, layer.kernel.shape, layer.bias.shape
    ((1, 5, 2, 3), (4, 2, 3), (2, 3))
    """

    _arrays = ("inputs",)
    _matrix_name = "kernel"
    kernel: AutoCastVariable
    kernel_scale: AutoCastVariable
    bias: AutoCastVariable | None
    _repr_arguments = ("equation", "output_shape")
    _options = ("equation", "output_shape", "activation", "bias_axes", "kernel_initializer", "bias_initializer")
    _lacking = MappingProxyType({"gptq_unpacked_column_size": None})

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
        for name, value in (("equation", equation), ("bias_axes", bias_axes or "")):
            if not isinstance(value, str):
                raise TypeError(f"`{name}` must be a string; received {name}={value!r}")
        self.equation = equation
        shape = (output_shape,) if isinstance(output_shape, int | np.integer) else tuple(output_shape)
        self.output_shape = tuple(n if n is None else positive_integer(n, "output_shape") for n in shape)
        self.activation = activations.get(activation)
        self.bias_axes = bias_axes
        self.kernel_initializer = initializers.checked(kernel_initializer)
        self.bias_initializer = initializers.checked(bias_initializer)

    @classmethod
    def _shared_axes(cls, config: dict[str, Any]) -> tuple[set[int], int]:
        inputs, _, outputs = str(config.get("equation")).replace(" ", "").partition("->")
        labels = inputs.partition(",")[2]
        return {axis for axis, label in enumerate(labels) if label not in outputs}, len(labels)

    @classmethod
    def _under_quantizers(cls, config: dict[str, Any], quantizers: Any) -> dict[str, Any]:
        columns = config.get("gptq_unpacked_column_size")  # of Keras' codes: the form computes it from the kernel
        if columns is not None:
            config = {key: value for key, value in config.items() if key != "gptq_unpacked_column_size"}
            positive_integer(columns, "gptq_unpacked_column_size")
        return super()._under_quantizers(config, quantizers)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        labels, order = parse(self.equation, len(input_shape)), _order(self.equation, len(input_shape))
        sizes = _sizes(labels, input_shape, self.output_shape)
        self._rank = len(input_shape)
        self._lengths = {label: sizes[label] for label in labels.a if label in labels.b}
        shape = tuple(sizes[label] for label in labels.b)
        lengths = [shape[axis] for axis in order.kernel]
        self._tail = lengths[order.summed :]
        self.depth, columns = math.prod(lengths[: order.summed]), math.prod(self._tail)
        scale_shape = tuple(sizes[label] if label in labels.b else 1 for label in labels.out)
        bias_axes = set(self.bias_axes or "")
        if not bias_axes <= set(labels.out):
            raise ValueError(
                f"`bias_axes` must be axes of the output of {self.equation!r}; received {self.bias_axes!r}"
            )
        before = self.equation.partition("->")[2].partition("...")[0]
        self._takes_any_rank = "..." in self.equation and not bias_axes & set(
            before
        )  # such a bias has the axes of `...` too
        bias_shape = None
        if bias_axes:
            labelled = labels.out[min(labels.out.index(label) for label in bias_axes) :]
            bias_shape = tuple(sizes[label] if label in bias_axes else 1 for label in labelled)
        self._add_kernel(bias_shape, shape, self.depth, columns, scale_shape, order.kernel)
        by_column = bias_shape is not None and bias_axes <= set(labels.b) and math.prod(bias_shape) == columns
        self._fuses_bias = order.is_product and by_column
        self._add_requested_lora()

    def call(self, inputs: Array, training: bool = False) -> Array:
        """Return the outputs; with `training`, the "gradients" of a float8 layer's scales are their next values."""
        if not self._fits(inputs.shape):
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected the axes of '
                f"{self.equation!r} to have lengths {self._lengths}, but received input with shape {inputs.shape}"
            )
        outputs: Array
        fused = None
        if self.bias is not None and not self._fuses_bias:
            outputs = self._multiply(inputs, None, None, training) + self.form.read_bias(self.bias)
        else:
            product = _order(self.equation, inputs.ndim).is_product
            fused = activations.FUSED.get(self.activation) if product and self._lora is None else None
            outputs = self._multiply(inputs, self.bias, fused, training)
        if self._lora is not None:
            outputs = self._adapted(outputs, self._lora, inputs)
        return outputs if fused or self.activation is None else self.activation(outputs)

    def _shape_after(self, shape: Shape) -> Shape | None:
        labels = parse(self.equation, len(shape))
        lengths = dict(zip(labels.a, shape, strict=True))
        unfit = self.built and any(self._lengths.get(label, n) != n for label, n in lengths.items())
        if unfit or not activations.keeps_shape(self.activation):
            return None
        sizes = _sizes(labels, shape, self.output_shape)
        return tuple(lengths[label] if label in lengths else sizes[label] for label in labels.out)

    def _adapted(self, outputs: Array, lora: LoRA, inputs: Array) -> Array:
        """Return the outputs plus the product of LoRA: two thin products if kernel and outputs have the same last axis.

        Otherwise the thin matrices are multiplied first.
        """
        labels, rows = parse(self.equation, inputs.ndim), floating(inputs, self._compute)
        if labels.b[-1] == labels.out[-1]:
            return lora.added(outputs, einsum(self.equation, rows, lora.a.read_value()))
        return ops.add(outputs, einsum(self.equation, rows, ops.cast(lora.delta(), outputs.dtype)))

    def _multiply(
        self, inputs: Array, bias: AutoCastVariable | None, activation: Activation | None, training: bool
    ) -> Array:
        order = _order(self.equation, inputs.ndim)
        if not order.is_product:
            return einsum(self.equation, inputs, self.form.variables["kernel"].read_value())
        rows = self.rows_of(inputs)
        outputs = self.form.multiply(rows, bias, activation, self._compute, training)
        return outputs.reshape((*rows.shape[:-1], *self._tail)).transpose(order.outputs)

    def rows_of(self, inputs: Array) -> Array:
        """Return the inputs as rows that the kernel matrix multiplies, shape (..., depth)."""
        order = _order(self.equation, inputs.ndim)
        arranged = inputs.transpose(order.inputs)
        return arranged.reshape((*arranged.shape[: inputs.ndim - order.summed], self.depth))

    def _fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether inputs have the lengths of the kernel; einsum itself would broadcast a length of 1."""
        if len(shape) != self._rank and not self._takes_any_rank:
            return False
        try:
            labels = parse(self.equation, len(shape)).a
        except ValueError:
            return False
        return all(self._lengths.get(label, length) == length for label, length in zip(labels, shape, strict=True))

    def _check_product(self) -> None:
        if not _order(self.equation, self._rank).is_product:
            raise NotImplementedError(
                "A quantized EinsumDense needs an equation whose inputs and kernel both have the axes that are summed, "
                f"and no other axis in common; received {self.equation!r}"
            )


class _Order(NamedTuple):
    """Permutations of the axes of inputs, kernel and output that make the equation a matrix product."""

    inputs: tuple[int, ...]  # axes of the rows, then summed axes
    kernel: tuple[int, ...]  # summed axes, then axes of the columns
    outputs: tuple[int, ...]  # permutation from (rows, columns) to the output
    summed: int  # number of summed axes
    is_product: bool  # whether it is one product: no axis is in inputs, kernel and output, or in the inputs alone


@functools.lru_cache(maxsize=256)
def _order(equation: str, input_axes: int) -> _Order:
    a, b, out = parse(equation, input_axes)
    summed = tuple(label for label in b if label not in out)
    rows = tuple(label for label in out if label not in b)
    columns = tuple(label for label in out if label in b)
    product = rows + columns
    return _Order(
        tuple(a.index(label) for label in rows + summed if label in a),
        tuple(b.index(label) for label in summed + columns),
        tuple(product.index(label) for label in out),
        len(summed),
        bool(summed) and set(a) == {*rows, *summed},
    )


def _sizes(
    labels: Equation, input_shape: tuple[int | None, ...], output_shape: tuple[int | None, ...]
) -> dict[str, int]:
    """Return label -> length of each axis; raise ValueError if a length of the kernel is unknown."""
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
