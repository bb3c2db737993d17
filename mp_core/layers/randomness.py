"""The seed of the process, from which initial weights come, and the seeds of all that has none of its own."""

from itertools import count
from types import SimpleNamespace

import numpy as np

from mp_core.arrays import Array
from mp_core.utilities.arguments import integer

__all__ = ["key_of", "next_key", "next_seed", "set_seed"]

_process = SimpleNamespace(seed=None, draws=count())


def set_seed(seed: int | None) -> None:
    """Let initial weights, and the seeds of layers and of the order of samples, follow from a number, from now on.

    Draw number n of the process has the Philox key (seed, 2**32 - 1 - n), so models that are made in the same order get
    the same weights, in every process and on every CPU.

    Parameters
    ----------
    seed : int or None
        From 0 to 2**32 - 1; None: numbers of the operating system, as before the first call.

    Raises
    ------
    TypeError
        `seed` is no integer.
    ValueError
        `seed` is out of range.

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
    """Return the key of the next draw of the process, as uint32."""
    if _process.seed is None:
        return np.random.SeedSequence().generate_state(2)
    return key_of(_process.seed, next(_process.draws))


def key_of(seed: int, draw: int) -> Array:
    """Return the key of draw number `draw` of a seed, as uint32; the keys of its generators begin at the other end."""
    return np.array([seed, 2**32 - 1 - draw], np.uint32)


def next_seed() -> int:
    """Return a seed from 0 to 2**31 - 1."""
    return int(np.random.Philox(key=next_key().astype(np.uint64)).random_raw() >> np.uint64(33))
