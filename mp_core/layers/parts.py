"""Parts of a batch: what layers need of the whole batch while a step computes it in several passes."""

from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.arrays.recorded import is_recorded

__all__ = ["BatchPart", "part_under_way", "refuse_part", "rows_before", "samples_of_batch", "with_samples_of"]


class BatchPart(NamedTuple):
    """The samples of a batch that one pass computes.

    Attributes
    ----------
    before : ndarray of int32, shape (1,)
        How many samples of the batch come before. A plan reads it when it runs.
    samples : int
        How many there are in this pass.
    whole : int
        How many the batch has.
    """

    before: Array
    samples: int
    whole: int


part_under_way: ContextVar[BatchPart | None] = ContextVar("mp_core.layers.part", default=None)
"""The part of a batch with which this thread or task calls a model; None: with whole batches."""


def rows_before(x: Any, name: str) -> Array | None:
    """Return how many indices of the first axis of a whole batch come before those of an array; None: `x` is whole.

    Raises
    ------
    ValueError
        The first axis of the array of layer `name` is not that of the samples.
    """
    part = part_under_way.get()
    if part is None:
        return None
    if x.shape[0] != part.samples:
        raise ValueError(
            f"layer '{name}' draws random numbers for an array of shape {x.shape}, whose first axis is not that of "
            f"the {part.samples} samples of a pass: use passes=1"
        )
    return part.before


def samples_of_batch(x: Any) -> int:
    """Return how many samples the whole batch has of which an array is a part, or all."""
    part = part_under_way.get()
    return int(x.shape[0]) if part is None or x.shape[0] != part.samples else part.whole


def with_samples_of(inputs: Array, x: Array) -> Array:
    """Return `x`; if it is a constant beside recorded inputs, as an array of their recording that has their samples."""
    if is_recorded(x) or not is_recorded(inputs):
        return x
    first = inputs[(slice(None), *(slice(0, 1) for _ in inputs.shape[1:]))]
    column = ops.cast(first.reshape((-1, *(1 for _ in x.shape[1:]))), x.dtype)
    return ops.where(np.zeros(x.shape, bool), column, x)


def refuse_part(what: str) -> None:
    """Raise ValueError if a step computes its batch in several passes; `what` needs all samples at once."""
    if part_under_way.get() is not None:
        raise ValueError(f"{what} needs all samples of a batch at once, so `passes` must be 1")
