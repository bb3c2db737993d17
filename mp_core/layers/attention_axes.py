"""The axes over which attention is computed. Arrays with more axes become (batch, time, heads, features), and back."""

import math
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.utilities.arguments import axes_of

__all__ = ["AttentionAxes", "checked_axes"]


def checked_axes(axes: Any) -> list[int]:
    """Return the argument ``attention_axes``, an integer or a sequence of integers, as a list."""
    try:
        return list(axes_of(axes))
    except TypeError:
        raise ValueError(
            f"`attention_axes` must be an int or a sequence of int; received attention_axes={axes!r}"
        ) from None


class AttentionAxes:
    """The axes over which attention is computed; all other axes are merged into one batch axis.

    Queries, keys and values have `rank` axes. By default all except the first and the last are attended over.
    """

    def __init__(self, rank: int, axes: list[int] | None) -> None:
        if rank < 3:
            raise ValueError(f"`query` must have at least 3 axes; received {rank}")
        self.rank = rank
        self.attended = [*range(1, rank - 1)] if axes is None else [a + rank if a < 0 else a for a in axes]
        is_known = bool(self.attended) and all(0 < a < rank - 1 for a in self.attended)
        if not is_known or len(set(self.attended)) < len(self.attended):
            raise ValueError(
                f"`attention_axes` must be axes from 1 to {rank - 2} of queries with {rank} axes, each once; received "
                f"attention_axes={axes}"
            )
        self.others = [a for a in range(rank - 1) if a not in self.attended]
        self._order = [*self.others, *self.attended, rank - 1, rank]  # of projected arrays: heads and width are last

    def check(self, query: Array, value: Array, key: Array) -> None:
        """Raise ValueError unless the shapes fit each other."""
        shapes = [x.shape for x in (query, value, key)]
        if any(len(shape) != self.rank for shape in shapes):
            raise ValueError(f"`query`, `value` and `key` must have {self.rank} axes; received shapes {shapes}")
        if self.rank > 3 and (
            any(len({shape[a] for shape in shapes}) > 1 for a in self.others) or shapes[1][:-1] != shapes[2][:-1]
        ):
            raise ValueError(
                f"`query`, `value` and `key` must have equal lengths along the axes {self.others}, value and key along "
                f"all but the last; received shapes {shapes}"
            )

    def rows(self, x: Array) -> Array:
        """Return projected queries, keys or values as (batch, time, heads, width)."""
        if self.rank == 3:
            return x
        shape = math.prod(self._lengths(x, self.others)), math.prod(self._lengths(x, self.attended)), *x.shape[-2:]
        return x.transpose(self._order).reshape(shape)

    def from_rows(self, rows: Array, query: Array) -> Array:
        """Invert :meth:`rows`: restore the axes of `query`."""
        if self.rank == 3:
            return rows
        lengths = *self._lengths(query, self.others), *self._lengths(query, self.attended), *rows.shape[-2:]
        back: list[int] = np.argsort(self._order).tolist()
        return rows.reshape(lengths).transpose(back)

    def scores(self, weights: Array, query: Array, value: Array) -> Array:
        """Split the axes of weights (batch, heads, targets, sources) into those of queries and values."""
        if self.rank == 3:
            return weights
        targets, sources = self._lengths(query, self.attended), self._lengths(value, self.attended)
        return weights.reshape(*self._lengths(query, self.others), weights.shape[1], *targets, *sources)

    def mask(self, keep: Array, query: Array, value: Array) -> Array:
        """Return a mask of scores in the shape (batch, heads, targets, sources)."""
        targets, sources = self._lengths(query, self.attended), self._lengths(value, self.attended)
        batch_axes, last = len(self.others), len(targets) + len(sources)
        if not last <= keep.ndim <= batch_axes + 1 + last:
            allowed = f"{last} to {batch_axes + 1 + last}"
            raise ValueError(f"`attention_mask` must have {allowed} axes; received shape {keep.shape}")
        leading = keep.ndim - last
        keep = keep.reshape(*keep.shape[:leading], *[1] * (batch_axes + 1 - leading), *keep.shape[leading:])
        heads = keep.shape[batch_axes]
        full = np.broadcast_to(keep, (*self._lengths(query, self.others), heads, *targets, *sources))
        return full.reshape(math.prod(full.shape[:batch_axes]), heads, math.prod(targets), math.prod(sources))

    @staticmethod
    def _lengths(x: Array, axes: list[int]) -> list[int]:
        return [x.shape[a] for a in axes]
