"""Batch normalization, by the statistics that training has left."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core import ops
from mp_core.arrays import F32, F64, Array
from mp_core.autocast import AutoCastVariable
from mp_core.layers import initializers
from mp_core.layers.elementwise import floating, rounded
from mp_core.layers.layer import Layer
from mp_core.utilities.arguments import axis_of, boolean, integer, number, share

__all__ = ["BatchNormalization"]


class BatchNormalization(Layer):
    """``(x - moving_mean) / sqrt(moving_variance + epsilon) * gamma + beta``, computed in float32.

    Parameters
    ----------
    axis : int
        The axis of the channels, which have statistics each.
    momentum : float
        Of training: of no effect here.
    epsilon : float
    center, scale : bool
        Whether there is a beta, a gamma.
    beta_initializer, gamma_initializer, moving_mean_initializer, moving_variance_initializer : str, dict or callable
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> layer = BatchNormalization(epsilon=0.0)
    >>> layer.build((None, 2))
    >>> layer.moving_mean.assign([1.0, 2.0]).numpy()
    array([1., 2.], dtype=float32)
    >>> layer(np.array([[2.0, 2.0]]))
    array([[1., 0.]], dtype=float32)
    """

    _arrays = ("inputs",)
    supports_masking = True
    _told = ("axis",)
    _options = (
        "axis", "momentum", "epsilon", "center", "scale", "beta_initializer", "gamma_initializer",
        "moving_mean_initializer", "moving_variance_initializer",
    )  # fmt: skip

    def __init__(
        self,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        moving_mean_initializer: Any = "zeros",
        moving_variance_initializer: Any = "ones",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.axis = integer(axis, "axis")
        self.momentum = share(momentum, "momentum")
        self.epsilon = number(epsilon, "epsilon", 0.0)
        self.center = boolean(center, "center")
        self.scale = boolean(scale, "scale")
        self.beta_initializer = initializers.checked(beta_initializer)
        self.gamma_initializer = initializers.checked(gamma_initializer)
        self.moving_mean_initializer = initializers.checked(moving_mean_initializer)
        self.moving_variance_initializer = initializers.checked(moving_variance_initializer)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create the statistics, gamma and beta for inputs of this shape."""
        channels = input_shape[axis_of(self.axis, len(input_shape))]
        if channels is None:
            raise ValueError(f"the axis that `axis` names must have a length; received input_shape={input_shape}")
        self._channels, self._rank = channels, len(input_shape)
        self.gamma = self.beta = None
        if self.scale:
            self.gamma = self._vector("gamma", self.gamma_initializer)
        if self.center:
            self.beta = self._vector("beta", self.beta_initializer)
        self.moving_mean = self._vector("moving_mean", self.moving_mean_initializer, trainable=False)
        self.moving_variance = self._vector("moving_variance", self.moving_variance_initializer, trainable=False)

    def _vector(self, name: str, initializer: Any, trainable: bool = True) -> Any:
        return self.add_weight(
            (self._channels,), initializer=initializer, trainable=trainable, autocast=False, name=name
        )

    def call(self, inputs: Array, mask: ArrayLike | None = None) -> Array:
        """Return the normalized inputs in the compute dtype; `mask`, of training, has no effect here."""
        if inputs.ndim != self._rank or inputs.shape[self.axis] != self._channels:
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected {self._rank} axes with '
                f"length {self._channels} at {self.axis}, but received input with shape {inputs.shape}"
            )
        wide = F64 if inputs.dtype == F64 else F32
        shape = [1] * inputs.ndim
        shape[self.axis] = self._channels

        def read(variable: AutoCastVariable | None, default: float) -> Array:
            value = np.full(self._channels, default, wide) if variable is None else ops.cast(variable.numpy(), wide)
            return value.reshape(shape)

        mean, variance = read(self.moving_mean, 0), read(self.moving_variance, 1)
        gamma, beta = read(self.gamma, 1), read(self.beta, 0)
        with np.errstate(all="ignore"):
            factor = gamma / np.sqrt(variance + wide.type(self.epsilon))
        return rounded(lambda x: (x - mean) * factor + beta, floating(inputs, self._compute), dtype=self._compute)
