"""The models of a server, by name: what kind each is, how its texts are read, and how they are computed."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mp_core.arrays import Array
from mp_core.dtype_policies import DTypePolicy
from mp_core.models import BertEncoder, Reranker
from mp_core.models.folder import read_list, read_object
from mp_core.models.texts import TextModel, Tokens

__all__ = ["Encoder", "Scorer", "Served", "open_models"]


class Served(ABC):
    """A model with its name.

    Parameters
    ----------
    name : str
        By which clients ask for it.
    model : BertEncoder or Reranker
    created : int
        When its folder was written, in seconds of Unix time.

    Attributes
    ----------
    kind : str
        ``"encoder"``, ``"reranker"`` (one score) or ``"classifier"`` (several).
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

    @abstractmethod
    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None) -> Tokens:
        """Return the tokens of texts, or of pairs of texts; raise ValueError if a text has none."""

    @abstractmethod
    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        """Return a row of numbers for each text, or its score: the bits that the text has alone."""

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
        self._model, self.dim, self.prompts = model, model.dim, list(model.prompts)

    def tokenize(self, inputs: Sequence[Any], prompt_name: str | None = None) -> Tokens:
        """Return the tokens of texts, each behind the prompt."""
        return self._model.tokenize(inputs, prompt_name=prompt_name)

    def compute(self, tokens: Tokens, options: Mapping[str, Any]) -> Array:
        """Return an embedding for each text."""
        return self._model.encode_tokens(tokens, **options)

    def as_tei(self) -> dict[str, Any]:
        """Return the pooling."""
        return {"embedding": {"pooling": "+".join(self._model.poolings)}}

    def describe(self) -> dict[str, Any]:
        """Return what a client may want to know of it."""
        return super().describe() | {"dimensions": self.dim, "prompts": self.prompts}


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
        Name -> folder of an encoder, a cross-encoder or a classifier.
    policy : str or DTypePolicy, optional
        Of all models. Default: that under which each is stored.
    adapters : mapping of str to path
        Name -> folder of an adapter. Each makes another model of the first one, and shares its weights.

    Raises
    ------
    OSError, ValueError, ImportError
        As :meth:`mp_core.models.BertEncoder.from_folder` and :meth:`mp_core.models.BertEncoder.with_adapter`.
    """
    models: dict[str, tuple[BertEncoder | Reranker, Path]] = {}
    for name, folder in folders.items():
        kind = BertEncoder if _is_encoder(Path(folder)) else Reranker
        models[name] = kind.from_folder(folder, policy), Path(folder)
    base = next(iter(models.values()))[0]
    models |= {name: (base.with_adapter(folder), Path(folder)) for name, folder in adapters.items()}
    return [_served(name, model, int(path.stat().st_mtime)) for name, (model, path) in models.items()]


def _served(name: str, model: BertEncoder | Reranker, created: int) -> Served:
    """Return a model under a name, after a first run."""
    served = Encoder(name, model, created) if isinstance(model, BertEncoder) else Scorer(name, model, created)
    with suppress(ValueError):  # where the tokenizer has no token for it, the first request packs the weights
        served.compute(served.tokenize(["a"] if served.kind != "reranker" else [("a", "a")]), {})
    return served


def _is_encoder(folder: Path) -> bool:
    """Whether a folder holds an encoder: one with a pooling, or one whose network neither classifies nor writes."""
    if (folder / "modules.json").exists():
        modules = read_list(folder / "modules.json")
        return any(isinstance(module, dict) and "Pooling" in str(module.get("type")) for module in modules)
    if (folder / "1_Pooling").exists():
        return True
    names = read_object(folder / "config.json").get("architectures")
    written = [str(name) for name in names] if isinstance(names, list) else []
    return not any(kind in name for name in written for kind in ("Classification", "ForCausalLM"))
