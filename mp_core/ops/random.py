"""Counter-based random numbers: each depends only on a key and its own index, so any thread can compute it.

A key is an array of uint32, (seed, draw). Number i of a key is word i of ``numpy.random.Philox(key=[seed, draw])``. So
the same key gives the same numbers on any number of threads, on every CPU, and in plans. A plan reads the key when it
runs: if the key is a variable that is assigned :func:`key_after`, each run gets other numbers.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core.arrays import F32, F64, FORMATS, Array, as_float, contiguous
from mp_core.arrays.recorded import recordable
from mp_core.arrays.stochastic import checked_key
from mp_core.core.convert import filled
from mp_core.core.pairs import randomize
from mp_core.utilities.arguments import kind_of, share
from mp_core.utilities.docstrings import documented

__all__ = ["dropout", "key_after", "normal", "uniform"]

_DRAWN = documented("""
    Parameters
    ----------
    key : ndarray of uint32, shape (2,)
    shape : sequence of int
    rows_before : ndarray of int32, shape (1,), optional
        As in :func:`dropout`.

    Returns
    -------
    ndarray of float32

    Raises
    ------
    TypeError
        `key` is not an ndarray of uint32.
    ValueError
        `key` has another shape.
""")


@recordable
def dropout(
    x: Any, key: Array, rate: float, noise_shape: Sequence[int | None] | None = None, rows_before: Array | None = None
) -> Array:
    """Return `x` with a share `rate` of its elements set to 0, and the others divided by ``1 - rate``.

    Element i is kept if number i of the key, ``(word >> 11) * 2**-53``, is at least `rate`; that is number i of NumPy's
    ``Generator(Philox(key=[seed, draw])).random()``. A kept element is multiplied by ``1 / (1 - rate)`` in float32 and
    rounded once. The gradient is the same function of the upstream gradient; the mask is not stored but drawn again.

    Parameters
    ----------
    x : array-like of float
    key : ndarray of uint32, shape (2,)
    rate : float
        From 0 to 1.
    noise_shape : sequence of int or None, optional
        The shape of the random numbers. Along an axis of length 1, all elements share one number. None, for all or for
        one length: as in `x`.
    rows_before : ndarray of int32, shape (1,), optional
        If `x` is a part of a batch: how many rows of the batch, along the first axis, come before it. Then each
        row gets the same numbers as in the whole batch. A plan reads it when it runs.

    Returns
    -------
    ndarray
        The shape and type of `x`.

    Raises
    ------
    TypeError
        `x` is not numeric, or `key` is not an ndarray of uint32.
    ValueError
        `rate` is not from 0 to 1, `key` has another shape, or `noise_shape` does not fit `x`.

    Examples
    --------
    >>> dropout(np.ones(6, np.float32), np.array([1, 0], np.uint32), 0.5)
    array([0., 2., 0., 0., 2., 0.], dtype=float32)
    """
    array, key, rate = as_float(x, "x"), checked_key(key), share(rate, "rate")
    shared, before = _shared_axes(array.shape, noise_shape), _rows(rows_before)
    if rate == 1 or array.size == 0:
        return filled(array.shape, array.dtype, 0.0)
    if array.dtype is F64:
        numbers = [1 if axis in shared else n for axis, n in enumerate(array.shape)]
        skipped = 0 if before is None or 0 in shared else int(before[0]) * math.prod(numbers[1:])
        random = np.random.Generator(_philox(key, skipped)).random(numbers)
        return np.where(random >= rate, array * (1 / (1 - rate)), 0.0)
    rows = contiguous(array)
    out = np.empty(rows.shape, rows.dtype)
    lines = (rows.reshape(1), out.reshape(1)) if rows.ndim == 0 else (rows, out)
    randomize("dropout", FORMATS[rows.dtype], key, lines[1], lines[0], rate, shared, before)
    return out


@recordable
@_DRAWN
def uniform(key: Array, shape: Sequence[int], rows_before: Array | None = None) -> Array:
    """Return uniform random numbers from 0 to below 1, in float32: number i is ``(word >> 40) * 2**-24`` of word i.

    Examples
    --------
    >>> uniform(np.array([1, 0], np.uint32), (3,)).round(3)
    array([0.304, 0.849, 0.156], dtype=float32)
    """
    return _drawn("uniform", key, shape, rows_before)


@recordable
@_DRAWN
def normal(key: Array, shape: Sequence[int], rows_before: Array | None = None) -> Array:
    """Return random numbers of the normal distribution with mean 0 and standard deviation 1, in float32.

    Number i is ``x sqrt(-2 log(s) / s)`` with ``s = x^2 + y^2``, by the polar method of Marsaglia. (x, y) is the first
    pair of numbers between -1 and 1 with ``s < 1``. The pairs are made from words 0 and 1, then 2 and 3, of the Philox
    blocks with the counters ``(i + 1, t, 0, 1)``, t = 0, 1, ...

    Examples
    --------
    >>> x = normal(np.array([1, 0], np.uint32), (10000,))
    >>> bool(abs(x.mean()) < 0.05), bool(abs(x.std() - 1) < 0.05)
    (True, True)
    """
    return _drawn("normal", key, shape, rows_before)


@recordable
def key_after(key: Array) -> Array:
    """Return the key of the next draw: (seed, draw + 1).

    Parameters
    ----------
    key : ndarray of uint32, shape (2,)

    Returns
    -------
    ndarray, shape (2,)
        Of the type of `key`.

    Examples
    --------
    >>> key_after(np.array([7, 0], np.uint32))
    array([7, 1], dtype=uint32)
    """
    key = checked_key(key)
    out = np.empty(2, key.dtype)
    randomize("next key", FORMATS[F32], key, out)
    return out


def _drawn(kind: str, key: Array, shape: Sequence[int], rows_before: Array | None) -> Array:
    out = np.empty(tuple(shape), F32)
    if out.size:
        lines = out if out.ndim else out.reshape(1)
        randomize(kind, FORMATS[F32], checked_key(key), lines, rows_before=_rows(rows_before))
    return out


def _rows(rows_before: Any) -> Array | None:
    """Check `rows_before` and return it contiguous; None stays None."""
    if rows_before is None:
        return None
    if not isinstance(rows_before, np.ndarray) or rows_before.dtype != np.int32 or rows_before.shape != (1,):
        raise TypeError(f"`rows_before` must be an ndarray of int32 and shape (1,); received {kind_of(rows_before)}")
    return contiguous(rows_before)


def _philox(key: Array, skipped: int) -> np.random.Philox:
    """Return NumPy's generator for a key, with the first numbers skipped."""
    generator = np.random.Philox(key=key.view(np.uint32).astype(np.uint64))
    generator.random_raw(skipped, output=False)
    return generator


def _shared_axes(shape: tuple[int, ...], noise_shape: Sequence[int | None] | None) -> tuple[int, ...]:
    """Return the axes along which elements share a number; raise ValueError if `noise_shape` does not fit."""
    given = shape if noise_shape is None else tuple(noise_shape)
    fits = len(given) == len(shape) and all(own in (None, 1, n) for own, n in zip(given, shape, strict=True))
    if not fits:
        raise ValueError(f"`noise_shape` must have the lengths of {shape}, or 1 or None; received {noise_shape!r}")
    return tuple(axis for axis, (own, n) in enumerate(zip(given, shape, strict=True)) if own == 1 != n)
