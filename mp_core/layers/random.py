"""Random numbers: the seed of the process, generators of keys (Philox4x64-10, counter-based), and distributions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core import ops
from mp_core.arrays import Array
from mp_core.arrays.dtypes import floatx
from mp_core.arrays.recorded import current_recording
from mp_core.layers.parts import rows_before
from mp_core.layers.randomness import next_key, set_seed
from mp_core.layers.seeds import Seed, SeedGenerator
from mp_core.ops import random as counted
from mp_core.ops.arrangement import array_of
from mp_core.utilities.absent import refusing
from mp_core.utilities.docstrings import shown

__all__ = ["SeedGenerator", "dropout", "normal", "set_seed", "uniform"]


if not TYPE_CHECKING:  # to a type checker, a name that does not exist is an error
    __getattr__, __dir__ = refusing("random", __all__)


@shown("{}((2, 3), seed=1).shape", "(2, 3)")
def normal(
    shape: Sequence[int], mean: float = 0.0, stddev: float = 1.0, dtype: DTypeLike | None = None, seed: Seed = None
) -> Array:
    """Return normally distributed random numbers; arguments as for :func:`uniform`."""
    drawn = counted.normal(_key(seed), shape, _before(shape, "normal"))
    return ops.cast(drawn * stddev + mean, floatx() if dtype is None else dtype)


def uniform(
    shape: Sequence[int], minval: float = 0.0, maxval: float = 1.0, dtype: DTypeLike | None = None, seed: Seed = None
) -> Array:
    """Return uniformly distributed random numbers; you can call it in the ``call`` of your own layer.

    Parameters
    ----------
    shape : sequence of int
    minval, maxval : float
        Range of the numbers; rounding may produce `maxval` itself.
    dtype : dtype, optional
        A float type; default: :func:`mp_core.config.floatx`.
    seed : int or SeedGenerator, optional
        An integer: the same numbers in each call. A generator, which must be an attribute of the layer: new numbers in
        each call and each training step. Default: new numbers, which depend on :func:`set_seed`.

    Raises
    ------
    ValueError
        `seed` is None in a training step or a plan, which would draw the same numbers each time.

    Examples
    --------
    >>> generator = SeedGenerator(7)
    >>> x, y = uniform((1000,), -1, 1, seed=generator), uniform((1000,), -1, 1, seed=generator)
    >>> bool(abs(x.mean()) < 0.1), bool((x == y).any())
    (True, False)
    """
    drawn = counted.uniform(_key(seed), shape, _before(shape, "uniform"))
    return ops.cast(drawn * (maxval - minval) + minval, floatx() if dtype is None else dtype)


def dropout(
    inputs: ArrayLike, rate: float, noise_shape: Sequence[int | None] | None = None, seed: Seed = None
) -> Array:
    """Set a random share `rate` of the elements to 0, and divide the others by ``1 - rate``.

    Parameters
    ----------
    inputs : array-like
    rate : float
        From 0 to 1.
    noise_shape : sequence of (int or None), optional
        Length 1 for axes along which all elements are kept or dropped together.
    seed : int or SeedGenerator, optional
        As for :func:`uniform`.

    Examples
    --------
    >>> sorted(set(dropout(np.ones(100, np.float32), 0.5, seed=1).tolist()))
    [0.0, 2.0]
    """
    array = array_of(inputs)
    return counted.dropout(array, _key(seed), rate, noise_shape, _before(array.shape, "dropout"))


def _key(seed: Seed) -> Any:
    """Return the Philox key for a draw."""
    if isinstance(seed, SeedGenerator):
        return seed.next()
    if seed is not None:
        return SeedGenerator(seed).state.numpy()
    if current_recording() is not None:
        raise ValueError(
            "`seed` must be a SeedGenerator that the layer has as an attribute: a plan or a step of training would "
            "draw the same numbers each time; received None"
        )
    return next_key()


def _before(shape: Sequence[int], name: str) -> Array | None:
    """Return the number of rows before the drawn rows, if a batch is computed in parts; otherwise None."""
    return rows_before(np.broadcast_to(np.float32(0), tuple(shape)), f"mp_core.random.{name}")
