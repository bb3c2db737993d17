"""The outputs of a model for all samples, put together from those of batches."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.training.batches import ArrayBatches, batches_of, joined, number_of_samples
from mp_core.utilities.arguments import positive_integer
from mp_core.utilities.progress import progress
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["predicted"]


def predicted(on_batch: Callable[[Any], Any], x: Any, batch_size: int | None, verbose: Any, steps: int | None) -> Any:
    """Return the outputs for all samples; `on_batch` returns those for some."""
    batches = batches_of(x, batch_size=batch_size)
    found = islice(batches.epoch(0), None if steps is None else positive_integer(steps, "steps"))
    total = batches.steps if steps is None else steps
    outputs = (on_batch(batch.x) for batch in progress(found, show=bool(verbose), total=total, unit="batches"))
    if isinstance(batches, ArrayBatches) and steps is None:
        return _in_place(outputs, batches.samples)
    parts = list(outputs)
    if not parts:
        raise ValueError("`x` must have at least one batch; received none")
    return joined(parts)


def _in_place(outputs: Iterator[Any], samples: int) -> Any:
    """Return arrays into which the outputs of each batch are written where they belong."""
    first = next(outputs, None)
    if first is None:
        raise ValueError("`x` must have at least one sample; received none")
    if number_of_samples(first) == samples:
        return first
    whole = map_leaves(lambda x: np.empty((samples, *x.shape[1:]), x.dtype), first)
    start = 0
    for part in _after(first, outputs):
        count = number_of_samples(part)
        for into, values in zip(leaves(whole), leaves(part), strict=True):
            _write(into, values, slice(start, start + count))
        start += count
    return whole


def _write(into: Array, values: Array, rows: slice) -> None:
    if values.shape[1:] != into.shape[1:]:
        raise ValueError(f"the outputs of batches have different shapes: {into.shape[1:]} and {values.shape[1:]}")
    into[rows] = values


def _after(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest
