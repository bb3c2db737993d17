"""Layers that torch has and Keras' list of mp_core has not."""

from typing import Any

from mp_core import ops
from mp_core.arguments import boolean, number
from mp_core.arrays import Array
from mp_core.autocast import AutoCastVariable
from mp_core.layers import Layer
from mp_core.saving import register_keras_serializable

__all__ = ["Flatten", "RMSNormalization"]


@register_keras_serializable("mp_core.interop.torch")
class Flatten(Layer):
    """Axes from one to another merged into one, as :class:`torch.nn.Flatten` does.

    Parameters
    ----------
    start, end : int
        The first and the last of them.
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> import numpy as np
    >>> Flatten()(np.zeros((2, 3, 4), np.float32)).shape
    (2, 12)
    """

    _options = ("start", "end")

    def __init__(self, start: int = 1, end: int = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start, self.end = start, end

    def call(self, inputs: Array) -> Array:
        """Return the inputs with merged axes."""
        first, last = self.start % inputs.ndim, self.end % inputs.ndim
        return inputs.reshape(*inputs.shape[:first], -1, *inputs.shape[last + 1 :])


@register_keras_serializable("mp_core.interop.torch")
class RMSNormalization(Layer):
    """``x / sqrt(mean(x**2) + epsilon) * gamma`` over the last axis, with statistics and gamma in float32.

    Parameters
    ----------
    epsilon : float
    scale : bool
        Whether there is a gamma.
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> import numpy as np
    >>> RMSNormalization(epsilon=0.0)(np.array([[1.0, 7.0]], np.float32))
    array([[0.2, 1.4]], dtype=float32)
    """

    _options = ("epsilon", "scale")
    gamma: AutoCastVariable | None

    def __init__(self, epsilon: float = 1e-6, scale: bool = True, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.epsilon, self.scale = number(epsilon, "epsilon", 0.0), boolean(scale, "scale")

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Create gamma for inputs of this shape."""
        self.gamma = None
        if self.scale:
            self.gamma = self.add_weight(shape=input_shape[-1:], initializer="ones", autocast=False, name="gamma")

    def call(self, inputs: Array) -> Array:
        """Return the normalized inputs, in the compute dtype."""
        gamma = None if self.gamma is None else self.gamma.numpy()
        return ops.cast(ops.rms_norm(inputs, gamma, epsilon=self.epsilon), self._compute)
