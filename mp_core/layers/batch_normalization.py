"""Batch normalization: uses the statistics of the batch in training, moving averages of them in inference."""

from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core import ops
from mp_core.arrays import F32, F64, Array
from mp_core.layers import initializers
from mp_core.layers.masks import as_keep
from mp_core.layers.normalization import Affine, with_affine_parameters
from mp_core.layers.parts import require_whole_batch
from mp_core.layers.shapes import same_shape
from mp_core.ops.elementwise import floating, rounded
from mp_core.policies.autocast import AutoCastVariable
from mp_core.utilities.arguments import axis_of, integer, share

__all__ = ["BatchNormalization"]

_EPSILON = 1e-7  # Keras' backend.epsilon(), which it adds to the number of elements that a mask keeps


@with_affine_parameters
class BatchNormalization(Affine):
    """``(x - mean) / sqrt(variance + epsilon) * gamma + beta``, computed in float32.

    In training, if the layer is :attr:`trainable`, mean and variance are those of the batch (of the elements that
    `mask` keeps), and moving averages are updated: ``moving * momentum + batch * (1 - momentum)``. Otherwise mean and
    variance are the moving averages.

    Parameters
    ----------
    axis : int
        The channels axis; each channel has its own statistics.
    momentum : float
        The weight of the old moving average in an update, from 0 to 1.
    moving_mean_initializer, moving_variance_initializer : str, dict or callable

    Examples
    --------
    >>> layer = BatchNormalization(epsilon=0.0)
    >>> layer.build((None, 2))
    >>> layer.moving_mean.assign([1.0, 2.0]).numpy()
    array([1., 2.], dtype=float32)
    >>> layer(np.array([[2.0, 2.0]]))
    array([[1., 0.]], dtype=float32)
    """

    _sample_independence = "in inference"
    _arrays = ("inputs",)
    _lacking = MappingProxyType(
        {"renorm": False, "renorm_clipping": None, "renorm_momentum": ..., "synchronized": False}
    )
    supports_masking = True
    _shape_after = same_shape
    _repr_arguments = ("axis",)
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
        super().__init__(epsilon, center, scale, beta_initializer, gamma_initializer, **kwargs)
        self.axis = integer(axis, "axis")
        self.momentum = share(momentum, "momentum")
        self.moving_mean_initializer = initializers.checked(moving_mean_initializer)
        self.moving_variance_initializer = initializers.checked(moving_variance_initializer)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        channels = input_shape[axis_of(self.axis, len(input_shape))]
        if channels is None:
            raise ValueError(f"the axis that `axis` names must have a known length; received input_shape={input_shape}")
        self._channels, self._rank = channels, len(input_shape)
        self._add_gamma_and_beta((channels,))
        self.moving_mean = self._statistic("moving_mean", self.moving_mean_initializer)
        self.moving_variance = self._statistic("moving_variance", self.moving_variance_initializer)

    def _statistic(self, name: str, initializer: Any) -> Any:
        return self.add_weight((self._channels,), initializer=initializer, trainable=False, autocast=False, name=name)

    def call(self, inputs: Array, training: bool | None = False, mask: ArrayLike | None = None) -> Array:
        """Return the normalized inputs in the compute dtype.

        Parameters
        ----------
        inputs : ndarray
        training : bool, optional
        mask : array-like of bool, optional
            In training, only elements where it is True count for the statistics. It must broadcast to the shape of
            the inputs without the last axis, with the same number of axes.
        """
        if inputs.ndim != self._rank or inputs.shape[self.axis] != self._channels:
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: expected {self._rank} axes with '
                f"length {self._channels} at {self.axis}, but received input with shape {inputs.shape}"
            )
        wide = F64 if inputs.dtype == F64 else F32
        shape = [1] * inputs.ndim
        shape[self.axis] = self._channels
        mean, variance = (ops.cast(v.numpy(), wide).reshape(shape) for v in (self.moving_mean, self.moving_variance))
        gamma, beta = (vector.reshape(shape) for vector in self._gamma_and_beta(self._channels, wide))
        x = floating(inputs, self._compute)
        if training and self.trainable:
            require_whole_batch(f"the BatchNormalization '{self.name}' in training")
            x = ops.cast(x, wide)
            moving, (mean, variance) = (mean, variance), self._moments(x, mask)
            self._move(self.moving_mean, moving[0], mean)
            self._move(self.moving_variance, moving[1], variance)
        with np.errstate(all="ignore"):
            factor = gamma / np.sqrt(variance + wide.type(self.epsilon))
        return rounded(lambda x: (x - mean) * factor + beta, x, dtype=self._compute)

    def _move(self, variable: AutoCastVariable, old: Array, new: Array) -> None:
        kept, rest = (old.dtype.type(share) for share in (self.momentum, 1 - self.momentum))
        variable.assign((old * kept + new * rest).reshape(-1))

    def _moments(self, x: Array, mask: ArrayLike | None) -> tuple[Array, Array]:
        """Return mean and (population) variance of each channel of a batch."""
        axes = tuple(axis for axis in range(x.ndim) if axis != self.axis % x.ndim)
        if mask is None:
            mean = ops.mean(x, axes, keepdims=True)
            return mean, ops.mean(np.square(x - mean), axes, keepdims=True)
        keep = as_keep(mask)
        if keep.ndim != x.ndim - 1 or any(n not in (1, most) for n, most in zip(keep.shape, x.shape, strict=False)):
            raise ValueError(f"`mask` must broadcast to {x.shape[:-1]}, with as many axes; received {keep.shape}")
        kept = np.where(np.expand_dims(keep, -1), x.dtype.type(1), x.dtype.type(0))
        count = ops.sum(kept * np.ones(x.shape, x.dtype), axes, keepdims=True) + x.dtype.type(_EPSILON)
        mean = ops.sum(kept * x, axes, keepdims=True) / count
        return mean, ops.sum(kept * np.square(x - mean), axes, keepdims=True) / count
