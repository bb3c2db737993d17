"""Fully connected layer."""

from typing import Any, ClassVar

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.layers import activations, initializers
from mp_core.layers.forms.form import floating
from mp_core.layers.lora import AdaptableLayer, LoRA, lora_of
from mp_core.layers.shapes import Shape
from mp_core.policies.autocast import AutoCastVariable
from mp_core.utilities.arguments import boolean, positive_integer

__all__ = ["Dense", "with_lora"]


class Dense(AdaptableLayer):
    """``activation(inputs @ kernel + bias)`` over the last axis.

    Under ``QuantizedDTypePolicy("int8", ...)`` the kernel is int8 with one scale per unit, each call quantizes the rows
    of its inputs, and products are exact. Under ``"int8/weight_only"`` and ``"int4/<block size>"`` the inputs stay
    floats; under ``"float8"`` inputs and kernel are rounded to float8 by delayed scaling.

    Parameters
    ----------
    units : int
        Length of the last axis of the outputs.
    activation : str or callable, optional
    use_bias : bool
    kernel_initializer, bias_initializer : str, dict or callable
    **kwargs
        ``lora_rank`` and ``lora_alpha`` (see :meth:`enable_lora`), and the arguments of :class:`Layer`.

    Attributes
    ----------
    kernel : AutoCastVariable, shape (inputs, units)
        For int4, a read-only int8 array of its codes. The stored variable has two codes to a byte along the units; the
        code with the even index is the low half.
    kernel_scale : AutoCastVariable, shape (units,)
        Only for int8, and int4 without blocks: values are ``kernel / kernel_scale``.
    kernel_zero, g_idx : AutoCastVariable, shape (blocks, units) and (inputs,)
        Only for int4 in blocks of rows: values are ``(kernel - kernel_zero[g_idx]) * kernel_scale[g_idx]``.
    bias : AutoCastVariable or None, shape (units,)
    depth : int
        Length of the inputs' last axis, once built.

    Examples
    --------
    >>> import numpy as np
    >>> layer = Dense(2, kernel_initializer="ones", dtype="mixed_bfloat16")
    >>> layer(np.array([[1.0, 2.0, 3.0]]))
    array([[6, 6]], dtype=bfloat16)
    """

    _sample_independence = "always"
    _arrays = ("inputs",)
    _matrix_name = "kernel"
    kernel: AutoCastVariable
    kernel_scale: AutoCastVariable
    bias: AutoCastVariable | None
    supports_masking = True
    _out_dtype: ClassVar[np.dtype[Any] | None] = None
    """The dtype of the outputs, if it is not that of the inputs."""
    _repr_arguments = ("units",)
    _options = ("units", "activation", "use_bias", "kernel_initializer", "bias_initializer")

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = positive_integer(units, "units")
        self.activation = activations.get(activation)
        self.use_bias = boolean(use_bias, "use_bias")
        self.kernel_initializer = initializers.checked(kernel_initializer)
        self.bias_initializer = initializers.checked(bias_initializer)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if not input_shape or input_shape[-1] is None:
            raise ValueError(f"The last axis of the inputs to Dense must be known; received shape {input_shape}")
        self.depth = input_shape[-1]
        shape, bias_shape = (self.depth, self.units), (self.units,)
        self._add_kernel(bias_shape if self.use_bias else None, shape, *shape, bias_shape)
        self._add_requested_lora()

    def call(self, inputs: Array, training: bool = False) -> Array:
        """Return the outputs, shape (..., units) for inputs of shape (..., inputs).

        With `training`, the "gradients" of a float8 layer's scales are their next values.
        """
        if inputs.shape[-1:] != (self.depth,):
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected axis -1 of input shape to '
                f"have value {self.depth}, but received input with shape {inputs.shape}"
            )
        lora = self._lora
        fused = activations.FUSED.get(self.activation) if lora is None else None
        outputs = self.form.multiply(inputs, self.bias, fused, self._compute, training, out_dtype=self._out_dtype)
        if lora is not None:
            outputs = self._adapted(outputs, lora, inputs)
        return outputs if fused or self.activation is None else self.activation(outputs)

    def _shape_after(self, shape: Shape) -> Shape | None:
        unfit = not shape or shape[-1] is None or (self.built and shape[-1] != self.depth)
        return None if unfit or not activations.keeps_shape(self.activation) else (*shape[:-1], self.units)

    def _adapted(self, outputs: Array, lora: LoRA, inputs: Array) -> Array:
        return lora.added(outputs, ops.matmul(floating(inputs, self._compute), lora.a.read_value()))

    def rows_of(self, inputs: Array) -> Array:
        """Return the inputs as the rows that the kernel multiplies: unchanged."""
        return inputs


def with_lora(layer: Dense, outputs: Array, inputs: Array) -> Array:
    """Return `outputs`, the product of inputs and kernel, plus the product of LoRA if the layer has it."""
    lora = lora_of(layer)
    return outputs if lora is None else layer._adapted(outputs, lora, inputs)
