"""Classifiers of texts, pairs of texts and tokens, from folders that transformers writes."""

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.layers import activations
from mp_core.models.heads import TokenNetwork, function_of_scores, label_names
from mp_core.models.modules import Modules, read_cross
from mp_core.models.network import TextNetwork
from mp_core.models.reranker import Reranker
from mp_core.models.texts import Text, TextModel, Tokens, list_of_texts, pad
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.utilities.arguments import path_of, positive_integer

__all__ = ["Classifier", "Span", "TokenClassifier"]


class Classifier(Reranker):
    """A classifier of texts or pairs of texts. Create it by :meth:`from_folder`.

    Attributes
    ----------
    labels : tuple of str
        The names of the scores, in order: ``id2label`` of ``config.json``.

    Examples
    --------
    >>> classifier = Classifier.from_folder("distilbert-base-uncased-finetuned-sst-2-english")  # doctest: +SKIP
    >>> classifier.classify(["What a lovely day.", "It rains."])  # doctest: +SKIP
    [('POSITIVE', 0.9998), ('NEGATIVE', 0.9874)]
    """

    def __init__(self, folder: Path, modules: Modules, *args: Any) -> None:
        super().__init__(folder, modules, *args)
        path = modules.network / "config.json"
        self.labels = label_names(modules.config, self.model.labels, path)
        self._probabilities = activations.get(function_of_scores(modules.config, self.model.labels, path))

    def probabilities(self, inputs: Iterable[Text | Sequence[Text]], batch_size: int = 32) -> Array:
        """Return the probability of each label.

        ``problem_type`` of ``config.json`` decides how it is computed:

        * ``"multi_label_classification"``: the sigmoid of each score;
        * ``"regression"``: the outputs unchanged, which are not probabilities;
        * otherwise the softmax of all scores, or the sigmoid for a model with one label.

        Parameters
        ----------
        inputs : iterable of str or of pairs of str
            The inputs of :meth:`tokenize`.
        batch_size : int
            How many texts of similar length the network computes at once. Results do not depend on it.

        Returns
        -------
        ndarray of float32, shape (n, labels)
        """
        found = self.predict_tokens(self.tokenize(inputs), batch_size, activation=self._probabilities)
        return found.reshape(len(found), -1)

    def classify(self, inputs: Iterable[Text | Sequence[Text]], batch_size: int = 32) -> list[tuple[str, float]]:
        """Return the most probable label of each text or pair, and its probability, as a list of (str, float).

        The arguments are those of :meth:`probabilities`.
        """
        found = self.probabilities(inputs, batch_size)
        return [(self.labels[place], float(row[place])) for row, place in zip(found, found.argmax(axis=1), strict=True)]


class Span(NamedTuple):
    """A labelled part of a text.

    Attributes
    ----------
    label : str
    score : float
        The probability of the label; the mean over several tokens.
    start, end : int
        The part is ``text[start:end]``.
    """

    label: str
    score: float
    start: int
    end: int


class TokenClassifier(TextModel):
    """A classifier of tokens, such as for names or parts of speech. Create it by :meth:`from_folder`.

    Attributes
    ----------
    model : TokenNetwork
        The network and its head.
    labels : tuple of str
        The names of the scores, in order: ``id2label`` of ``config.json``.
    max_length : int
        The most tokens of a text, special tokens included. Longer texts are truncated.

    Examples
    --------
    >>> classifier = TokenClassifier.from_folder("bert-base-NER")  # doctest: +SKIP
    >>> classifier.entities(["Ada Lovelace was born in London."])  # doctest: +SKIP
    [[Span('PER', 0.998, 0, 12), Span('LOC', 0.999, 25, 31)]]
    """

    kind: type[TextNetwork] = TokenNetwork
    model: TokenNetwork

    def __init__(self, folder: Path, modules: Modules, policy: str | DTypePolicy | None) -> None:
        path = modules.network / "config.json"
        TokenNetwork.check(modules.config, path)
        super().__init__(folder, modules, policy)
        self.labels = label_names(modules.config, self.model.labels, path)

    @property
    def _outputs(self) -> str:
        return f"labels={len(self.labels)}"

    @classmethod
    def from_folder(cls, path: str | PathLike[str], policy: str | DTypePolicy | None = None) -> "TokenClassifier":
        """Load a model.

        Parameters
        ----------
        path : path
            Folder of a token classification model as transformers saves it: ``config.json``, ``model.safetensors`` or
            ``pytorch_model.bin``, ``tokenizer.json`` and, if it exists, ``tokenizer_config.json``.
        policy : str or DTypePolicy, optional
            As in :meth:`mp_core.models.TextEncoder.from_folder`. The paths of the head's layers are ``head/dense``,
            ``head/norm`` and ``head/output``.
        """
        folder = path_of(path, "path")
        return cls(folder, read_cross(folder)[0], policy)

    def __call__(self, texts: Text | Iterable[Text]) -> list[list[Span]]:
        """Return :meth:`predict` of `texts`."""
        return self.predict(texts)

    def predict(self, texts: Text | Iterable[Text], batch_size: int = 32) -> list[list[Span]]:
        """Return the most probable label of each token, without special tokens.

        Parameters
        ----------
        texts : str or iterable of str
        batch_size : int
            How many texts of similar length the network computes at once. Results do not depend on it.

        Returns
        -------
        list of list of Span
            One list for each text, in the order of `texts`.
        """
        given, size = list_of_texts(texts, "texts"), positive_integer(batch_size, "batch_size")
        rows, places = self._tokenizer.located(given)
        for position, row in enumerate(rows):
            if not len(row):
                raise ValueError(f"`texts[{position}]` must have a token; the model's tokenizer gives it none")

        def spans(tokens: Tokens, positions: Array) -> Iterator[list[Span]]:
            ids, mask = pad(tokens.rows)
            scores = ops.cast(self.model(ids, mask=mask), F32)
            self._check([own[kept] for own, kept in zip(scores, mask, strict=True)], tokens.rows, positions)
            for index, own in zip(positions, ops.softmax(scores), strict=True):
                best = own.argmax(axis=1)
                yield [
                    Span(self.labels[best[token]], float(own[token, best[token]]), start, end)
                    for token, (start, end) in places[index]
                ]

        return self.each(spans, Tokens(rows), size)

    def entities(self, texts: Text | Iterable[Text], batch_size: int = 32) -> list[list[Span]]:
        """Return entities: neighbouring tokens of the same label, joined. Tokens with the label ``O`` are left out.

        Arguments and result are those of :meth:`predict`. This is the aggregation ``"simple"`` of the transformers
        pipeline. A label ``B-X`` always begins an entity X. ``I-X``, or ``X`` without a prefix, continues the entity X
        before it, or begins one.
        """
        return [_joined(spans) for spans in self.predict(texts, batch_size)]


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Join neighbouring spans of the same label, and drop the label ``O``."""
    groups: list[list[Span]] = []
    for span in spans:
        begins, name = span.label.startswith("B-"), span.label.removeprefix("B-").removeprefix("I-")
        own = span._replace(label=name)
        if groups and groups[-1][-1].label == name and not begins:
            groups[-1].append(own)
        else:
            groups.append([own])
    return [
        Span(group[0].label, float(np.mean([span.score for span in group])), group[0].start, group[-1].end)
        for group in groups
        if group[0].label != "O"
    ]
