"""Where the inputs of a :class:`~mp_core.layers.Functional` model come in."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from mp_core import dtypes
from mp_core.arguments import boolean, positive_integer
from mp_core.arrays import Array, cast
from mp_core.layers.layer import Layer

__all__ = ["InputLayer"]


class InputLayer(Layer):
    """The identity, which checks shapes and turns integers into floats, or floats into integers, as `dtype` says.

    Parameters
    ----------
    batch_shape : sequence of (int or None)
        The shape of the inputs; None is any length.
    sparse, ragged, optional : bool
        Keras'; they must be off.
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> InputLayer((None, 2))(np.array([[1, 2]]))
    array([[1., 2.]], dtype=float32)
    """

    _arrays = ("inputs",)
    supports_masking = True
    _options = _told = ("batch_shape",)

    def __init__(
        self,
        batch_shape: Sequence[int | None],
        sparse: bool = False,
        ragged: bool = False,
        optional: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        switches = {"sparse": sparse, "ragged": ragged, "optional": optional}
        on = [name for name, value in switches.items() if value is not None and boolean(value, name)]
        if on:
            raise ValueError(f"`{on[0]}` must be False: inputs are dense arrays that are there; received True")
        if not isinstance(batch_shape, list | tuple) or not batch_shape:
            raise ValueError(f"`batch_shape` must be a sequence of int or None; received {batch_shape!r}")
        self.batch_shape = tuple(None if n is None else positive_integer(n, "batch_shape") for n in batch_shape)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the layer of a configuration, whose ``batch_shape`` is the constructor's."""
        config = cls._with_policy_of_config(config)
        return cls(**config)

    def call(self, inputs: Array) -> Array:
        """Return the inputs.

        Raises
        ------
        ValueError
            They have another shape than `batch_shape`.
        """
        lengths = self.batch_shape[1:]
        fits = inputs.ndim == len(self.batch_shape) and all(
            wanted in (None, length) for wanted, length in zip(lengths, inputs.shape[1:], strict=True)
        )
        if not fits:
            raise ValueError(f"Input '{self.name}' must have shape {self.batch_shape}; received {inputs.shape}")
        if dtypes.is_float(inputs.dtype) == dtypes.is_float(self._compute):
            return inputs
        return cast(inputs, self._compute) if inputs.dtype != np.bool_ else inputs.astype(self._compute)
