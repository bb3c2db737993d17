"""Pool ragged sequences, stored one after the other, to one row for each."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core.arrays import F32, FORMATS, Array, cast, contiguous
from mp_core.arrays.recorded import constant, current_recording, note_offsets, recordable
from mp_core.core import pooling as _pooling
from mp_core.ops.attention import RAGGED, checked_offsets
from mp_core.utilities.arguments import integer, kind_of

__all__ = ["ragged_pool"]


@recordable
def ragged_pool(
    x: Array, offsets: Array, pooling: str | Sequence[str] = "mean", skipped: int = 0, longest: int | None = None
) -> Array:
    """Return one row for each ragged sequence: a mean or the maxima of its rows, or a single row.

    Parameters
    ----------
    x : ndarray, shape (tokens, width)
        float32, float16 or bfloat16: the rows of all sequences, one sequence after the other.
    offsets : ndarray of int32, shape (sequences + 1,)
        As in :func:`ragged_attention`; each sequence has more than `skipped` rows.
    pooling : str or sequence of str
        - ``"mean"``: the mean of the rows;
        - ``"mean_sqrt_len_tokens"``: their sum divided by the square root of their number;
        - ``"weightedmean"``: their mean with weights 1, 2, 3, ...;
        - ``"max"``: the largest element of each column;
        - ``"cls"``: the first row;
        - ``"lasttoken"``: the last row.

        For several names the results are concatenated. Sums are added in float32 in the order of products.
    skipped : int
        The number of rows at the beginning of each sequence that do not count.
    longest : int, optional
        At least the length of the longest sequence, in all runs of a plan. Default: the number of tokens.

    Returns
    -------
    ndarray of float32, shape (sequences, width), or (sequences, n * width) for n poolings

    Raises
    ------
    ValueError
        `offsets` do not ascend within the rows, or a sequence has at most `skipped` or more than `longest` rows.

    Examples
    --------
    >>> ragged_pool(np.array([[1], [2], [4]], np.float32), np.array([0, 1, 3], np.int32))
    array([[1.],
           [3.]], dtype=float32)
    """
    if kind_of(x) not in RAGGED:
        raise TypeError(f"`x` must be of float32, float16 or bfloat16; received {kind_of(x)}")
    if x.ndim != 2:
        raise ValueError(f"`x` must have shape (tokens, width); received {x.shape}")
    names, width = [pooling] if isinstance(pooling, str) else list(pooling), x.shape[1]
    for name in names:
        if not isinstance(name, str) or name not in _pooling.POOLINGS:
            raise ValueError(f"`pooling` must be of {', '.join(map(repr, _pooling.POOLINGS))}; received {pooling!r}")
    most = _checked_lengths(offsets, len(x), skipped, longest)
    out = np.empty((len(offsets) - 1, width * len(names)), F32)
    if out.size:
        x, offsets = contiguous(x), contiguous(offsets)
        for place, name in enumerate(names):
            rows = cast(x, F32) if name == "weightedmean" else x
            weights = constant(_weights(name, skipped, most, rows.dtype))
            how, fmt = _pooling.POOLINGS[name], FORMATS[rows.dtype]
            _pooling.pool(fmt, how, rows, offsets, weights, skipped, out, place * width)
    return out


def _checked_lengths(offsets: Array, tokens: int, skipped: int, longest: int | None) -> int:
    """Check the lengths of sequences, and return the largest one; while recording, the largest of all runs."""
    found = checked_offsets(offsets, tokens)
    most = tokens if longest is None else integer(longest, "longest")
    if most < found:
        raise ValueError(f"`longest` must be at least {found}, the length of a sequence; received {longest}")
    if integer(skipped, "skipped") < 0:
        raise ValueError(f"`skipped` must be at least 0; received {skipped}")
    shortest = np.diff(offsets).min(initial=2**31 - 1)
    if shortest <= skipped:
        raise ValueError(f"`offsets` must give each sequence more than the {skipped} rows skipped; one has {shortest}")
    note_offsets(offsets, tokens, skipped + 1, most)
    return found if current_recording() is None else most


def _weights(pooling: str, skipped: int, longest: int, dtype: Any) -> Array:
    weights = np.arange(1, longest + 1).astype(dtype) if pooling == "weightedmean" else np.ones(longest, dtype)
    weights[:skipped] = 0
    return weights
