"""The order of samples in an epoch: a function of a seed, the epoch and the number of samples."""

from collections.abc import Callable

import numpy as np

from mp_core.arrays import Array

__all__ = ["order_of"]


def order_of(seed: Callable[[], int]) -> Callable[[int, int], Array]:
    """Return a function of the number of samples and the number of the epoch, which returns an order.

    It is the order of 64-bit words of Philox4x64-10 (Salmon et al., 2011) with the key (seed, epoch), equal ones as
    they come. The seed is asked for when an epoch begins: it may be that of a training that goes on by then.

    Examples
    --------
    >>> order_of(lambda: 0)(5, 1).tolist() == order_of(lambda: 0)(5, 1).tolist()
    True
    """

    def order(samples: int, epoch: int) -> Array:
        words = np.random.Philox(key=np.array([seed(), epoch], np.uint64)).random_raw(samples)
        return np.argsort(words, kind="stable")

    return order
