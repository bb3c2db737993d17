"""Group normalization."""

from typing import Any

from mp_core.arrays import F32, F64, Array
from mp_core.layers.normalization import Affine, with_affine_parameters
from mp_core.layers.shapes import same_shape
from mp_core.ops.elementwise import floating, rounded
from mp_core.ops.normalizations import normalized_groups
from mp_core.utilities.arguments import axis_of, integer, positive_integer
from mp_core.utilities.docstrings import shown

__all__ = ["GroupNormalization"]


@with_affine_parameters
@shown(
    "import numpy as np\n>>> {}(2, epsilon=0.0)(np.array([[1.0, 3.0, 10.0, 30.0]]))",
    "array([[-1.,  1., -1.,  1.]], dtype=float32)",
)
class GroupNormalization(Affine):
    """``(x - mean) / sqrt(variance + epsilon) * gamma + beta``, with statistics of each group of channels, in float32.

    Parameters
    ----------
    groups : int
        The number of groups, a divisor of the number of channels; -1: one group per channel.
    axis : int
        The channels axis.
    """

    _sample_independence = "always"
    _arrays = ("inputs",)
    supports_masking = True
    _shape_after = same_shape
    _repr_arguments = ("groups", "axis")
    _options = ("groups", "axis", "epsilon", "center", "scale", "beta_initializer", "gamma_initializer")

    def __init__(
        self,
        groups: int = 32,
        axis: int = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        **kwargs: Any,
    ) -> None:
        super().__init__(epsilon, center, scale, beta_initializer, gamma_initializer, autocast=False, **kwargs)
        self.groups = groups if groups == -1 else positive_integer(groups, "groups")
        self.axis = integer(axis, "axis")

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self._rank = len(input_shape)
        channels = input_shape[axis_of(self.axis, self._rank)]
        groups = channels if self.groups == -1 else self.groups
        if not channels or not groups or channels % groups:
            raise ValueError(
                "the length of the axis that `axis` names must be known, and divisible by `groups`; received "
                f"groups={self.groups}, axis={self.axis}, input_shape={input_shape}"
            )
        self._channels, self._groups = channels, groups
        self._add_gamma_and_beta((channels,))

    def call(self, inputs: Array) -> Array:
        axis = self.axis % self._rank
        if inputs.ndim != self._rank or inputs.shape[axis] != self._channels:
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected {self._rank} axes with '
                f"length {self._channels} at {self.axis}, but received input with shape {inputs.shape}"
            )
        x = floating(inputs, self._compute)
        last = [self._channels if place == axis else 1 for place in range(x.ndim)]
        vectors = self._gamma_and_beta(self._channels, F64 if x.dtype == F64 else F32)
        gamma, beta = (vector.reshape(last) for vector in vectors)
        return rounded(
            lambda x: normalized_groups(x, self._groups, axis, self.epsilon) * gamma + beta, x, dtype=self._compute
        )
