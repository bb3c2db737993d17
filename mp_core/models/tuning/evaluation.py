"""Evaluation: retrieval and correlation of embeddings, ranking and accuracy of scores."""

from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.layers import activations
from mp_core.models.tuning.examples import Examples
from mp_core.models.tuning.scoring import inputs_and_targets
from mp_core.utilities.docstrings import shown

__all__ = ["correlation", "cosines", "differences", "measured", "measured_scores", "ranking", "retrieval"]

_CUTS = (1, 5, 10)
_ROWS = 256  # queries whose scores are in memory at once


def measured(encoder: Any, examples: Examples, batch_size: int = 32) -> dict[str, float]:
    """Evaluate the first two columns: :func:`correlation` for examples with labels, else :func:`retrieval`."""
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
    """Evaluate how well an encoder finds the document of each query among all documents by cosine.

    ``documents[i]`` is the right document for ``queries[i]``. Equal documents count once; among equal scores, the right
    one is ranked last. ``recall@1``, ``recall@5`` and ``recall@10`` are the shares of queries whose document has at
    most this rank; ``mrr@10`` is the mean of 1 / rank, or 0 for ranks above 10.
    """
    numbers: dict[str, int] = {}
    right = np.array([numbers.setdefault(text, len(numbers)) for text in documents])
    document_vectors = encoder.encode(list(numbers), batch_size, normalize=True)
    query_vectors = encoder.encode(queries, batch_size, normalize=True)
    places = np.concatenate([
        _places(query_vectors[start : start + _ROWS] @ document_vectors.T, right[start : start + _ROWS])
        for start in range(0, len(query_vectors), _ROWS)
    ])  # fmt: skip
    report = {f"recall@{cut}": float(np.mean(places <= cut)) for cut in _CUTS}
    return report | {"mrr@10": float(np.mean(np.where(places <= 10, 1 / places, 0)))}


def _places(scores: Array, right: Array) -> Array:
    """Return the rank, from 1, of the score in the right column of each row."""
    own = scores[np.arange(len(right)), right]
    places: Array = (scores >= own[:, np.newaxis]).sum(axis=1)
    return places


def correlation(
    encoder: Any, first: list[str], second: list[str], labels: Array, batch_size: int = 32
) -> dict[str, float]:
    """Return ``pearson`` and ``spearman``, the correlations of the cosines of pairs with their labels.

    They are 0 if all cosines or all labels are equal.
    """
    one, other = (encoder.encode(texts, batch_size, normalize=True).astype(np.float64) for texts in (first, second))
    cosines = (one * other).sum(axis=1)
    return {"pearson": _pearson(cosines, labels), "spearman": _pearson(_ranks(cosines), _ranks(labels))}


@shown("{}(np.array([[1.0, 0.0], [3.0, 4.0]]), np.array([[2.0, 0.0], [4.0, 3.0]]))", "{'least': 0.96, 'mean': 0.98}")
def cosines(vectors: Array, others: Array) -> dict[str, float]:
    """Return the ``least`` and the ``mean`` cosine of ``vectors[i]`` and ``others[i]``.

    The cosine of two zero vectors, such as static embeddings of empty texts, counts as 1; of one zero vector, as 0.
    """
    x, y = (np.asarray(each, np.float64) for each in (vectors, others))
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    of_zeros = np.where((x == y).all(axis=1), 1.0, 0.0)
    found = np.divide((x * y).sum(axis=1), norms, out=of_zeros, where=norms > 0)
    return {"least": float(found.min()), "mean": float(found.mean())}


def measured_scores(reranker: Any, examples: Examples, batch_size: int = 32) -> dict[str, float]:
    """Evaluate the scores of a reranker or classifier.

    The result depends on the model and the examples:

    * a model with one label: :func:`ranking` if some query (the first text) has documents with different labels, else
      the correlation of scores with labels, as in :func:`correlation`;
    * a model with several labels: ``accuracy``, the share of examples whose label has the highest score. If texts may
      have several labels: the share of all (text, label) whose score has the right sign.
    """
    inputs, labels = inputs_and_targets(examples, reranker.model, "eval")
    scores = reranker.predict_tokens(reranker.tokenize(inputs), batch_size, activation="linear")
    if scores.ndim > 1:
        right = scores.argmax(axis=1) == labels if labels.ndim == 1 else (scores > 0) == (labels > 0.5)
        return {"accuracy": float(np.mean(right))}
    found = ranking(examples.texts[0], scores, labels)
    if found:
        return found
    shown = activations.get(reranker.activation)(scores)
    return {"pearson": _pearson(shown, labels), "spearman": _pearson(_ranks(scores), _ranks(labels))}


@shown('{}(["a", "a", "b"], np.array([0.2, 0.7, 0.1]), np.array([1.0, 0.0, 1.0]))["mrr@10"]', "0.5")
def ranking(queries: list[str], scores: Array, labels: Array) -> dict[str, float]:
    """Evaluate how well scores rank the documents of each query by their labels: means over the queries.

    Documents with equal queries are ranked together; among equal scores, lower labels come first. ``mrr@10`` is the
    reciprocal rank of the first document with the highest label, or 0 for ranks above 10. ``ndcg@10`` is the sum of
    ``label / log2(rank + 1)`` over ten ranks, divided by its largest possible value. Queries whose documents all have
    the same label are left out; the result is empty if no query is left.
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
    """Return 1 / rank of the first highest label, for labels in ranked order; 0 for ranks above 10."""
    place = int(labels.argmax()) + 1
    return 1 / place if place <= 10 else 0.0


def _gain(labels: Array) -> float:
    """Return the discounted cumulative gain of the first ten ranks."""
    first = labels[:10]
    return float((first / np.log2(np.arange(2, len(first) + 2))).sum())


@shown("{}(np.array([[1.0], [2.0]]), np.array([[1.5], [2.0]]))", "{'largest': 0.5, 'mean': 0.25}")
def differences(scores: Array, others: Array) -> dict[str, float]:
    """Return the ``largest`` and the ``mean`` absolute difference of scores, shape (n, labels)."""
    found = np.abs(np.asarray(scores, np.float64) - others)
    return {"largest": float(found.max()), "mean": float(found.mean())}


def _pearson(x: Array, y: Array) -> float:
    x, y = (np.asarray(each, np.float64) - np.mean(each, dtype=np.float64) for each in (x, y))
    norm = np.linalg.norm(x) * np.linalg.norm(y)
    return float(x @ y / norm) if norm else 0.0


def _ranks(x: Array) -> Array:
    """Return the rank of each number; equal numbers share their mean rank."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return ranks
