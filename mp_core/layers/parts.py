"""Parts of a batch: what layers must know of the whole batch if a training step computes it in several passes."""

from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.arrays.recorded import is_recorded

__all__ = ["BatchPart", "batch_size_of", "current_part", "require_whole_batch", "rows_before", "with_batch_axis_of"]


class BatchPart(NamedTuple):
    """The samples of a batch that one pass computes."""

    before: Array  # shape (1,): Number of samples of the batch before this part. A plan reads it when it runs.
    samples: int  # Number of samples in this part.
    whole: int  # Number of samples in the batch.


current_part: ContextVar[BatchPart | None] = ContextVar("mp_core.layers.part", default=None)
"""The part of a batch that this thread or task computes; None: a whole batch."""


def rows_before(x: Any, name: str) -> Array | None:
    """Return the number of samples of the batch before those in `x`; None if `x` holds the whole batch."""
    part = current_part.get()
    if part is None:
        return None
    if x.shape[0] != part.samples:
        raise ValueError(
            f"layer '{name}' draws random numbers for an array of shape {x.shape}, whose first axis must be the "
            f"{part.samples} samples of a pass: use passes=1"
        )
    return part.before


def batch_size_of(x: Any) -> int:
    """Return the number of samples of the whole batch to which `x` belongs."""
    part = current_part.get()
    return int(x.shape[0]) if part is None or x.shape[0] != part.samples else part.whole


def with_batch_axis_of(inputs: Array, x: Array) -> Array:
    """Return `x`; in a recording, make a constant depend on the batch axis of `inputs`, so that plans can resize it."""
    if is_recorded(x) or not is_recorded(inputs):
        return x
    first = inputs[(slice(None), *(slice(0, 1) for _ in inputs.shape[1:]))]
    column = ops.cast(first.reshape((-1, *(1 for _ in x.shape[1:]))), x.dtype)
    return ops.where(np.zeros(x.shape, bool), column, x)


def require_whole_batch(what: str) -> None:
    """Raise ValueError if a batch is computed in several passes; `what` names the layer that needs all samples."""
    if current_part.get() is not None:
        raise ValueError(f"{what} needs all samples of a batch at once, so `passes` must be 1")
