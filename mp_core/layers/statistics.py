"""Mean and variance of data in one array or in batches."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import Array

__all__ = ["Moments", "batches_in", "moments_of"]


class Moments(NamedTuple):
    """Mean and variance in float64, and the number of elements over which they are taken."""

    mean: Array
    variance: Array
    numbers: int


def batches_in(data: Any) -> Iterator[Array]:
    """Yield the batches of an array, a PyDataset, or an iterable of arrays or tuples that begin with one, in float64.

    An array, or nested lists of numbers, is one batch. In a list of arrays, each is a batch.
    """
    batches = _batches_or_none(data)
    for batch in [data] if batches is None else batches:
        x = batch[0] if isinstance(batch, tuple) and batch and hasattr(batch[0], "shape") else batch
        if batches is not None and not hasattr(x, "shape"):
            raise TypeError(f"each batch of `data` must be an array; received {type(x).__name__}")
        yield np.asarray(x, np.float64)


def _batches_or_none(data: Any) -> Iterable[Any] | None:
    """Return the batches of data; None if the data are one array."""
    if hasattr(data, "num_batches") and hasattr(data, "__getitem__"):
        return (data[number] for number in range(data.num_batches))
    if hasattr(data, "shape"):
        return None
    if not isinstance(data, list | tuple):
        if not hasattr(data, "__iter__"):
            raise TypeError(f"`data` must be an array or an iterable of batches; received {type(data).__name__}")
        return data  # type: ignore[no-any-return]
    first: Any = data[0] if data else None
    is_batch = hasattr(first, "shape") or (isinstance(first, tuple) and bool(first) and hasattr(first[0], "shape"))
    return data if is_batch and np.ndim(first[0] if isinstance(first, tuple) else first) else None


def moments_of(batches: Iterable[Array], axes: tuple[int, ...]) -> Moments:
    """Return mean and variance over some axes of all batches, which may have different lengths.

    Means a and b of two sets are merged by ``mean = a + (b - a) * n_b / n`` and
    ``variance = (v_a n_a + v_b n_b) / n + (b - a)**2 * n_a n_b / n**2``, which avoids cancellation.

    Examples
    --------
    >>> moments_of([np.array([[1.0], [3.0]]), np.array([[5.0]])], (0,))
    Moments(mean=array([3.]), variance=array([2.66666667]), numbers=3)
    """
    found: Moments | None = None
    for x in batches:
        count = math.prod(x.shape[axis] for axis in axes)
        if not x.size:
            continue
        mean, variance = x.mean(axis=axes), x.var(axis=axes)
        if found is None:
            found = Moments(mean, variance, count)
            continue
        total, apart = found.numbers + count, mean - found.mean
        share = count / total
        found = Moments(
            found.mean + apart * share,
            found.variance * (1 - share) + variance * share + np.square(apart) * share * (1 - share),
            total,
        )
    if found is None:
        raise ValueError("`data` must have at least one sample; received none")
    return found
