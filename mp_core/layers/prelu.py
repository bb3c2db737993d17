"""Rectified linear units with a trained slope for negative inputs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.layers import initializers
from mp_core.layers.layer import Layer
from mp_core.layers.shapes import same_shape
from mp_core.ops.elementwise import floating, rounded
from mp_core.utilities.arguments import axes_of
from mp_core.utilities.docstrings import shown

__all__ = ["PReLU"]


@shown('{}("ones")(np.array([[-1.0, 2.0]]))', "array([[-1.,  2.]], dtype=float32)")
class PReLU(Layer):
    """``x`` where ``x > 0``, else ``alpha * x``, with trained slopes `alpha`.

    Parameters
    ----------
    alpha_initializer : str, dict or callable
    shared_axes : int or sequence of int, optional
        The axes along which the slope is constant. Axis 1 is the first after the batch axis.
    **kwargs : those of :class:`Layer`
    """

    _sample_independence = "always"
    _arrays = ("inputs",)
    supports_masking = True
    _shape_after = same_shape
    _options = ("alpha_initializer", "shared_axes")

    def __init__(
        self, alpha_initializer: Any = "zeros", shared_axes: int | Sequence[int] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.alpha_initializer = initializers.checked(alpha_initializer)
        self.shared_axes = None if shared_axes is None else list(axes_of(shared_axes))

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        shape, shared = list(input_shape[1:]), self.shared_axes or []
        if not all(0 < axis <= len(shape) for axis in shared):
            raise ValueError(f"`shared_axes` must lie in [1, {len(shape)}]; received {shared}")
        for axis in shared:
            shape[axis - 1] = 1
        if None in shape:
            raise ValueError(f"axes that are not shared must have known lengths; received input_shape={input_shape}")
        self.alpha = self.add_weight(shape, initializer=self.alpha_initializer, name="alpha")

    def call(self, inputs: Array) -> Array:
        """Return the outputs, computed in float32 and rounded once."""
        x, alpha = floating(inputs, self._compute), self.alpha.read_value()
        fits = x.ndim == alpha.ndim + 1 and all(
            wanted in (1, n) for n, wanted in zip(x.shape[1:], alpha.shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f'Input 0 of layer "{self.name}" is incompatible with the layer: slopes have shape {alpha.shape}, '
                f"but received input with shape {inputs.shape}"
            )
        return rounded(lambda x, alpha: np.where(x > 0, x, alpha * x), x, alpha)
