"""Sequences that continue earlier ones: their keys and values are rows of a cache, in pages.

The callers (:mod:`mp_core.models.generation`) make pages and places themselves, so these operations do not check them.
"""

from typing import NamedTuple

import numpy as np

from mp_core.arrays import FORMATS, Array, contiguous
from mp_core.arrays.recorded import recordable
from mp_core.core import attention as _attention
from mp_core.core.lookup import store_rows as _store_rows
from mp_core.ops.attention import ragged_settings

__all__ = ["Pages", "paged_attention", "store_rows"]


class Pages(NamedTuple):
    """Where the keys and values of sequences are; all arrays are int32."""

    past: Array  # (sequences,): The rows of each sequence before those of this call.
    pages: Array  # The numbers of the pages of all sequences, one sequence after the other.
    starts: Array  # (sequences + 1,): Where the pages of each sequence begin in `pages`, and the end of the last one.
    places: Array  # (tokens,): The row of the cache for each token of this call.


@recordable
def store_rows(x: Array, places: Array, to: Array) -> Array:
    """Set ``to[places[i]] = x[i]`` and return `to`; both have the same type and rows of the same shape."""
    row = x if x.shape[1:] == () or x[:1].flags.c_contiguous else contiguous(x)
    _store_rows(row, places, to)
    return to


@recordable
def paged_attention(
    query: Array,
    keys: Array,
    values: Array,
    offsets: Array,
    pages: Pages,
    length: int,
    scale: float | None = None,
    reach: int | None = None,
    softcap: float | None = None,
) -> Array:
    """Return the causal attention of the last tokens of sequences to all tokens of their sequences.

    Each row has the bits of the same row of :func:`~mp_core.ops.ragged_attention` of the whole sequences.

    Parameters
    ----------
    query : ndarray, shape (tokens, heads, size)
        The last tokens of all sequences, one sequence after the other: float32, float16 or bfloat16.
    keys, values : ndarray, shape (rows, key heads, size)
        The cache. Page p has the rows from ``p * length`` to ``(p + 1) * length - 1``.
    offsets : ndarray of int32, shape (sequences + 1,)
        The first token of each sequence in `query`, then the end of the last one.
    pages : Pages
    length : int
        The rows of a page.
    scale, reach, softcap
        As in :func:`~mp_core.ops.ragged_attention`.

    Returns
    -------
    ndarray, shape (tokens, heads, size)
    """
    out = np.empty(query.shape, query.dtype)
    if out.size == 0:
        return out
    how = ragged_settings(query, 1, None, scale, reach, True, softcap)
    ragged = contiguous(offsets), None, (pages.past, pages.pages, pages.starts, length)
    _attention.attention(FORMATS[query.dtype], (query, keys, values), out, *how, ragged)
    return out
