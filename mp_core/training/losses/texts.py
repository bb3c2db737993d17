"""Losses of text embeddings, with the formulas and defaults of sentence-transformers.

A loss defines how many texts an example has and what its label is. It computes one number from the vectors of a batch,
one array of shape (examples, width) per column of texts. It consists of operations of mp_core, so it has gradients.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.ops.elementwise import concatenated
from mp_core.ops.norms import length
from mp_core.training.losses.classification import sparse_categorical_crossentropy
from mp_core.training.losses.regression import mean_squared_error
from mp_core.utilities.arguments import boolean, number, positive, positive_integer

__all__ = [
    "MSE",
    "CoSENT",
    "CosineSimilarity",
    "MarginMSE",
    "Matryoshka",
    "MultipleNegatives",
    "TextLoss",
    "Triplet",
    "get",
]


class TextLoss:
    """The base of the losses."""

    # Minimum and maximum number of texts of an example; None: no maximum
    texts: ClassVar[tuple[int, int | None]] = (2, 2)
    label: ClassVar[str | None] = None  # a description of the label of an example; None: examples have no label
    least_examples: ClassVar[int] = 1  # the minimum number of examples in a batch

    def __call__(self, vectors: Sequence[Array], labels: Array | None) -> Array:
        """Return the loss, one float32 number, from the vectors of each column and labels with one row per example."""
        raise NotImplementedError(f"{type(self).__name__} must define `__call__`")

    def label_shapes(self, texts: int, width: int) -> set[tuple[int, ...]]:
        """Return the shapes that a label may have, for examples of `texts` texts and vectors of this width."""
        return {()}


@dataclass(frozen=True, slots=True)
class MultipleNegatives(TextLoss):
    """Rank the positive of each anchor above the positives of other anchors and above all hard negatives.

    An example is (anchor, positive) or (anchor, positive, negative, ...). The loss is the mean over anchors i of the
    cross-entropy of ``scale * cos(anchor_i, text_j)`` over all positives and negatives j of the batch; the target class
    is the positive of i (M. Henderson et al., 2017, https://arxiv.org/abs/1705.00652).

    Parameters
    ----------
    scale : float
        The inverse of the temperature.
    symmetric : bool
        Whether to average the loss with the loss from positives to anchors.

    Examples
    --------
    >>> vectors = np.eye(2, dtype=np.float32)
    >>> round(float(MultipleNegatives(scale=1.0)([vectors, vectors], None)), 4)
    0.3133
    """

    scale: float = 20.0
    symmetric: bool = False

    texts = 2, None
    least_examples = 2

    def __post_init__(self) -> None:
        positive(self.scale, "scale")
        boolean(self.symmetric, "symmetric")

    def __call__(self, vectors: Sequence[Array], labels: Array | None) -> Array:
        anchors, *others = map(ops.normalize, vectors)
        count = len(anchors)
        loss = self._cross_entropy(anchors, _stacked(others), count)
        return (loss + self._cross_entropy(others[0], anchors, count)) * 0.5 if self.symmetric else loss

    def _cross_entropy(self, queries: Array, candidates: Array, count: int) -> Array:
        scores = ops.matmul(queries, candidates.T) * self.scale
        return ops.mean(sparse_categorical_crossentropy(np.arange(count, dtype=np.int32), scores, from_logits=True))


@dataclass(frozen=True, slots=True)
class CosineSimilarity(TextLoss):
    """The mean of ``(cos(first, second) - label)**2``: an example is two texts and their target cosine.

    >>> vectors = np.eye(2, dtype=np.float32)
    >>> float(CosineSimilarity()([vectors, vectors], np.float32([1.0, 0.0])))
    0.5
    """

    label = "a number, the cosine of the two vectors"

    def __call__(self, vectors: Sequence[Array], labels: Array | None) -> Array:
        return ops.mean(ops.square(_cosines(*vectors) - labels))


@dataclass(frozen=True, slots=True)
class CoSENT(TextLoss):
    """Order the cosines of pairs by their labels: an example is two texts and a number.

    The loss is ``log(1 + sum(exp(scale * (cos_i - cos_j))))`` over all i and j of a batch with ``label_i < label_j``
    (J. Su, 2022, https://kexue.fm/archives/8847).

    >>> first = np.eye(2, dtype=np.float32)
    >>> second = np.float32([[1, 0], [1, 0]])
    >>> round(float(CoSENT(scale=1.0)([first, second], np.float32([0.0, 1.0]))), 4)
    1.3133
    """

    scale: float = 20.0

    label = "a number: the more alike the two texts are, the larger"
    least_examples = 2

    def __post_init__(self) -> None:
        positive(self.scale, "scale")

    def __call__(self, vectors: Sequence[Array], labels: Array | None) -> Array:
        assert labels is not None
        scores = _cosines(*vectors) * self.scale
        differences = scores[:, None] - scores[None, :]
        counts = ops.cast(labels[:, None] < labels[None, :], F32)
        row = (differences * counts + (counts - 1.0) * 1e12).reshape(1, -1)
        zero = ops.multiply(row[:, :1], 0.0)
        loss: Array = -ops.log_softmax(concatenated(zero, row, axis=1))[0, 0]
        return loss


@dataclass(frozen=True, slots=True)
class Triplet(TextLoss):
    """The mean of ``max(0, distance(anchor, positive) - distance(anchor, negative) + margin)``.

    Parameters
    ----------
    margin : float
    distance : {"euclidean", "cosine"}
        ``"cosine"`` is 1 minus the cosine.

    Examples
    --------
    >>> a, b = np.float32([[1, 0]]), np.float32([[0, 1]])
    >>> float(Triplet(margin=1.0, distance="cosine")([a, b, a], None))
    2.0
    """

    margin: float = 5.0
    distance: str = "euclidean"

    texts = 3, 3

    def __post_init__(self) -> None:
        number(self.margin, "margin")
        if self.distance not in _DISTANCES:
            raise ValueError(f"`distance` must be {' or '.join(map(repr, _DISTANCES))}; received {self.distance!r}")

    def __call__(self, vectors: Sequence[Array], labels: Array | None) -> Array:
        anchor, near, far = vectors
        distance = _DISTANCES[self.distance]
        return ops.mean(ops.relu(distance(anchor, near) - distance(anchor, far) + self.margin))


@dataclass(frozen=True, slots=True)
class MSE(TextLoss):
    """The mean squared difference from a teacher's vectors: an example is one or more texts, and the teacher's vector.

    >>> float(MSE()([np.zeros((1, 2), np.float32)], np.float32([[1.0, 3.0]])))
    5.0
    """

    texts = 1, None
    label = "the vector of a teacher, as wide as the encoder's"

    def __call__(self, vectors: Sequence[Array], labels: Array | None) -> Array:
        parts = [ops.mean(mean_squared_error(labels, column)) for column in vectors]
        return _mean_of(parts)

    def label_shapes(self, texts: int, width: int) -> set[tuple[int, ...]]:
        """Return the shape of a vector."""
        return {(width,)}


@dataclass(frozen=True, slots=True)
class MarginMSE(TextLoss):
    """The mean squared difference from a teacher's margins: an example is (query, positive, negative, ...).

    ``margin = query . positive - query . negative``. The label is the teacher's margin of each negative, or the
    teacher's scores of the positive and of each negative (Hofstaetter et al., 2020, https://arxiv.org/abs/2010.02666).

    >>> query, near, far = np.float32([[1, 0]]), np.float32([[1, 0]]), np.float32([[0, 1]])
    >>> float(MarginMSE()([query, near, far], np.float32([3.0])))
    4.0
    """

    texts = 3, None
    label = "the margins of a teacher, one for each negative, or its scores of the positive and of each negative"

    def __call__(self, vectors: Sequence[Array], labels: Array | None) -> Array:
        assert labels is not None
        query, *others = vectors
        best, *scores = (ops.sum(ops.multiply(query, other), axis=1) for other in others)
        wanted = labels[:, None] if labels.ndim == 1 else labels
        if wanted.shape[1] > len(scores):
            wanted = wanted[:, :1] - wanted[:, 1:]
        parts = [ops.mean(ops.square(best - score - wanted[:, place])) for place, score in enumerate(scores)]
        return _mean_of(parts)

    def label_shapes(self, texts: int, width: int) -> set[tuple[int, ...]]:
        """Return the shapes of the margins of all negatives, and of all scores."""
        return {(texts - 2,), (texts - 1,), *([()] if texts == 3 else [])}


@dataclass(frozen=True, slots=True)
class Matryoshka(TextLoss):
    """The weighted sum of a loss over several truncated lengths of the vectors (A. Kusupati et al., NeurIPS 2022).

    Embeddings of the trained encoder can be truncated: ``encode(texts, truncate_dim=64)``.

    Parameters
    ----------
    loss : TextLoss or str
    dims : sequence of int
        The lengths: the loss is computed from the first `dim` numbers of each vector.
    weights : sequence of float, optional
        One weight per length; default: 1.

    Examples
    --------
    >>> a, b = np.float32([[1, 0, 2]]), np.float32([[1, 0, 0]])
    >>> round(float(Matryoshka("mse", dims=[3, 1])([a], b)), 4)
    1.3333
    """

    loss: Any
    dims: Sequence[int]
    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("loss", get(self.loss)),
            ("dims", tuple(positive_integer(dim, "dims") for dim in self.dims)),
        ):
            object.__setattr__(self, name, value)
        weights = (1.0,) * len(self.dims) if self.weights is None else tuple(self.weights)
        if not self.dims or len(weights) != len(self.dims):
            raise ValueError(f"`dims` and `weights` must have one length, not 0; received {self.dims} and {weights}")
        object.__setattr__(self, "weights", tuple(number(weight, "weights") for weight in weights))

    @property
    def texts(self) -> tuple[int, int | None]:  # type: ignore[override]
        """The numbers of texts of the inner loss."""
        return self.loss.texts  # type: ignore[no-any-return]

    @property
    def label(self) -> str | None:  # type: ignore[override]
        """The label of the inner loss."""
        return self.loss.label  # type: ignore[no-any-return]

    @property
    def least_examples(self) -> int:  # type: ignore[override]
        """The minimum batch of the inner loss."""
        return self.loss.least_examples  # type: ignore[no-any-return]

    def label_shapes(self, texts: int, width: int) -> set[tuple[int, ...]]:
        """Return the shapes of the inner loss; raise ValueError if `dims` exceed the width."""
        if max(self.dims) > width:
            raise ValueError(f"`dims` must be at most {width}, the length of the vectors; received {self.dims}")
        return self.loss.label_shapes(texts, width)  # type: ignore[no-any-return]

    def __call__(self, vectors: Sequence[Array], labels: Array | None) -> Array:
        """Return the loss; vectors of a teacher are truncated too."""
        found, width = None, vectors[0].shape[1]
        for dim, weight in zip(self.dims, self.weights or (), strict=True):
            cut = labels
            if labels is not None and isinstance(self.loss, MSE):
                cut = labels[:, :dim]
            part = self.loss([column[:, :dim] if dim < width else column for column in vectors], cut) * weight
            found = part if found is None else found + part
        return found  # type: ignore[return-value]


_LOSSES: dict[str, Callable[[], TextLoss]] = {
    "multiple_negatives": MultipleNegatives,
    "multiple_negatives_symmetric": partial(MultipleNegatives, symmetric=True),
    "cosine": CosineSimilarity,
    "cosent": CoSENT,
    "triplet": Triplet,
    "mse": MSE,
    "margin_mse": MarginMSE,
}
"""Name -> function that creates the loss."""


def get(loss: Any) -> TextLoss:
    """Return the loss of a name; a loss is returned unchanged.

    >>> get("triplet")
    Triplet(margin=5.0, distance='euclidean')
    """
    if isinstance(loss, TextLoss):
        return loss
    if not isinstance(loss, str) or loss not in _LOSSES:
        raise ValueError(f"`loss` must be a TextLoss or one of {', '.join(map(repr, _LOSSES))}; received {loss!r}")
    return _LOSSES[loss]()


# ---- parts of formulas


def _stacked(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else concatenated(*arrays, axis=0)


def _mean_of(parts: Sequence[Array]) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total if len(parts) == 1 else total * (1.0 / len(parts))


def _cosines(x: Array, y: Array) -> Array:
    return ops.sum(ops.multiply(ops.normalize(x), ops.normalize(y)), axis=1)


def _euclidean(x: Array, y: Array) -> Array:
    """Return the length of ``x - y + 1e-6``, as torch computes it: its gradient is finite where the two are equal."""
    return length(x - y + 1e-6, 1)[:, 0]


def _cosine_distance(x: Array, y: Array) -> Array:
    return 1.0 - _cosines(x, y)


_DISTANCES: dict[str, Callable[[Array, Array], Array]] = {"euclidean": _euclidean, "cosine": _cosine_distance}
