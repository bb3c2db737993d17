"""The models of a server, by name: what kind each is, how its texts are read, and how they are computed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.layers import activations
from mp_core.models import M3Encoder, MultiVectorEncoder, Reranker, SparseEncoder, SparseVectors, TextEncoder
from mp_core.models.heads import function_of_scores
from mp_core.models.multi import TASKS
from mp_core.models.opening import class_of
from mp_core.models.pieces import Piece
from mp_core.models.prompted import PromptedModel
from mp_core.models.texts import TextModel, Tokens
from mp_core.policies.dtype_policies import DTypePolicy

__all__ = ["KINDS", "Encoder", "Scorer", "Served", "open_models"]

KINDS = ("encoder", "sparse", "multi-vector", "reranker", "classifier")
"""What a model can be; the last two give one score and several."""


class Served(ABC):
    """A model with its name.

    Parameters
    ----------
    name : str
        By which clients ask for it.
    model : TextModel
    created : int
        When its folder was written, in seconds of Unix time.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    kinds : tuple of str
        All that it can do: one kind, or of BGE-M3 the first three.
    tasks : collection of str
        The names of prompts that also decide how texts are computed.
    policy : str
        The name of the policy under which it computes.
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
        """Whether the files of its weights can still be read."""
        return self._maps.are_whole

    @property
    def kinds(self) -> tuple[str, ...]:
        """All that it can do."""
        return (self.kind,)

    @abstractmethod
    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None, from_start: bool | None = None) -> Tokens:
        """Return the tokens of texts, or of pairs of texts; raise ValueError if a text has none.

        Texts that are too long lose their ends, or with `from_start` their starts; by default what the folder says.
        """

    def pieces(self, texts: Sequence[str], prompt_name: str | None, special: bool, most: int) -> list[list[Piece]]:
        """Return all tokens of texts, each behind the prompt, with special tokens around them or without.

        Raises
        ------
        TooManyTokensError
            There are more than `most`.
        """
        prompted = {} if prompt_name is None else {"prompt_name": prompt_name}
        return self._texts.pieces(texts, special=special, most=most, **prompted)

    def decode(self, rows: Sequence[Sequence[int]], skip_special: bool) -> list[str]:
        """Return the texts of rows of tokens; raise ValueError for a token that there is not."""
        return self._texts.decode(rows, skip_special=skip_special)

    @abstractmethod
    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        """Return a row of numbers for each text, or its score: the bits that the text has alone.

        Rows of different lengths are objects.
        """

    def numbers(self, tokens: Tokens, options: Mapping[str, Any]) -> int:
        """Return about how many numbers :meth:`compute` gives for texts: by default one for each."""
        return len(tokens)

    @abstractmethod
    def as_tei(self) -> dict[str, Any]:
        """Return the type of the model as text-embeddings-inference tells it."""

    def describe(self) -> dict[str, Any]:
        """Return what a client may want to know of it."""
        return {"kind": self.kind, "policy": self.policy, "max_length": self.max_length}


class _Prompted(Served):
    """An encoder of any kind.

    Attributes
    ----------
    dim : int
        The length of an embedding, or of the vectors of tokens.
    """

    dim: int
    _model: PromptedModel

    def __init__(self, name: str, model: PromptedModel, created: int = 0) -> None:
        super().__init__(name, model, created)
        self._model, self.dim, self.prompts, self.tasks = model, model.dim, list(model.prompts), model.tasks

    def describe(self) -> dict[str, Any]:
        """Return what a client may want to know of it."""
        return super().describe() | {"dimensions": self.dim, "prompts": self.prompts}


class Encoder(_Prompted):
    """An encoder of texts."""

    kind = "encoder"

    _model: TextEncoder

    def __init__(self, name: str, model: TextEncoder, created: int = 0) -> None:
        super().__init__(name, model, created)
        self._routes = model.with_each_task()

    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None, from_start: bool | None = None) -> Tokens:
        """Return the tokens of texts, each behind the prompt."""
        return self._of_task(prompt_name).tokenize(inputs, prompt_name=prompt_name, from_start=from_start)

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        """Return an embedding for each text."""
        given = {name: value for name, value in options.items() if name != "task"}
        return self._of_task(options.get("task")).encode_tokens(tokens, **given)

    def numbers(self, tokens: Tokens, options: Mapping[str, Any]) -> int:
        """Return the length of all embeddings."""
        return len(tokens) * (options.get("truncate_dim") or self.dim)

    def _of_task(self, task: str | None) -> TextEncoder:
        return self._model if task is None else self._routes.get(task, self._model)

    def as_tei(self) -> dict[str, Any]:
        """Return the pooling."""
        return {"embedding": {"pooling": "+".join(self._model.poolings)}}


class Sparse(_Prompted):
    """An encoder of texts as weights of tokens."""

    kind = "sparse"

    _model: SparseEncoder

    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None, from_start: bool | None = None) -> Tokens:
        """Return the tokens of texts, each behind the prompt."""
        task = prompt_name if prompt_name in self.tasks else None
        return self._model.tokenize(inputs, prompt_name=prompt_name, task=task, from_start=from_start)

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        """Return the indices and the values of each text."""
        return _objects(self._model.encode_sparse_tokens(tokens, task=options.get("task")))

    def numbers(self, tokens: Tokens, options: Mapping[str, Any]) -> int:
        """Return an index and a value for each token; how many words a network adds depends on the text."""
        return 2 * sum(map(len, tokens.rows))

    def as_tei(self) -> dict[str, Any]:
        """Return the pooling."""
        return {"embedding": {"pooling": "splade"}}


class Multi(_Prompted):
    """An encoder that gives each token of a text a vector."""

    kind = "multi-vector"

    _model: MultiVectorEncoder

    def __init__(self, name: str, model: MultiVectorEncoder, created: int = 0) -> None:
        super().__init__(name, model, created)
        self.tasks = TASKS

    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None, from_start: bool | None = None) -> Tokens:
        """Return the tokens of texts, each behind the prompt."""
        task = prompt_name if prompt_name in self.tasks else "document"
        return self._model.tokenize(inputs, prompt_name=prompt_name, task=str(task), from_start=from_start)

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        """Return the vectors of each text."""
        return _objects(self._model.encode_multi_tokens(tokens, task=options.get("task", "document")))

    def numbers(self, tokens: Tokens, options: Mapping[str, Any]) -> int:
        """Return the length of the vectors of all tokens."""
        return sum(map(len, tokens.rows)) * self.dim

    def as_tei(self) -> dict[str, Any]:
        """Return that nothing is pooled."""
        return {"embedding": {"pooling": "none"}}


class Three(Encoder):
    """An encoder like BGE-M3, which gives a text a vector, weights of its tokens or a vector for each token."""

    _model: M3Encoder

    @property
    def kinds(self) -> tuple[str, ...]:
        """All that it can do."""
        return self.kind, Sparse.kind, Multi.kind

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        """Return the vectors of the kind that the option ``kind`` says, by default an embedding for each text."""
        kind = options.get("kind")
        if kind is None:
            return super().compute(tokens, options)
        encode = self._model.encode_sparse_tokens if kind == Sparse.kind else self._model.encode_multi_tokens
        return _objects(encode(tokens))

    def numbers(self, tokens: Tokens, options: Mapping[str, Any]) -> int:
        """Return how many numbers those of its kind have."""
        kind = options.get("kind")
        if kind is None:
            return super().numbers(tokens, options)
        return sum(map(len, tokens.rows)) * (2 if kind == Sparse.kind else self.dim)


def _objects(items: SparseVectors | list[Array]) -> Array:
    """Return an array of objects, one for each text, whatever they are."""
    rows = np.empty(len(items), object)
    for place in range(len(items)):
        rows[place] = items[place]
    return rows


class Scorer(Served):
    """A reranker or a classifier.

    Attributes
    ----------
    labels : list of str
        The names of the scores, as ``config.json`` has them.
    default : callable
        The activation that the folder says.
    probabilities : callable
        What makes probabilities of scores, or numbers of those of a regression.
    """

    def __init__(self, name: str, model: Reranker, created: int = 0) -> None:
        super().__init__(name, model, created)
        self._model, self.kind = model, "reranker" if model.model.labels == 1 else "classifier"
        names: Mapping[str, str] = model.model.config.get("id2label") or {}
        self.labels = [str(names.get(str(index), f"LABEL_{index}")) for index in range(model.model.labels)]
        self.default = activations.get(model.activation)
        meant = function_of_scores(model.model.config, model.model.labels, f"the config.json of {name}")
        self.probabilities = activations.get(meant)

    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None, from_start: bool | None = None) -> Tokens:
        """Return the tokens of texts and pairs; there are no prompts."""
        return self._model.tokenize(inputs, from_start=from_start)

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        """Return a score, or a row of scores, for each."""
        return self._model.predict_tokens(tokens, **options)

    def numbers(self, tokens: Tokens, options: Mapping[str, Any]) -> int:
        """Return the count of all scores."""
        return len(tokens) * len(self.labels)

    def as_tei(self) -> dict[str, Any]:
        """Return the names of the scores."""
        names = {str(index): label for index, label in enumerate(self.labels)}
        return {self.kind: {"id2label": names, "label2id": {label: int(index) for index, label in names.items()}}}

    def describe(self) -> dict[str, Any]:
        """Return what a client may want to know of it."""
        return super().describe() | {"labels": self.labels}


def open_models(
    folders: Mapping[str, str | Path],
    policy: str | DTypePolicy | None = None,
    adapters: Mapping[str, str | Path] = MappingProxyType({}),
) -> list[Served]:
    """Open folders of models, and run each once, so that its weights are packed.

    Parameters
    ----------
    folders : mapping of str to path
        Name -> folder of an encoder of any kind, a cross-encoder or a classifier.
    policy : str or DTypePolicy, optional
        Of all models. Default: that under which each is stored.
    adapters : mapping of str to path
        Name -> folder of an adapter. Each makes another model of the first one, and shares its weights.

    Raises
    ------
    OSError, ValueError, ImportError
        As :meth:`mp_core.models.TextEncoder.from_folder` and :meth:`mp_core.models.TextEncoder.with_adapter`.
    """
    models: dict[str, tuple[TextModel, Path]] = {}
    for name, folder in folders.items():
        models[name] = class_of(Path(folder)).from_folder(folder, policy), Path(folder)
    base = next(iter(models.values()))[0]
    models |= {name: (base.with_adapter(folder), Path(folder)) for name, folder in adapters.items()}
    return [_served(name, model, int(path.stat().st_mtime)) for name, (model, path) in models.items()]


def _served(name: str, model: TextModel, created: int) -> Served:
    """Return a model under a name, after a first run."""
    served: Served = next(kind for known, kind in _SERVED.items() if isinstance(model, known))(name, model, created)
    with suppress(ValueError):  # where the tokenizer has no token for it, the first request packs the weights
        served.compute(served.tokenize(["a"] if served.kind != "reranker" else [("a", "a")]), {})
    return served


_SERVED: dict[type[TextModel], Callable[[str, Any, int], Served]] = {
    M3Encoder: Three,
    TextEncoder: Encoder,
    SparseEncoder: Sparse,
    MultiVectorEncoder: Multi,
    Reranker: Scorer,
}
"""Class of a model -> what serves it; subclasses before their bases."""
