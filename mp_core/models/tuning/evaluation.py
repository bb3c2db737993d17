"""How good embeddings are at finding texts, and at saying how alike two are; how good scores are at ranking texts."""

from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.layers import activations
from mp_core.models.tuning.examples import Examples
from mp_core.models.tuning.scoring import scored

__all__ = ["correlation", "cosines", "differences", "measured", "measured_scores", "ranking", "retrieval"]

_CUTS = (1, 5, 10)
_ROWS = 256  # queries whose scores are in memory at once


def measured(encoder: Any, examples: Examples, batch_size: int = 32) -> dict[str, float]:
    """Return :func:`correlation` of examples with labels, :func:`retrieval` of others; of the first two columns.

    Parameters
    ----------
    encoder : TextEncoder
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
    encoder : TextEncoder
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
    encoder : TextEncoder
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


def measured_scores(reranker: Any, examples: Examples, batch_size: int = 32) -> dict[str, float]:
    """Return how good the scores of a reranker are, as the labels of examples allow to say.

    That is :func:`ranking` if a query, which is the first text, has several documents with different labels; else the
    correlation of the scores with the labels, as :func:`correlation` returns it. For a model of several labels it is
    ``accuracy``: the share of examples whose label has the highest score, or of the labels whose scores are above 0 if
    they should be, and only then, where a text may have several.

    Parameters
    ----------
    reranker : Reranker
    examples : Examples
    batch_size : int

    Raises
    ------
    ValueError
        :meth:`mp_core.models.Reranker.fit` refuses the examples.
    """
    inputs, labels = scored(examples, reranker.model, "eval")
    scores = reranker.predict_tokens(reranker.tokenize(inputs), batch_size, activation="linear")
    if scores.ndim > 1:
        right = scores.argmax(axis=1) == labels if labels.ndim == 1 else (scores > 0) == (labels > 0.5)
        return {"accuracy": float(np.mean(right))}
    found = ranking(examples.texts[0], scores, labels)
    if found:
        return found
    shown = activations.get(reranker.activation)(scores)
    return {"pearson": _pearson(shown, labels), "spearman": _pearson(_ranks(scores), _ranks(labels))}


def ranking(queries: list[str], scores: Array, labels: Array) -> dict[str, float]:
    """Return how well scores put the documents of each query in the order of their labels.

    Of equal scores, that with the lower label comes first. Queries whose documents have one label are left out.

    Parameters
    ----------
    queries : list of str
        The query of each document: those of equal ones are ranked against one another.
    scores, labels : ndarray, shape (n,)

    Returns
    -------
    dict of str to float
        Means over the queries. ``mrr@10``: 1 / the place of the first document with the highest label of its query, 0
        behind the tenth. ``ndcg@10``: the sum of ``label / log2(place + 1)`` over ten places, divided by its largest
        value. Nothing, if no query is left.

    Examples
    --------
    >>> ranking(["a", "a", "b"], np.array([0.2, 0.7, 0.1]), np.array([1.0, 0.0, 1.0]))["mrr@10"]
    0.5
    """
    places: dict[str, list[int]] = {}
    for place, query in enumerate(queries):
        places.setdefault(query, []).append(place)
    found = []
    for rows in places.values():
        own = np.asarray(labels[rows], np.float64)
        if (own != own[0]).any():
            ranked = own[np.lexsort((own, -scores[rows]))]
            found.append((_reciprocal(ranked), _gain(ranked) / _gain(-np.sort(-own))))
    return dict(zip(("mrr@10", "ndcg@10"), np.mean(found, axis=0).tolist(), strict=True)) if found else {}


def _reciprocal(labels: Array) -> float:
    """Return 1 / the place of the first of the highest labels, in ranked order; 0 behind the tenth."""
    place = int(labels.argmax()) + 1
    return 1 / place if place <= 10 else 0.0


def _gain(labels: Array) -> float:
    """Return the discounted cumulative gain of ten places."""
    first = labels[:10]
    return float((first / np.log2(np.arange(2, len(first) + 2))).sum())


def differences(scores: Array, others: Array) -> dict[str, float]:
    """Return the ``largest`` and the ``mean`` absolute difference of scores.

    Parameters
    ----------
    scores, others : ndarray, shape (n, labels)

    Examples
    --------
    >>> differences(np.array([[1.0], [2.0]]), np.array([[1.5], [2.0]]))
    {'largest': 0.5, 'mean': 0.25}
    """
    found = np.abs(np.asarray(scores, np.float64) - others)
    return {"largest": float(found.max()), "mean": float(found.mean())}


def _pearson(x: Array, y: Array) -> float:
    x, y = (np.asarray(each, np.float64) - np.mean(each, dtype=np.float64) for each in (x, y))
    norm = np.linalg.norm(x) * np.linalg.norm(y)
    return float(x @ y / norm) if norm else 0.0


def _ranks(x: Array) -> Array:
    """Return the rank of each number; equal ones share the mean of theirs."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks
