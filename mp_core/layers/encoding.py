"""Layers that turn numbers into categories, and categories into vectors."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mp_core import dtypes, ops
from mp_core.arrays import F32, Array
from mp_core.arrays.recorded import is_recorded
from mp_core.layers.layer import Layer
from mp_core.utilities.arguments import number, positive_integer

__all__ = ["CategoryEncoding", "Discretization"]

_MODES = ("multi_hot", "one_hot", "count")


class CategoryEncoding(Layer):
    """Integers as vectors with a place for each category.

    Parameters
    ----------
    num_tokens : int
        The number of categories: integers are from 0 to one below.
    output_mode : {"multi_hot", "one_hot", "count"}
        One vector for all integers along the last axis, with 1 for those that are there; one for each integer; or one
        for all with how often each is there.
    sparse : bool
        Keras'; it must be off.
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> CategoryEncoding(4)(np.array([[3, 1, 1]]))
    array([[0., 1., 0., 1.]], dtype=float32)
    """

    _arrays = ("inputs",)
    _options = _told = ("num_tokens", "output_mode")

    def __init__(self, num_tokens: int, output_mode: str = "multi_hot", **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.num_tokens = positive_integer(num_tokens, "num_tokens")
        self.output_mode = _mode(output_mode, _MODES)

    def call(self, inputs: Array) -> Array:
        """Return the vectors in the dtype of the variables, as Keras does.

        Raises
        ------
        ValueError
            An integer is no category.
        """
        indices = inputs.astype(np.int64) if inputs.dtype.kind not in "iu" else inputs
        if not is_recorded(inputs) and indices.size and not 0 <= indices.min() <= indices.max() < self.num_tokens:
            raise ValueError(
                f"`inputs` of '{self.name}' must be from 0 to {self.num_tokens - 1}; "
                f"received {indices.min()} to {indices.max()}"
            )
        return encoded(indices, self.num_tokens, self.output_mode, self.variable_dtype)


class Discretization(Layer):
    """The number of the interval in which each element lies.

    Parameters
    ----------
    bin_boundaries : sequence of float
        Where intervals begin, ascending; all below the first are number 0.
    num_bins : int, optional
        How many intervals Keras' ``adapt`` has looked for: of no effect here.
    epsilon : float
        Of ``adapt``: of no effect here.
    output_mode : {"int", "multi_hot", "one_hot", "count"}
        Return the numbers, or what :class:`CategoryEncoding` makes of them.
    sparse : bool
        Keras'; it must be off.
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> Discretization([0.0, 1.0])(np.array([-3.0, 0.0, 0.5, 7.0]))
    array([0, 1, 1, 2], dtype=int32)
    """

    _arrays = ("inputs",)
    _told = ("bin_boundaries",)
    _options = ("bin_boundaries", "num_bins", "epsilon", "output_mode")

    def __init__(
        self,
        bin_boundaries: Sequence[float],
        num_bins: int | None = None,
        epsilon: float = 0.01,
        output_mode: str = "int",
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        if not isinstance(bin_boundaries, Sequence | np.ndarray):
            raise TypeError(f"`bin_boundaries` must be numbers; received {bin_boundaries!r}")
        self.bin_boundaries = [number(n, "bin_boundaries") for n in bin_boundaries]
        if any(after <= before for before, after in pairwise(self.bin_boundaries)):
            raise ValueError(f"`bin_boundaries` must ascend; received {bin_boundaries!r}")
        self.num_bins = None if num_bins is None else positive_integer(num_bins, "num_bins")
        self.epsilon = number(epsilon, "epsilon", 0.0)
        self.output_mode = _mode(output_mode, ("int", *_MODES))

    def call(self, inputs: Array) -> Array:
        """Return int32, or vectors in the compute dtype."""
        x = ops.cast(inputs, F32) if dtypes.is_float(inputs.dtype) else inputs
        numbers: Array = np.digitize(x, np.asarray(self.bin_boundaries, F32)).astype(np.int32)
        if self.output_mode == "int":
            return numbers
        return encoded(numbers, len(self.bin_boundaries) + 1, self.output_mode, self.compute_dtype)


def _mode(value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"`output_mode` must be one of {', '.join(allowed)}; received {value!r}")
    return str(value)


def encoded(indices: Array, depth: int, mode: str, dtype: str) -> Array:
    """Return vectors with `depth` places for indices below that."""
    if mode == "one_hot" and indices.ndim > 1 and indices.shape[-1] == 1:
        indices = indices[..., 0]
    each = ops.take_rows(np.eye(depth, dtype=F32), np.atleast_1d(indices), F32)
    if mode != "one_hot":
        axis = 1 if each.ndim > 2 else 0
        each = ops.sum(each, axis=axis)
        each = ops.minimum(each, 1.0) if mode == "multi_hot" else each
    return ops.cast(each, dtype)
