"""The seed of the process: it determines initial weights and the seeds of objects that are made without a seed."""

from itertools import count
from types import SimpleNamespace

import numpy as np

from mp_core.arrays import Array
from mp_core.utilities.arguments import integer

__all__ = ["key_of", "next_key", "next_seed", "set_seed"]

_process = SimpleNamespace(seed=None, draws=count())


def set_seed(seed: int | None) -> None:
    """Set the seed of the process, from which initial weights, seeds of layers and the order of samples are drawn.

    Draw number n of the process has the Philox key (seed, 2**32 - 1 - n). So models that are created in the same order
    have the same weights in every process and on every CPU.

    Parameters
    ----------
    seed : int or None
        From 0 to 2**32 - 1. None: use random numbers of the operating system, as before the first call.

    Examples
    --------
    >>> from mp_core.layers import Dense
    >>> def kernel():
    ...     set_seed(3)
    ...     layer = Dense(2)
    ...     layer.build((None, 4))
    ...     return layer.kernel.numpy()
    >>> bool((kernel() == kernel()).all())
    True
    >>> set_seed(None)
    """
    if seed is not None and not 0 <= integer(seed, "seed") < 2**32:
        raise ValueError(f"`seed` must be from 0 to 2**32 - 1; received {seed}")
    _process.seed, _process.draws = seed, count()


def next_key() -> Array:
    """Advance the process' draw counter, and return the Philox key of that draw, as uint32."""
    if _process.seed is None:
        return np.random.SeedSequence().generate_state(2)
    return key_of(_process.seed, next(_process.draws))


def key_of(seed: int, draw: int) -> Array:
    """Return the Philox key of draw number `draw`, as uint32: (seed, 2**32 - 1 - draw).

    Keys of a :class:`SeedGenerator` count up from (seed, 0), so that no key is drawn twice.
    """
    return np.array([seed, 2**32 - 1 - draw], np.uint32)


def next_seed() -> int:
    """Draw and return a seed from 0 to 2**31 - 1."""
    return int(np.random.Philox(key=next_key().astype(np.uint64)).random_raw() >> np.uint64(33))
