"""The order of samples in an epoch: a function of the seed, the epoch and the number of samples."""

from collections.abc import Callable

import numpy as np

from mp_core.arrays import Array

__all__ = ["order_of"]


def order_of(seed: Callable[[], int]) -> Callable[[int, int], Array]:
    """Return a function ``order(samples, epoch)`` that returns a permutation of the samples.

    The permutation is a stable sort of 64-bit words of Philox4x64-10 (Salmon et al., 2011) with the key (seed, epoch).
    `seed` is called when an epoch begins, so that it can return the seed of a resumed training.

    >>> order_of(lambda: 0)(5, 1).tolist() == order_of(lambda: 0)(5, 1).tolist()
    True
    """

    def order(samples: int, epoch: int) -> Array:
        words = np.random.Philox(key=np.array([seed(), epoch], np.uint64)).random_raw(samples)
        return np.argsort(words, kind="stable")

    return order
