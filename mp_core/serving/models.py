"""The models of a server: adapters with a common interface for tokenization and computation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.layers import activations
from mp_core.models import (
    Generator,
    M3Encoder,
    MultiVectorEncoder,
    Reranker,
    SparseEncoder,
    SparseVectors,
    TextEncoder,
)
from mp_core.models.heads import function_of_scores
from mp_core.models.multi import TASKS
from mp_core.models.opening import class_of
from mp_core.models.pieces import Piece
from mp_core.models.prompted import PromptedModel
from mp_core.models.texts import TextModel, Tokens
from mp_core.policies.dtype_policies import DTypePolicy

__all__ = ["KINDS", "Computing", "Decoder", "Encoder", "Scorer", "Served", "open_models"]

KINDS = ("encoder", "sparse", "multi-vector", "reranker", "classifier", "generator")
"""The kinds of models. A reranker has one score, a classifier several; a generator continues texts."""


class Served(ABC):
    """A model under the name that clients use; `created` is the modification time of its folder in Unix time.

    Attributes
    ----------
    kind : str
        The main kind, one of `KINDS`.
    tasks : collection of str
        The names of prompts that are also tasks: they decide how texts are computed.
    policy : str
        The name of the model's policy.
    max_length : int
        The most tokens of a text or a pair.
    prompts : collection of str
        The names of its prompts.
    """

    kind: str

    def __init__(self, name: str, model: TextModel, created: int = 0) -> None:
        self.name, self.created, self._texts = name, created, model
        self.policy: str = model.model.dtype_policy.name
        self.max_length = model.max_length
        self.prompts: Sequence[str] = ()
        self.tasks: Sequence[str] = ()
        self._maps = model.maps

    @property
    def is_whole(self) -> bool:
        """Whether the mapped files of the weights are still intact."""
        return self._maps.are_whole

    @property
    def kinds(self) -> tuple[str, ...]:
        """All kinds that the model supports: one, or the first three for BGE-M3."""
        return (self.kind,)

    def pieces(self, texts: Sequence[str], prompt_name: str | None, special: bool, most: int) -> list[list[Piece]]:
        """Return all tokens of texts with the prompt before each, with or without special tokens.

        More than `most` tokens raise TooManyTokensError.
        """
        prompted = {} if prompt_name is None else {"prompt_name": prompt_name}
        return self._texts.pieces(texts, special=special, most=most, **prompted)

    def decode(self, rows: Sequence[Sequence[int]], skip_special: bool) -> list[str]:
        """Return the texts for rows of tokens; raise ValueError for an unknown token."""
        return self._texts.decode(rows, skip_special=skip_special)

    @abstractmethod
    def as_tei(self) -> dict[str, Any]:
        """Return the type of the model in the form of text-embeddings-inference."""

    def describe(self) -> dict[str, Any]:
        """Return the description of the model for clients."""
        return {"kind": self.kind, "policy": self.policy, "max_length": self.max_length}


class Computing(Served):
    """A model that computes a row of numbers for each text or pair of texts."""

    @abstractmethod
    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None, from_start: bool | None = None) -> Tokens:
        """Return the tokens of texts or pairs of texts; raise ValueError if a text has none.

        Texts that are too long are truncated at the end, or with `from_start` at the start. Default: the tokenizer's
        setting.
        """

    @abstractmethod
    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        """Return a row of numbers or a score for each text, with the same bits as if computed alone.

        Rows of different lengths are an array of objects.
        """

    def numbers(self, tokens: Tokens, options: Mapping[str, Any]) -> int:
        """Estimate how many numbers :meth:`compute` returns; by default one for each text."""
        return len(tokens)


class _Prompted(Computing):
    """An encoder of any kind, with prompts."""

    dim: int  # the length of an embedding or a token vector
    _model: PromptedModel

    def __init__(self, name: str, model: PromptedModel, created: int = 0) -> None:
        super().__init__(name, model, created)
        self._model, self.dim, self.prompts, self.tasks = model, model.dim, list(model.prompts), model.tasks

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"dimensions": self.dim, "prompts": self.prompts}


class Encoder(_Prompted):
    """A dense encoder."""

    kind = "encoder"

    _model: TextEncoder

    def __init__(self, name: str, model: TextEncoder, created: int = 0) -> None:
        super().__init__(name, model, created)
        self._routes = model.with_each_task()

    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None, from_start: bool | None = None) -> Tokens:
        return self._of_task(prompt_name).tokenize(inputs, prompt_name=prompt_name, from_start=from_start)

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        given = {name: value for name, value in options.items() if name != "task"}
        return self._of_task(options.get("task")).encode_tokens(tokens, **given)

    def numbers(self, tokens: Tokens, options: Mapping[str, Any]) -> int:
        return len(tokens) * (options.get("truncate_dim") or self.dim)

    def _of_task(self, task: str | None) -> TextEncoder:
        return self._model if task is None else self._routes.get(task, self._model)

    def as_tei(self) -> dict[str, Any]:
        return {"embedding": {"pooling": "+".join(self._model.poolings)}}


class Sparse(_Prompted):
    """A sparse encoder."""

    kind = "sparse"

    _model: SparseEncoder

    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None, from_start: bool | None = None) -> Tokens:
        task = prompt_name if prompt_name in self.tasks else None
        return self._model.tokenize(inputs, prompt_name=prompt_name, task=task, from_start=from_start)

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        return _objects(self._model.encode_sparse_tokens(tokens, task=options.get("task")))

    def numbers(self, tokens: Tokens, options: Mapping[str, Any]) -> int:
        """Estimate two numbers for each token; how many tokens the network adds depends on the text."""
        return 2 * sum(map(len, tokens.rows))

    def as_tei(self) -> dict[str, Any]:
        return {"embedding": {"pooling": "splade"}}


class Multi(_Prompted):
    """A multi-vector encoder."""

    kind = "multi-vector"

    _model: MultiVectorEncoder

    def __init__(self, name: str, model: MultiVectorEncoder, created: int = 0) -> None:
        super().__init__(name, model, created)
        self.tasks = TASKS

    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None, from_start: bool | None = None) -> Tokens:
        task = prompt_name if prompt_name in self.tasks else "document"
        return self._model.tokenize(inputs, prompt_name=prompt_name, task=str(task), from_start=from_start)

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        return _objects(self._model.encode_multi_tokens(tokens, task=options.get("task", "document")))

    def numbers(self, tokens: Tokens, options: Mapping[str, Any]) -> int:
        return sum(map(len, tokens.rows)) * self.dim

    def as_tei(self) -> dict[str, Any]:
        return {"embedding": {"pooling": "none"}}


class AllVectors(Encoder):
    """An encoder like BGE-M3, with dense, sparse and token vectors."""

    _model: M3Encoder

    @property
    def kinds(self) -> tuple[str, ...]:
        return self.kind, Sparse.kind, Multi.kind

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        kind = options.get("kind")
        if kind is None:
            return super().compute(tokens, options)
        encode = self._model.encode_sparse_tokens if kind == Sparse.kind else self._model.encode_multi_tokens
        return _objects(encode(tokens))

    def numbers(self, tokens: Tokens, options: Mapping[str, Any]) -> int:
        kind = options.get("kind")
        if kind is None:
            return super().numbers(tokens, options)
        return sum(map(len, tokens.rows)) * (2 if kind == Sparse.kind else self.dim)


def _objects(items: SparseVectors | list[Array]) -> Array:
    """Return an array of objects with one item for each text."""
    rows = np.empty(len(items), object)
    for place in range(len(items)):
        rows[place] = items[place]
    return rows


class Scorer(Computing):
    """A reranker or a classifier; `labels` are the names of the scores in ``config.json``.

    `default` is the activation of the folder; `probabilities` is the one from scores to probabilities, the identity for
    a regression.
    """

    def __init__(self, name: str, model: Reranker, created: int = 0) -> None:
        super().__init__(name, model, created)
        self._model, self.kind = model, "reranker" if model.model.labels == 1 else "classifier"
        names: Mapping[str, str] = model.model.config.get("id2label") or {}
        self.labels = [str(names.get(str(index), f"LABEL_{index}")) for index in range(model.model.labels)]
        self.default = activations.get(model.activation)
        activation = function_of_scores(model.model.config, model.model.labels, f"the config.json of {name}")
        self.probabilities = activations.get(activation)

    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None, from_start: bool | None = None) -> Tokens:
        return self._model.tokenize(inputs, from_start=from_start)

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        return self._model.predict_tokens(tokens, **options)

    def numbers(self, tokens: Tokens, options: Mapping[str, Any]) -> int:
        return len(tokens) * len(self.labels)

    def as_tei(self) -> dict[str, Any]:
        names = {str(index): label for index, label in enumerate(self.labels)}
        return {self.kind: {"id2label": names, "label2id": {label: int(index) for index, label in names.items()}}}

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"labels": self.labels}


class Decoder(Served):
    """A decoder that continues texts."""

    kind = "generator"

    def __init__(self, name: str, model: Generator, created: int = 0) -> None:
        super().__init__(name, model, created)
        self.generator = model

    def words(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token alone; "" for those that the tokenizer lacks."""
        return self.generator.words(tokens)

    def as_tei(self) -> dict[str, Any]:
        return {"generator": {}}

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"cache_tokens": self.generator.cache_tokens}


def open_models(
    folders: Mapping[str, str | Path],
    policy: str | DTypePolicy | None = None,
    adapters: Mapping[str, str | Path] = MappingProxyType({}),
    generators: Mapping[str, str | Path] = MappingProxyType({}),
    cache_tokens: int | None = None,
) -> list[Served]:
    """Open folders of models, by name, and run each model once, which packs its weights.

    A folder has an encoder of any kind, a cross-encoder or a classifier. The default policy is the one under which each
    is stored. `adapters` maps names to folders: each is served as another model, which shares the weights of the first
    model. `generators` are folders of decoders that generate, each with a cache of so many tokens.
    """
    models: dict[str, tuple[TextModel, Path]] = {}
    for name, folder in folders.items():
        models[name] = class_of(Path(folder)).from_folder(folder, policy), Path(folder)
    for name, folder in adapters.items():
        models[name] = next(iter(models.values()))[0].with_adapter(folder), Path(folder)
    for name, folder in generators.items():
        models[name] = Generator.from_folder(folder, policy, cache_tokens=cache_tokens), Path(folder)
    return [_served(name, model, int(path.stat().st_mtime)) for name, (model, path) in models.items()]


def _served(name: str, model: TextModel, created: int) -> Served:
    """Wrap a model, and run it once."""
    served: Served = next(kind for known, kind in _SERVED.items() if isinstance(model, known))(name, model, created)
    with suppress(ValueError):  # the tokenizer has no token for "a": then the first request packs the weights
        if isinstance(served, Computing):
            served.compute(served.tokenize(["a"] if served.kind != "reranker" else [("a", "a")]), {})
        elif isinstance(model, Generator):
            model.generate("a", 1)
    return served


_SERVED: dict[type[TextModel], Callable[[str, Any, int], Served]] = {
    M3Encoder: AllVectors,
    TextEncoder: Encoder,
    SparseEncoder: Sparse,
    MultiVectorEncoder: Multi,
    Reranker: Scorer,
    Generator: Decoder,
}
"""Class of a model -> its wrapper; subclasses are listed before their bases."""
