"""The models of a server, by name: what kind each is, how its texts are read, and how they are computed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.dtype_policies import DTypePolicy
from mp_core.models import BertEncoder, M3Encoder, MultiVectorEncoder, Reranker, SparseEncoder, SparseVectors
from mp_core.models.multi import TASKS
from mp_core.models.opening import class_of
from mp_core.models.texts import TextModel, Tokens

__all__ = ["Encoder", "Scorer", "Served", "open_models"]


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
        ``"encoder"``, ``"sparse"``, ``"multi-vector"``, ``"reranker"`` (one score) or ``"classifier"`` (several).
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
        self.name, self.created = name, created
        self.policy: str = model.model.dtype_policy.name
        self.max_length = model.max_length
        self.prompts: Sequence[str] = ()
        self.tasks: Sequence[str] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """All that it can do."""
        return (self.kind,)

    @abstractmethod
    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None) -> Tokens:
        """Return the tokens of texts, or of pairs of texts; raise ValueError if a text has none."""

    @abstractmethod
    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        """Return a row of numbers for each text, or its score: the bits that the text has alone.

        Rows of different lengths are objects.
        """

    @abstractmethod
    def as_tei(self) -> dict[str, Any]:
        """Return the type of the model as text-embeddings-inference tells it."""

    def describe(self) -> dict[str, Any]:
        """Return what a client may want to know of it."""
        return {"kind": self.kind, "policy": self.policy, "max_length": self.max_length}


class Encoder(Served):
    """An encoder of texts.

    Attributes
    ----------
    dim : int
        The length of an embedding.
    """

    kind = "encoder"

    def __init__(self, name: str, model: BertEncoder, created: int = 0) -> None:
        super().__init__(name, model, created)
        self._model, self.dim, self.prompts, self.tasks = model, model.dim, list(model.prompts), model.tasks
        self._routes = model.with_each_task()

    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None) -> Tokens:
        """Return the tokens of texts, each behind the prompt."""
        return self._of_task(prompt_name).tokenize(inputs, prompt_name=prompt_name)

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        """Return an embedding for each text."""
        given = {name: value for name, value in options.items() if name != "task"}
        return self._of_task(options.get("task")).encode_tokens(tokens, **given)

    def _of_task(self, task: str | None) -> BertEncoder:
        return self._model if task is None else self._routes.get(task, self._model)

    def as_tei(self) -> dict[str, Any]:
        """Return the pooling."""
        return {"embedding": {"pooling": "+".join(self._model.poolings)}}

    def describe(self) -> dict[str, Any]:
        """Return what a client may want to know of it."""
        return super().describe() | {"dimensions": self.dim, "prompts": self.prompts}


class Sparse(Served):
    """An encoder of texts as weights of tokens."""

    kind = "sparse"

    def __init__(self, name: str, model: SparseEncoder, created: int = 0) -> None:
        super().__init__(name, model, created)
        self._model, self.dim, self.prompts, self.tasks = model, model.dim, list(model.prompts), model.tasks

    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None) -> Tokens:
        """Return the tokens of texts, each behind the prompt."""
        task = prompt_name if prompt_name in self.tasks else None
        return self._model.tokenize(inputs, prompt_name=prompt_name, task=task)

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        """Return the indices and the values of each text."""
        return _objects(self._model.encode_sparse_tokens(tokens, task=options.get("task")))

    def as_tei(self) -> dict[str, Any]:
        """Return the pooling."""
        return {"embedding": {"pooling": "splade"}}

    def describe(self) -> dict[str, Any]:
        """Return what a client may want to know of it."""
        return super().describe() | {"dimensions": self.dim, "prompts": self.prompts}


class Multi(Served):
    """An encoder that gives each token of a text a vector."""

    kind = "multi-vector"

    def __init__(self, name: str, model: MultiVectorEncoder, created: int = 0) -> None:
        super().__init__(name, model, created)
        self._model, self.dim, self.prompts, self.tasks = model, model.dim, list(model.prompts), TASKS

    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None) -> Tokens:
        """Return the tokens of texts, each behind the prompt."""
        task = prompt_name if prompt_name in self.tasks else "document"
        return self._model.tokenize(inputs, prompt_name=prompt_name, task=str(task))

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        """Return the vectors of each text."""
        return _objects(self._model.encode_multi_tokens(tokens, task=options.get("task", "document")))

    def as_tei(self) -> dict[str, Any]:
        """Return that nothing is pooled."""
        return {"embedding": {"pooling": "none"}}

    def describe(self) -> dict[str, Any]:
        """Return what a client may want to know of it."""
        return super().describe() | {"dimensions": self.dim, "prompts": self.prompts}


class Three(Encoder):
    """An encoder like BGE-M3, which gives a text a vector, weights of its tokens or a vector for each token."""

    def __init__(self, name: str, model: M3Encoder, created: int = 0) -> None:
        super().__init__(name, model, created)
        self._three = model

    @property
    def kinds(self) -> tuple[str, ...]:
        """All that it can do."""
        return self.kind, Sparse.kind, Multi.kind

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        """Return the vectors of the kind that the option ``kind`` says, by default an embedding for each text."""
        kind = options.get("kind")
        if kind is None:
            return super().compute(tokens, options)
        vectors = self._three.encode_all_tokens(tokens)
        return _objects(vectors.sparse if kind == Sparse.kind else vectors.multi)


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
    """

    def __init__(self, name: str, model: Reranker, created: int = 0) -> None:
        super().__init__(name, model, created)
        self._model, self.kind = model, "reranker" if model.model.labels == 1 else "classifier"
        names: Mapping[str, str] = model.model.config.get("id2label") or {}
        self.labels = [str(names.get(str(index), f"LABEL_{index}")) for index in range(model.model.labels)]

    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None) -> Tokens:
        """Return the tokens of texts and pairs; there are no prompts."""
        return self._model.tokenize(inputs)

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        """Return a score, or a row of scores, for each."""
        return self._model.predict_tokens(tokens, **options)

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
        As :meth:`mp_core.models.BertEncoder.from_folder` and :meth:`mp_core.models.BertEncoder.with_adapter`.
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
    BertEncoder: Encoder,
    SparseEncoder: Sparse,
    MultiVectorEncoder: Multi,
    Reranker: Scorer,
}
"""Class of a model -> what serves it; subclasses before their bases."""
