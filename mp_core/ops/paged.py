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
    rows: Array  # (1,): The rows of each head in the cache.


@recordable
def store_rows(x: Array, pages: Pages, to: Array) -> Array:
    """Set ``to[head * rows + places[i]] = x[i, head]`` and return `to`; both have the same type and row length."""
    _store_rows(x if x[:1, :1].flags.c_contiguous else contiguous(x), pages.places, pages.rows, to)
    return to


@recordable
def paged_attention(
    query: Array,
    keys: Array,
    values: Array,
    offsets: Array,
    pages: Pages,
    length: int,
    heads: int,
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
    keys, values : ndarray, shape (key heads * rows, size)
        The cache: all rows of one head, then those of the next. Page p has the rows from ``p * length`` to
        ``(p + 1) * length - 1`` of each head.
    offsets : ndarray of int32, shape (sequences + 1,)
        The first token of each sequence in `query`, then the end of the last one.
    pages : Pages
    length, heads : int
        The rows of a page, and the heads of keys.
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
    ragged = contiguous(offsets), None, (pages.past, pages.pages, pages.starts, pages.rows, length, heads)
    _attention.attention(FORMATS[query.dtype], (query, keys, values), out, *how, ragged)
    return out
