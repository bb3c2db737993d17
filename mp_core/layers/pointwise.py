"""Layers without variables."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core import ops
from mp_core.arrays import Array
from mp_core.layers import activations
from mp_core.layers.layer import Layer

__all__ = ["Activation", "Dropout", "Softmax"]


class Activation(Layer):
    """An activation function.

    Parameters
    ----------
    activation : str or callable
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> Activation("relu")(np.array([-1.0, 2.0]))
    array([0., 2.], dtype=float32)
    """

    _options = ("activation",)

    def __init__(self, activation: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation = activations.get(activation)

    def call(self, inputs: Array) -> Any:
        """Return the function of the inputs."""
        return self.activation(inputs)


class Softmax(Layer):
    """Softmax along an axis.

    Parameters
    ----------
    axis : int
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> Softmax()(np.array([1.0, 1.0, 5.0]), mask=np.array([True, True, False]))
    array([0.5, 0.5, 0. ], dtype=float32)
    """

    _options = ("axis",)

    def __init__(self, axis: int = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = axis

    def call(self, inputs: Array, mask: ArrayLike | None = None) -> Array:
        """Return the softmax of the inputs where `mask` is True."""
        return ops.softmax(inputs, axis=self.axis, mask=None if mask is None else np.asarray(mask, bool))


class Dropout(Layer):
    """The identity: mp_core computes inference only.

    Parameters
    ----------
    rate : float
        The share of elements that training would drop.
    **kwargs
        Those of :class:`Layer`.
    """

    _options = ("rate",)

    def __init__(self, rate: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= rate <= 1:
            raise ValueError(f"`rate` must be from 0 to 1; received {rate}")
        self.rate = rate

    def call(self, inputs: Array) -> Array:
        """Return the inputs."""
        return inputs
