"""The training of models with scores: rerankers, and encoders with a classification head."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.layers import Dense
from mp_core.models.blocks import Positions
from mp_core.models.network import TextNetwork
from mp_core.models.texts import Tokens
from mp_core.models.tuning.batches import TextBatches
from mp_core.models.tuning.examples import Examples, read_examples
from mp_core.models.tuning.fitting import Recipe, check_trainable, rates, run
from mp_core.models.tuning.training import TunedModel, vectors_of
from mp_core.training.losses import (
    SparseCategoricalCrossentropy,
    binary_crossentropy,
    mean_squared_error,
    sparse_categorical_crossentropy,
)
from mp_core.training.measured import training_state
from mp_core.training.optimizers import Adam
from mp_core.training.sequential import Sequential
from mp_core.utilities.arguments import positive_integer

__all__ = ["fit_classifier", "fit_head", "fit_reranker", "inputs_and_targets"]

_HEAD_RATE, _HEAD_STEPS, _HEAD_BATCH = 0.02, 800, 32
"""Adam's settings for a head on unit vectors. The result is close to logistic regression with C=100."""


class TunedScores(TunedModel):
    """A network with scores, float32 of shape (texts, labels) for a batch; a `head` is trained together with it.

    ``loss(outputs, targets)`` defaults to the binary cross-entropy of one score, or the cross-entropy of classes.
    """

    def __init__(
        self, network: TextNetwork, rates: Mapping[str, float], seed: int | None, scores: Callable[[Any], Array],
        head: Dense | None = None, loss: Callable[[list[Array], Any], Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(network, rates, seed, loss or _cross_entropy)
        self.head, self._scores = head, scores

    def outputs_of(self, x: dict[str, Any]) -> Array:
        """Return the scores of ragged texts, without the filler text."""
        return self._scores(x)


def _cross_entropy(outputs: list[Array], y: Any) -> Any:
    """Return the mean cross-entropy of a batch: binary for one score, of a softmax for several."""
    (scores,) = outputs
    if scores.shape[1] == 1:
        return ops.mean(binary_crossentropy(y[:, None], scores, from_logits=True))
    return ops.mean(sparse_categorical_crossentropy(y, scores, from_logits=True))


def _cross_entropies(outputs: list[Array], y: Any) -> Any:
    """Return the mean binary cross-entropy over the examples and the labels of a batch."""
    (scores,) = outputs
    return ops.mean(binary_crossentropy(y, scores, from_logits=True))


def _mean_square(outputs: list[Array], y: Any) -> Any:
    """Return the mean squared error to the scores of a teacher."""
    (scores,) = outputs
    return ops.mean(mean_squared_error(y, scores))


class _Loss(NamedTuple):
    """A loss of scores: ``function(outputs, targets)``, and ``targets(examples, number of scores, argument)``."""

    function: Callable[[list[Array], Any], Any]  # (outputs, targets) -> loss.
    # (examples, number of scores, name of the data in messages) -> targets.
    targets: Callable[[Examples, int, str], Array]


def fit_reranker(
    reranker: Any, data: Any, loss: str, recipe: Recipe, *, chunk: int | None, validation_data: Any, cluster: Any
) -> Any:
    """Train a reranker or a classifier of texts: see :meth:`mp_core.models.Reranker.fit`."""
    if not isinstance(loss, str) or loss not in _LOSSES:
        raise ValueError(f"`loss` must be one of {', '.join(map(repr, _LOSSES))}; received {loss!r}")
    network = reranker.model
    check_trainable(network)
    size = positive_integer(recipe.batch_size, "batch_size")
    batches = TextBatches(network, *_tokens(reranker, data, loss, "data"), size)
    held = None
    if validation_data is not None:
        held = TextBatches(network, *_tokens(reranker, validation_data, loss, "validation_data"), size)

    scores, function = partial(_scores_of, network), _loss_of(network, loss).function
    tuned = TunedScores(network, rates(network, recipe.dropout), recipe.seed, scores, loss=function)
    with _frozen(network):
        return run(tuned, batches, held, recipe, chunk, cluster)


def _scores_of(network: TextNetwork, x: dict[str, Any]) -> Array:
    """Return the scores of ragged texts, float32, without the filler text."""
    found: Array = ops.cast(network(x["ids"], places=x["places"], offsets=x["offsets"]), F32)
    return found[: len(x["lengths"])]


@contextmanager
def _frozen(network: TextNetwork) -> Iterator[None]:
    """Freeze sums of positions and types in the block: files store the two separately, and not their sum."""
    sums = [
        layer for layer in network.flatten() if isinstance(layer, Positions) and layer.types > 1 and layer.trainable
    ]
    before = [(part, part.trainable) for layer in sums for part in layer.flatten()]
    for layer in sums:
        layer.trainable = False
    try:
        yield
    finally:
        for part, was_trainable in before:
            part.trainable = was_trainable


def _tokens(reranker: Any, data: Any, loss: str, argument: str) -> tuple[list[Tokens], Array]:
    """Return the tokens of examples, and their targets."""
    inputs, targets = inputs_and_targets(read_examples(data, argument), reranker.model, argument, loss)
    tokens, network = reranker.read_tokens(reranker.tokenize(inputs)), reranker.model
    for place, (row, length) in enumerate(zip(tokens.rows, network.lengths(tokens.rows), strict=True)):
        if len(row) != length:  # attention is not causal: later tokens change the score, so they cannot be dropped
            raise ValueError(
                f"row {place} of `{argument}` ends in the padding token, which a network that is not causal cannot be "
                "trained on: remove it from the text"
            )
    return [tokens], targets


def inputs_and_targets(
    examples: Examples, network: Any, argument: str, loss: str = "cross_entropy"
) -> tuple[list[str] | list[tuple[str, ...]], Array]:
    """Return the texts or pairs of texts of examples, and their targets for a `loss` of :meth:`Reranker.fit`.

    Raise ValueError, which calls the data `argument`, without labels that fit the loss, or with more than two texts.
    """
    if len(examples.texts) > 2:
        raise ValueError(f"`{argument}` must have one or two texts a row; received the columns {examples.names}")
    if examples.labels is None:
        raise ValueError(f"`{argument}` must have a column 'label' or 'score'")
    targets = _loss_of(network, loss).targets(examples, network.labels, argument)
    return examples.texts[0] if len(examples.texts) == 1 else list(zip(*examples.texts, strict=True)), targets


def _scores_of_teacher(examples: Examples, count: int, argument: str) -> Array:
    labels = examples.numbers(argument)
    if labels[0].size != count:
        raise ValueError(f"labels of `{argument}` must be {count} scores of a teacher; received {labels[0].size}")
    return labels.reshape(-1, count)


def _shares(examples: Examples, count: int, argument: str) -> Array:
    labels = examples.numbers(argument)
    if labels.shape[1:] != (count,) or not ((labels >= 0) & (labels <= 1)).all():
        raise ValueError(
            f"labels of `{argument}` must be lists of {count} numbers from 0 to 1, as problem_type of the model is "
            f"{_MANY!r}; received {examples.labels[0]!r:.200}"
        )
    return labels


def _classes(examples: Examples, count: int, argument: str) -> Array:
    """Return targets from 0 to 1 for one score, or class numbers for several scores."""
    labels = examples.numbers(argument)
    if labels.ndim > 1:
        raise ValueError(f"labels of `{argument}` must be numbers; received lists of {labels.shape[1]}")
    allowed = "from 0 to 1" if count == 1 else f"integers from 0 to {count - 1}"
    most = 1 if count == 1 else count - 1
    wrong = (labels < 0) | (labels > most) | ((count > 1) & (labels % 1 != 0))
    if wrong.any():
        place = int(wrong.argmax())
        raise ValueError(
            f"the label of {examples.where(place)} of `{argument}` must be {allowed}; received {labels[place]}"
        )
    return labels if count == 1 else labels.astype(np.int32)


_LOSSES = {"cross_entropy": _Loss(_cross_entropy, _classes), "mse": _Loss(_mean_square, _scores_of_teacher)}
_MANY = "multi_label_classification"


def _loss_of(network: Any, name: str) -> _Loss:
    """Return the loss of a name; ``"cross_entropy"`` is binary for each label if a text may have several labels."""
    has_many = network.labels > 1 and network.config.get("problem_type") == _MANY
    return _Loss(_cross_entropies, _shares) if has_many and name == "cross_entropy" else _LOSSES[name]


# ---- heads of encoders


def fit_head(vectors: Array, classes: Array, count: int, seed: int) -> Dense:
    """Train a classification head on float32 vectors, shape (n, width), and int32 classes below `count`."""
    head = Dense(count, kernel_initializer="zeros", name="head", dtype="float32")
    head.build((None, vectors.shape[1]))
    model = Sequential([head], dtype="float32")
    model.compile(Adam(_HEAD_RATE), SparseCategoricalCrossentropy(from_logits=True))
    training_state(model).seed = seed
    epochs = -(-_HEAD_STEPS // -(-len(vectors) // _HEAD_BATCH))
    model.fit(vectors, classes, batch_size=_HEAD_BATCH, epochs=max(epochs, 10), verbose=0)
    return head


def fit_classifier(encoder: Any, head: Dense, tokens: Tokens, classes: Array, recipe: Recipe) -> Any:
    """Train an encoder together with its classification head, and return the History."""
    network, poolings, steps = encoder.model, encoder.poolings, encoder._modules.steps
    check_trainable(network)

    def scores(x: Any) -> Array:
        found: Array = head(vectors_of(network, x, poolings, steps, tokens.skipped))
        return found

    tuned = TunedScores(network, rates(network, recipe.dropout), recipe.seed, scores, head)
    columns: Sequence[Tokens] = [tokens]
    return run(tuned, TextBatches(network, columns, classes, recipe.batch_size), None, recipe)
