"""Layers that torch has and Keras has not."""

from typing import Any

from mp_core.arrays import Array
from mp_core.layers import Layer
from mp_core.utilities.registry import register_keras_serializable

__all__ = ["Flatten"]


@register_keras_serializable("mp_core.interop.torch")
class Flatten(Layer):
    """Merge a range of axes into one, like :class:`torch.nn.Flatten`.

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
