"""Cross-encoders (pairs of texts in, scores out), from folders of sentence-transformers or transformers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.layers import activations
from mp_core.models.heads import Classifier, Head
from mp_core.models.modules import Modules, read_cross
from mp_core.models.sentence_transformers import also_named
from mp_core.models.settings import choices, unexpected
from mp_core.models.templates import Template, template_of
from mp_core.models.texts import Text, TextModel, Tokens, in_order, is_one, list_of_texts, one_text, pad
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.utilities.arguments import path_of, positive_integer

__all__ = ["Reranker", "ranked"]

_ACTIVATIONS = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "linear",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
}
"""Class of an activation in sentence-transformers -> its name in mp_core."""


class Reranker(TextModel):
    """A cross-encoder: pairs of texts in, scores out. Create it by :meth:`from_folder`.

    Attributes
    ----------
    model : Classifier
        The network and its head.
    activation : str
        The name of the default activation of :meth:`predict`.
    max_length : int
        The most tokens of a pair, special tokens included.
    template : Template or None
        The prompt for a decoder; None if the tokenizer joins pairs.
    tensor_names, kernel_names : dict of str to str
        As in :class:`TextEncoder`.

    Examples
    --------
    >>> reranker = Reranker.from_folder("ms-marco-MiniLM-L6-v2", policy="mixed_bfloat16")  # doctest: +SKIP
    >>> reranker.predict([("Who eats?", "A man is eating."), ("Who eats?", "It rains.")])  # doctest: +SKIP
    array([0.97, 0.01], dtype=float32)
    """

    kind = Classifier
    model: Classifier

    def __init__(
        self,
        folder: Path,
        modules: Modules,
        activation: Any,
        policy: str | DTypePolicy | None,
        template: str | Template | None = None,
    ) -> None:
        Classifier.check(modules.config, modules.network / "config.json")
        self.template = None
        if template is not None or Head.of(modules.config, modules.network / "config.json").uses_token_logit:
            self.template = template_of(template, modules.config["model_type"])
        if template is None and self.template is not None and "true_token_id" in modules.config:
            self.template.check_words(modules.network / "chat_template.jinja")
        super().__init__(folder, modules, policy)
        given, known = self._tokenizer.types, min(modules.settings.type_vocab_size, 2)
        if known and given > known:  # no network was trained on a third type, even if its table has more than two rows
            path = modules.network / "tokenizer.json"
            expected = f"at most {known}; type_vocab_size is {modules.settings.type_vocab_size}"
            raise unexpected(path, "the number of types of tokens in a pair", given, expected)
        if activation is None:
            self.activation = "sigmoid" if self.model.labels == 1 else "linear"
        elif not isinstance(activation, str) or activation not in _ACTIVATIONS:
            raise unexpected(folder, "the activation of the scores", activation, choices(_ACTIVATIONS))
        else:
            self.activation = _ACTIVATIONS[activation]

    def _read_weights(self, policy: DTypePolicy | None) -> None:
        config, template = self._modules.config, self.template
        if template is not None and "true_token_id" not in config:
            words = {"true_token_id": template.true, "false_token_id": template.false}
            found = {name: None if word is None else self._word(word) for name, word in words.items()}
            self._modules = replace(self._modules, config=config | found)
        super()._read_weights(policy)

    def _word(self, word: str) -> int:
        """Return the token of an answer, which must be a single token."""
        rows, _ = self._tokenizer([word], special=False)
        if len(rows[0]) != 1:
            path = self._modules.network / "tokenizer.json"
            raise unexpected(path, f"the number of tokens of the answer {word!r}", len(rows[0]), "1")
        return int(rows[0][0])

    @property
    def _outputs(self) -> str:
        return f"labels={self.model.labels}"

    @classmethod
    def from_folder(
        cls,
        path: str | PathLike[str],
        policy: str | DTypePolicy | None = None,
        template: str | Template | None = None,
    ) -> "Reranker":
        """Load a model.

        Parameters
        ----------
        path : path
            Folder of a sequence classification model of transformers, or of a cross-encoder of sentence-transformers:
            ``config.json``, ``model.safetensors``, ``tokenizer.json`` and, if they exist, ``modules.json``,
            ``config_sentence_transformers.json``, ``sentence_bert_config.json`` and ``tokenizer_config.json``.
        policy : str or DTypePolicy, optional
            As in :meth:`mp_core.models.TextEncoder.from_folder`. The paths of the head's layers are ``head/dense``,
            ``head/norm`` and ``head/output``.
        template : str or Template, optional
            The prompt for a decoder: ``"qwen3"`` (Qwen3-Reranker), ``"mxbai"`` (mxbai-rerank v2), ``"gemma"``
            (bge-reranker-v2-gemma) or a :class:`~mp_core.models.Template`. The score is the logit of its true answer,
            minus that of the false one. Default for a causal language model: the template for its ``model_type``. A
            chat template in the folder is a program, which is not run; it must contain the words of the default. A
            template also applies to a decoder with a classification head.
        """
        folder = path_of(path, "path")
        return cls(folder, *read_cross(folder), policy, template)

    def __call__(self, inputs: Iterable[Text | Sequence[Text]]) -> Array:
        """Return the scores of pairs, as :meth:`predict` does, or of single texts for a classifier of texts."""
        return self.predict_tokens(self.tokenize(inputs))

    @also_named("pairs")
    def predict(
        self,
        pairs: Iterable[Sequence[str]],
        batch_size: int = 32,
        show_progress: bool = False,
        *,
        activation: str | Callable[[Array], Array] | None = None,
    ) -> Array:
        """Score pairs of texts.

        Parameters
        ----------
        pairs : iterable of pairs of str
            If a pair has more than `max_length` tokens, its longer text is truncated at the end, or both texts once
            they are equally long.
        batch_size : int
            How many pairs of similar length the network computes at once. Results do not depend on it.
        show_progress : bool
            Whether to show a bar on stderr (needs tqdm).
        activation : str or callable, optional
            The activation of the scores, such as ``"sigmoid"``, ``"softmax"`` or ``"linear"``. Default: that of the
            folder, or else ``"sigmoid"`` for a model with one label, ``"linear"`` for several.

        Returns
        -------
        ndarray of float32, shape (n,), or (n, labels) for a model of several labels
            In the order of `pairs`.
        """
        how = self._checked_arguments(batch_size, activation)
        tokens = self._pairs(_list_of_pairs(pairs))
        return self._predictions(tokens, *how, show_progress)

    def tokenize(self, inputs: Iterable[Text | Sequence[Text]], *, from_start: bool | None = None) -> Tokens:
        """Return the tokens of pairs of texts, or of single texts for a classifier of texts.

        Parameters
        ----------
        inputs : iterable of str or of pairs of str
            Inputs of more than `max_length` tokens are truncated: pairs as in :meth:`predict`, texts at the end.
        from_start : bool, optional
            Whether inputs are truncated at the start instead, pairs at the starts of both texts. Default: the
            tokenizer's setting.

        Returns
        -------
        Tokens
            The argument of :meth:`predict_tokens`. Its attribute `cut` lists the truncated inputs.

        Raises
        ------
        ValueError
            An input has no token, or a character that UTF-8 cannot encode; or `from_start` is true with a template.
        """
        given = list(in_order(inputs, "inputs", "an iterable of str or of pairs of str"))
        single = [position for position, each in enumerate(given) if is_one(each)]
        paired = [position for position, each in enumerate(given) if not is_one(each)]
        parts = []
        if single or not paired:
            texts = [one_text(given[position], f"inputs[{position}]") for position in single]
            parts.append(self._singles(texts, from_start))
        if paired:
            parts.append(self._pairs(_list_of_pairs([given[position] for position in paired]), from_start))
        return Tokens.joined(parts).select(np.argsort([*single, *paired]).tolist())

    def predict_tokens(
        self, tokens: Tokens, batch_size: int = 32, *, activation: str | Callable[[Array], Array] | None = None
    ) -> Array:
        """Score tokenized pairs or texts: :meth:`predict` after :meth:`tokenize`, with the same bits.

        `batch_size` and `activation` are those of :meth:`predict`.
        """
        return self._predictions(tokens, *self._checked_arguments(batch_size, activation), False)

    def _checked_arguments(
        self, batch_size: int, activation: str | Callable[[Array], Array] | None
    ) -> tuple[int, Callable[[Array], Array]]:
        size = positive_integer(batch_size, "batch_size")
        return size, activations.get(self.activation if activation is None else activation)

    def _pairs(self, pairs: list[tuple[str, str]], from_start: bool | None = None) -> Tokens:
        if self.template is not None:
            if from_start:
                raise ValueError("`from_start` must be false for a model with a template")
            return Tokens(*self.template.tokens(self._tokenizer, pairs))
        rows, types, cut = self._tokenizer.pairs(pairs, from_start=from_start)
        return self._typed(rows, types, cut, "pairs")

    def _singles(self, texts: list[str], from_start: bool | None = None) -> Tokens:
        if texts and self.template is not None:
            raise ValueError("`inputs` must be pairs of texts for a model with a template; received a text")
        rows, cut = self._tokenizer(texts, from_start=from_start)
        return self._typed(rows, [np.zeros(len(row), int) for row in rows], cut, "inputs")

    def _typed(self, rows: list[Array], types: list[Array], cut: list[int], argument: str) -> Tokens:
        for position, row in enumerate(rows):
            if not len(row):
                raise ValueError(f"`{argument}[{position}]` must have a token; the model's tokenizer gives it none")
            if len(row) > self.model.settings.max_length:
                most = f"at most {self.model.settings.max_length} tokens; the model's tokenizer gives it {len(row)}"
                raise ValueError(f"`{argument}[{position}]` must have {most}")
        return Tokens(rows, cut, types if self.model.types > 1 else None)

    def read_tokens(self, tokens: Tokens) -> Tokens:
        """Drop the tokens after the one from which the score is computed, if they cannot change it (causal models)."""
        return tokens.cut_to(self.model.lengths(tokens.rows)) if self.model.is_causal else tokens

    def _predictions(self, tokens: Tokens, batch_size: int, apply: Callable[[Array], Array], show: bool) -> Array:
        tokens = self.read_tokens(tokens)
        scores = np.empty((len(tokens), self.model.labels), F32)
        for batch, pairs in self.in_batches(tokens, batch_size, show):
            scores[batch] = found = self._scores(pairs.rows, pairs.types)
            self._check(found, pairs.rows, batch, pairs.types)
        scores = np.asarray(apply(scores))
        return scores[:, 0] if self.model.labels == 1 else scores

    def _scores(self, rows: list[Array], types: list[Array] | None) -> Array:
        """Return the scores of a batch, by a plan if possible."""
        texts = self._plans.scores(self.model, self.model.pooling, self.model.labels)
        if texts is None or self.model.lengths(rows) != [len(row) for row in rows]:
            ids, mask = pad(rows)
            return ops.cast(self.model(ids, mask=mask, types=None if types is None else pad(types)[0]), F32)
        kinds = None if types is None else np.concatenate(types)
        return texts(np.concatenate(rows), [len(row) for row in rows], kinds)

    def fit(
        self,
        data: Any,
        epochs: int = 1,
        batch_size: int = 32,
        *,
        loss: str = "cross_entropy",
        learning_rate: float = 2e-5,
        warmup: float = 0.1,
        weight_decay: float = 0.01,
        max_norm: float | None = 1.0,
        optimizer: Any = None,
        dropout: float | None = None,
        chunk: int | None = None,
        cluster: Any = None,
        shuffle: bool = True,
        seed: int | None = None,
        validation_data: Any = None,
        callbacks: Any = None,
        verbose: Any = "auto",
    ) -> Any:
        """Train the network and its head, like ``CrossEncoder`` of sentence-transformers, and return the History.

        If tokens have several types, the tables of positions and types are not trained.

        Parameters
        ----------
        data : iterable of rows, mapping of columns, or path of a .jsonl, .csv or .tsv file
            A row is two texts and a label; for a classifier of single texts, one text and a label.
        loss : str
            ``"cross_entropy"``: labels are numbers from 0 to 1 for a model with one score, and class numbers for one
            with several scores; with the ``problem_type`` ``"multi_label_classification"``, lists with a number from 0
            to 1 for each score. ``"mse"``, the mean squared error to a teacher's scores: a label is the score before
            the activation, or a list of such scores.
        epochs, batch_size, learning_rate, warmup, weight_decay, max_norm, optimizer, dropout
            Those of :meth:`mp_core.models.TextEncoder.fit`.
        chunk, cluster, shuffle, seed, validation_data, callbacks, verbose
            As there.

        Examples
        --------
        >>> reranker = Reranker.from_folder("ms-marco-MiniLM-L6-v2")  # doctest: +SKIP
        >>> pairs = [("Who eats?", "A man is eating.", 1.0), ("Who eats?", "It rains.", 0.0)]
        >>> reranker.fit(pairs, epochs=2).history["loss"]  # doctest: +SKIP
        [0.31, 0.12]
        """
        from mp_core.models.tuning.fitting import Recipe  # imported here: inference does not need training
        from mp_core.models.tuning.scoring import fit_reranker  # likewise

        recipe = Recipe(
            epochs, batch_size, learning_rate, warmup, weight_decay, max_norm, optimizer, dropout, shuffle, seed,
            callbacks, verbose,
        )  # fmt: skip
        return fit_reranker(self, data, loss, recipe, chunk=chunk, validation_data=validation_data, cluster=cluster)

    def rank(self, query: Text, documents: Iterable[Text], top_k: int | None = None) -> list[tuple[int, float]]:
        """Return the indices of documents and their scores for a query, best first.

        Parameters
        ----------
        query : str
        documents : iterable of str
            As the texts of :meth:`mp_core.models.TextEncoder.encode`.
        top_k : int, optional
            How many documents to return. Default: all.

        Returns
        -------
        list of tuple of (int, float)
            (index in `documents`, score). Documents are sorted by the score before the activation, since the activation
            may round several scores to 1. Documents with equal scores keep their order.

        Raises
        ------
        ValueError
            The model has several labels.
        """
        if self.model.labels != 1:
            raise ValueError(f"`rank` needs a model of one label; this one has {self.model.labels}")
        count = None if top_k is None else positive_integer(top_k, "top_k")
        query = one_text(query, "query")
        pairs = [(query, document) for document in list_of_texts(documents, "documents")]
        return ranked(self.predict(pairs, activation="linear"), activations.get(self.activation))[:count]


def ranked(scores: Array, activation: Callable[[Array], Array]) -> list[tuple[int, float]]:
    """Return (index, activated score) of each score, highest first; equal scores keep their order.

    They are ranked before the monotonic activation, after which different scores may be equal.
    """
    shown = activation(scores)
    return [(int(index), float(shown[index])) for index in np.argsort(-scores, kind="stable")]


def _list_of_pairs(pairs: Any) -> list[tuple[str, str]]:
    """Return pairs as a list; raise TypeError or ValueError unless each is a pair of encodable str."""
    found = []
    for position, pair in enumerate(in_order(pairs, "pairs", "an iterable of pairs of str")):
        if isinstance(pair, str) or not isinstance(pair, Sequence | np.ndarray):
            raise TypeError(f"`pairs[{position}]` must be a pair of str; received {type(pair).__name__}")
        if len(pair) != 2:
            raise ValueError(f"`pairs[{position}]` must have two texts; received {len(pair)}")
        first, second = list_of_texts(pair, f"pairs[{position}]")
        found.append((first, second))
    return found
