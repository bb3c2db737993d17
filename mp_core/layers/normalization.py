"""Layer normalization, RMS normalization, and the base of normalizations with gamma and beta."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.layers import initializers
from mp_core.layers.layer import Layer
from mp_core.layers.shapes import same_shape
from mp_core.ops.axes import as_last, from_last
from mp_core.ops.elementwise import floating
from mp_core.policies.autocast import AutoCastVariable
from mp_core.utilities.arguments import axis_or_axes, boolean, number
from mp_core.utilities.docstrings import documented, shown

__all__ = ["Affine", "LayerNormalization", "RMSNormalization", "with_affine_parameters"]

with_affine_parameters = documented(
    last="""
    epsilon : float
    center, scale : bool
        Whether to add beta, and whether to multiply by gamma.
    beta_initializer, gamma_initializer : str, dict or callable
    **kwargs : those of :class:`Layer`
"""
)
"""Decorator of subclasses of :class:`Affine`: adds the parameters of its constructor to the docstring."""


class Affine(Layer):
    """The base of normalizations ``x * gamma + beta``, with gamma and beta in float32."""

    gamma: AutoCastVariable | None
    beta: AutoCastVariable | None

    def __init__(
        self, epsilon: float, center: bool, scale: bool, beta_initializer: Any, gamma_initializer: Any, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.epsilon = number(epsilon, "epsilon", 0.0)
        self.center = boolean(center, "center")
        self.scale = boolean(scale, "scale")
        self.beta_initializer = initializers.checked(beta_initializer)
        self.gamma_initializer = initializers.checked(gamma_initializer)

    def _add_gamma_and_beta(self, shape: tuple[int, ...]) -> None:
        """Create gamma if `scale`, and beta if `center`."""

        def added(name: str, initializer: Any) -> AutoCastVariable:
            return self.add_weight(shape=shape, initializer=initializer, autocast=False, name=name)

        self.gamma = added("gamma", self.gamma_initializer) if self.scale else None
        self.beta = added("beta", self.beta_initializer) if self.center else None

    def _gamma_and_beta(self, length: int, dtype: Any) -> tuple[Array, Array]:
        """Return gamma and beta as vectors; without gamma ones, without beta zeros."""
        vectors = (self.gamma, 1), (self.beta, 0)
        gamma, beta = (np.full(length, n, dtype) if v is None else ops.cast(v.numpy(), dtype) for v, n in vectors)
        return gamma, beta


@with_affine_parameters
@shown("{}(epsilon=0.0)(np.array([[1.0, 3.0]]))", "array([[-1.,  1.]], dtype=float32)")
class LayerNormalization(Affine):
    """``(x - mean) / sqrt(variance + epsilon) * gamma + beta`` with statistics, gamma and beta in float32.

    Parameters
    ----------
    axis : int or sequence of int
        The axes that are normalized together. After the layer is built, the attribute is a sorted list of non-negative
        axes, as in Keras. Configurations keep the original axes, so that -1 means the last axis for any number of axes.
    """

    _sample_independence = "always"
    _arrays = ("inputs",)
    supports_masking = True
    _shape_after = same_shape
    _repr_arguments = ("axis",)
    _original_axes: list[int] | None = None  # the original axes, sorted
    _options = ("axis", "epsilon", "center", "scale", "beta_initializer", "gamma_initializer")
    _lacking = MappingProxyType({"rms_scaling": False})

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        **kwargs: Any,
    ) -> None:
        super().__init__(epsilon, center, scale, beta_initializer, gamma_initializer, autocast=False, **kwargs)
        self.axis = axis_or_axes(axis)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        axes = [self.axis] if isinstance(self.axis, int) else self.axis
        rank = len(input_shape)
        self._axes = sorted(axis % rank for axis in axes if -rank <= axis < rank)
        if not axes or len(set(self._axes)) != len(axes):
            raise ValueError(
                f"`axis` must name different ones of the {rank} axes of inputs of shape {input_shape}; "
                f"received {self.axis!r}"
            )
        self._original_axes, self.axis, self._rank = sorted(axes), self._axes, rank
        self._is_last = self._axes == [rank - 1]
        shape = tuple(n for n in (input_shape[axis] for axis in self._axes) if n is not None)
        if len(shape) < len(axes):
            raise ValueError(f"the axes that `axis` names must have known lengths; received input_shape={input_shape}")
        self._lengths = list(shape)
        self._add_gamma_and_beta(shape)

    def call(self, inputs: Array, residual: Array | None = None) -> Array:
        """Return the normalized inputs, or the normalized ``inputs + residual``, in the compute dtype."""
        shape = inputs.shape
        if self._original_axes == [-1]:  # inputs may have any number of axes
            fits = list(shape[-1:]) == self._lengths
        else:
            fits = len(shape) == self._rank and [shape[axis] for axis in self._axes] == self._lengths
        if not fits:
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected {self._rank} axes, with '
                f"lengths {self._lengths} at {self.axis}, but received input with shape {shape}"
            )
        x = inputs if self._is_last else as_last(inputs, self._axes)
        if residual is not None and not self._is_last:
            if residual.shape != inputs.shape:
                raise ValueError(f"`residual` must have shape {inputs.shape}; received {residual.shape}")
            residual = as_last(residual, self._axes)
        gamma = None if self.gamma is None else self.gamma.derived("vector", _flat)
        beta = None if self.beta is None else self.beta.derived("vector", _flat)
        outputs = ops.layer_norm(x, gamma, beta, epsilon=self.epsilon, residual=residual)
        if outputs.dtype is not self._compute:
            outputs = ops.cast(outputs, self._compute)
        return outputs if self._is_last else from_last(outputs, self._axes, shape)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"axis": self.axis if self._original_axes is None else self._original_axes}


@shown("{}(epsilon=0.0)(np.array([[1.0, -1.0]]))", "array([[ 1., -1.]], dtype=float32)")
class RMSNormalization(Layer):
    """``x / sqrt(mean(x**2) + epsilon) * scale``, computed in float32.

    Parameters
    ----------
    axis : int or sequence of int
        The axes that are normalized together. After the layer is built, the attribute is a sorted list, as in Keras.
    epsilon : float
    **kwargs : those of :class:`Layer`
    """

    _sample_independence = "always"
    _arrays = ("inputs",)
    _shape_after = same_shape
    _repr_arguments = ("axis",)
    _options = ("axis", "epsilon")

    def __init__(self, axis: int | Sequence[int] = -1, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = axis_or_axes(axis)
        self.epsilon = number(epsilon, "epsilon", 0.0)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        axes = [self.axis] if isinstance(self.axis, int) else self.axis
        rank = len(input_shape)
        self._axes = sorted(axis % rank for axis in axes if -rank <= axis < rank)
        shape = tuple(input_shape[axis] for axis in self._axes)
        if not axes or len(set(self._axes)) != len(axes) or None in shape:
            raise ValueError(
                f"`axis` must name different axes, with known lengths, of inputs {input_shape}; received {self.axis!r}"
            )
        self.axis = sorted(axes)
        self._rank, self._lengths = rank, list(shape)
        self.scale = self.add_weight(shape=shape, initializer="ones", name="scale")

    def call(self, inputs: Array) -> Array:
        """Return the normalized inputs, in the compute dtype."""
        last = self.axis == [-1]  # inputs may have any number of axes
        axes = [-1] if last and inputs.ndim else self._axes
        if not (last or inputs.ndim == self._rank) or [inputs.shape[axis] for axis in axes] != self._lengths:
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected {self._rank} axes, with '
                f"lengths {self._lengths} at {self.axis}, but received input with shape {inputs.shape}"
            )
        x, scale = floating(inputs, self._compute), self.scale.read_value().reshape(-1)
        if last or self._axes == [self._rank - 1]:
            return ops.rms_norm(x, scale, epsilon=self.epsilon)
        return from_last(ops.rms_norm(as_last(x, self._axes), scale, epsilon=self.epsilon), self._axes, inputs.shape)


def _flat(stored: Array) -> Array:
    """Return gamma or beta as a vector in float32; float64 stays float64."""
    row = stored.reshape(-1)
    return row if row.dtype.name == "float64" else ops.cast(row, "float32")
