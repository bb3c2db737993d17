"""Layers without variables."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core import ops
from mp_core.arguments import axis_or_axes, share
from mp_core.arrays import Array
from mp_core.layers import activations
from mp_core.layers.axes import as_last, from_last
from mp_core.layers.layer import Layer
from mp_core.layers.masks import as_keep

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

    supports_masking = True
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
    axis : int or sequence of int
        The axes along which the outputs together sum to 1.
    **kwargs
        Those of :class:`Layer`.

    Raises
    ------
    ValueError
        `axis` names an axis twice.

    Examples
    --------
    >>> Softmax()(np.array([1.0, 1.0, 5.0]), mask=np.array([True, True, False]))
    array([0.5, 0.5, 0. ], dtype=float32)
    """

    supports_masking = True
    _options = _told = ("axis",)

    def __init__(self, axis: int | Sequence[int] = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = axis_or_axes(axis)
        if isinstance(self.axis, list) and len(set(self.axis)) < len(self.axis):
            raise ValueError(f"`axis` must name no axis twice; received axis={axis!r}")

    def call(self, inputs: Array, mask: ArrayLike | None = None) -> Array:
        """Return the softmax of the inputs where `mask` (bool, or numbers that are 0 or 1) is True, 0 elsewhere."""
        keep = None if mask is None else as_keep(mask)
        if isinstance(self.axis, int):
            return ops.softmax(inputs, axis=self.axis, mask=keep)
        if keep is not None:
            keep = as_last(np.broadcast_to(keep, inputs.shape), self.axis)
        return from_last(ops.softmax(as_last(inputs, self.axis), mask=keep), self.axis, inputs.shape)


class Dropout(Layer):
    """The identity: mp_core computes inference only.

    Parameters
    ----------
    rate : float
        The share of elements that training would drop.
    **kwargs
        Those of :class:`Layer`.
    """

    supports_masking = True
    _options = _told = ("rate",)

    def __init__(self, rate: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = share(rate, "rate")

    def call(self, inputs: Array) -> Array:
        """Return the inputs."""
        return inputs
