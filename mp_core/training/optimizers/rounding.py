"""How a step stores its results in variables of 16 bits: docs/numerics.md, "Optimizers"."""

from typing import Any

import numpy as np

from mp_core.arrays import F32, Array, cast
from mp_core.arrays.dtypes import is_float
from mp_core.arrays.stochastic import rounded_stochastically
from mp_core.core.updates import STREAM

__all__ = ["is_narrow", "rounded", "split"]


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Return whether variables of this type are computed in float32 and rounded to 16 bits."""
    return dtype.itemsize == 2 and is_float(dtype)


def rounded(x: Array, dtype: np.dtype[Any], key: Array | None, place: int, number: int) -> Array:
    """Return the result `x` of a step in the type of its variable.

    Parameters
    ----------
    x : ndarray
        Of the type of the computation.
    dtype : dtype
    key : ndarray or None
        (seed, step): 16 bits are rounded stochastically. None: to nearest.
    place : int
        The index of the model's variable.
    number : int
        0 for the variable (or its compensation), then its slots, its average, its accumulator.
    """
    if key is None or not is_narrow(dtype):
        return cast(x, dtype)
    return rounded_stochastically(x, dtype, key, (place, number, STREAM))


def split(x: Array, dtype: np.dtype[Any], key: Array | None, place: int) -> tuple[Array, Array]:
    """Return the value of 16 bits nearest to `x`, and the rest: what is lost by this, 0 if the value is not finite."""
    new = cast(x, dtype)
    wide = cast(new, F32)
    with np.errstate(all="ignore"):
        lost = np.where(np.isfinite(wide), x - wide, np.float32(0))
    return new, rounded(lost, dtype, key, place, 0)
