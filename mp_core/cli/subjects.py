"""The kinds of models that ``mp-core tune`` trains: how each is opened, trained, measured and compared."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mp_core.arrays import Array
from mp_core.models import Reranker, TextEncoder
from mp_core.models.opening import class_of
from mp_core.models.tuning.evaluation import cosines, differences, measured, measured_scores
from mp_core.models.tuning.examples import Examples

__all__ = ["Subject", "subject_of"]


class Subject(NamedTuple):
    """A kind of model."""

    opens: Any  # the class whose ``from_folder`` opens such a model
    losses: tuple[str, ...]  # the names of the losses that train it
    loss: Callable[[Examples], str]  # returns the name of the default loss for some examples
    learning_rate: float  # the default learning rate
    measured: Callable[[Any, Examples], dict[str, float]]  # returns the quality of a model on examples
    inputs: Callable[[Examples], list[Any]]  # returns the distinct inputs of examples
    outputs: Callable[[Any, list[Any]], Array]  # returns the outputs of a model for inputs, before any activation
    # ``compared(outputs, expected)`` -> the deciding measure, then the mean
    compared: Callable[[Array, Array], dict[str, float]]
    nearness: Callable[[dict[str, float]], float]  # turns what `compared` returns into one number; larger is closer
    measure: str  # the name of the deciding measure

    def chosen_loss(self, name: str | None, examples: Examples) -> str:
        """Return the loss of --loss, which must fit this kind of model, or the default loss."""
        if name is not None and name not in self.losses:
            known = f"the losses of a {self.opens.__name__} are {', '.join(self.losses)}"
            raise argparse.ArgumentError(None, f"argument --loss: {known}; received '{name}'")
        return name or self.loss(examples)


def subject_of(folder: str) -> Subject:
    """Return the kind of the model in a folder; ``TextEncoder.from_folder`` refuses kinds that cannot be trained."""
    return _RERANKER if class_of(Path(folder)) is Reranker else _ENCODER


# ---- encoders


def _texts(examples: Examples) -> list[str]:
    return list(dict.fromkeys(text for row in zip(*examples.texts, strict=True) for text in row))


_ENCODER = Subject(
    opens=TextEncoder,
    losses=("multiple_negatives", "multiple_negatives_symmetric", "cosine", "cosent", "triplet", "mse", "margin_mse"),
    loss=lambda examples: "multiple_negatives" if examples.labels is None else "cosent",
    learning_rate=5e-5,
    measured=measured,
    inputs=_texts,
    outputs=TextEncoder.encode,
    compared=cosines,
    nearness=lambda found: found["least"],
    measure="least cosine",
)


# ---- rerankers and classifiers


def _pairs(examples: Examples) -> list[Any]:
    rows = zip(*examples.texts, strict=True)
    return list(dict.fromkeys(rows if len(examples.texts) > 1 else examples.texts[0]))


def _scores(reranker: Reranker, inputs: list[Any]) -> Array:
    scores = reranker.predict_tokens(reranker.tokenize(inputs), activation="linear")
    return scores.reshape(len(inputs), -1)


_RERANKER = Subject(
    opens=Reranker,
    losses=("cross_entropy", "mse"),
    loss=lambda examples: "cross_entropy",
    learning_rate=2e-5,
    measured=measured_scores,
    inputs=_pairs,
    outputs=_scores,
    compared=differences,
    nearness=lambda found: -found["largest"],
    measure="largest difference of scores",
)
