"""How good the embeddings of an encoder are: at finding texts, and at saying how alike two texts are."""

from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.models.tuning.examples import Examples

__all__ = ["correlation", "cosines", "measured", "retrieval"]

_CUTS = (1, 5, 10)
_ROWS = 256  # queries whose scores are in memory at once


def measured(encoder: Any, examples: Examples, batch_size: int = 32) -> dict[str, float]:
    """Return :func:`correlation` of examples with labels, :func:`retrieval` of others; of the first two columns.

    Parameters
    ----------
    encoder : BertEncoder
    examples : Examples
    batch_size : int

    Raises
    ------
    ValueError
        There is one column only, or labels are no numbers.
    """
    if len(examples.texts) < 2:
        raise ValueError(f"examples must have two texts a row; received the column {examples.names[0]!r}")
    first, second = examples.texts[:2]
    if examples.labels is None:
        return retrieval(encoder, first, second, batch_size)
    labels = examples.numbers("eval")
    if labels.ndim > 1:
        raise ValueError(f"labels must be one number a row; received {labels.shape[1]}")
    return correlation(encoder, first, second, labels, batch_size)


def retrieval(encoder: Any, queries: list[str], documents: list[str], batch_size: int = 32) -> dict[str, float]:
    """Return how well an encoder finds the document of each query among all documents, by cosine.

    Equal documents count once; of equal scores, the right one comes last.

    Parameters
    ----------
    encoder : BertEncoder
    queries, documents : list of str
        Document i is the one that query i is for.
    batch_size : int

    Returns
    -------
    dict of str to float
        ``recall@1``, ``recall@5`` and ``recall@10``: the share of queries whose document is among so many first ones;
        ``mrr@10``: the mean of 1 / its place, 0 behind the tenth.
    """
    numbers: dict[str, int] = {}
    right = np.array([numbers.setdefault(text, len(numbers)) for text in documents])
    found = encoder.encode(list(numbers), batch_size, normalize=True)
    asked = encoder.encode(queries, batch_size, normalize=True)
    places = np.concatenate([
        _places(asked[start : start + _ROWS] @ found.T, right[start : start + _ROWS])
        for start in range(0, len(asked), _ROWS)
    ])  # fmt: skip
    report = {f"recall@{cut}": float(np.mean(places <= cut)) for cut in _CUTS}
    return report | {"mrr@10": float(np.mean(np.where(places <= 10, 1 / places, 0)))}


def _places(scores: Array, right: Array) -> Array:
    """Return the place, from 1 on, of the right column of each row among the largest ones."""
    own = scores[np.arange(len(right)), right]
    places: Array = (scores >= own[:, np.newaxis]).sum(axis=1)
    return places


def correlation(
    encoder: Any, first: list[str], second: list[str], labels: Array, batch_size: int = 32
) -> dict[str, float]:
    """Return the correlation of the cosines of pairs with their labels: ``pearson``, and of ranks ``spearman``.

    It is 0 where all cosines or all labels are the same.

    Parameters
    ----------
    encoder : BertEncoder
    first, second : list of str
    labels : ndarray, shape (n,)
    batch_size : int
    """
    one, other = (encoder.encode(texts, batch_size, normalize=True).astype(np.float64) for texts in (first, second))
    cosines = (one * other).sum(axis=1)
    return {"pearson": _pearson(cosines, labels), "spearman": _pearson(_ranks(cosines), _ranks(labels))}


def cosines(vectors: Array, others: Array) -> dict[str, float]:
    """Return the ``least`` and the ``mean`` cosine of vectors with others, row by row.

    That of two vectors of zeros, as static embeddings have of an empty text, is 1; that of zeros with others is 0.

    Parameters
    ----------
    vectors, others : ndarray, shape (n, dim)

    Examples
    --------
    >>> cosines(np.array([[1.0, 0.0], [3.0, 4.0]]), np.array([[2.0, 0.0], [4.0, 3.0]]))
    {'least': 0.96, 'mean': 0.98}
    """
    x, y = (np.asarray(each, np.float64) for each in (vectors, others))
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    of_zeros = np.where((x == y).all(axis=1), 1.0, 0.0)
    found = np.divide((x * y).sum(axis=1), norms, out=of_zeros, where=norms > 0)
    return {"least": float(found.min()), "mean": float(found.mean())}


def _pearson(x: Array, y: Array) -> float:
    x, y = (np.asarray(each, np.float64) - np.mean(each, dtype=np.float64) for each in (x, y))
    norm = np.linalg.norm(x) * np.linalg.norm(y)
    return float(x @ y / norm) if norm else 0.0


def _ranks(x: Array) -> Array:
    """Return the rank of each number; equal ones share the mean of theirs."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks
