"""The API of sentence-transformers, so that code written for that library works with mp_core's encoders."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from importlib import import_module
from typing import Any, ClassVar, TypedDict, TypeVar, cast

import numpy as np

from mp_core import ops
from mp_core.arrays import Array, imported
from mp_core.models.pooling import LONGEST, SHORTEST, unit
from mp_core.models.precision import PRECISIONS, with_precision
from mp_core.models.texts import Text
from mp_core.utilities.arguments import boolean

__all__ = ["Options", "SentenceTransformerNames", "also_named", "check_options", "in_format"]

F = TypeVar("F", bound=Callable[..., Any])


class Options(TypedDict, total=False):
    """The arguments of ``SentenceTransformer.encode`` that mp_core lacks or names differently."""

    normalize_embeddings: bool
    show_progress_bar: bool | None
    convert_to_numpy: bool
    convert_to_tensor: bool
    device: Any
    output_value: str
    precision: str | None
    pool: None
    chunk_size: None


_SWITCHES = ("normalize_embeddings", "convert_to_numpy", "convert_to_tensor")
_ONLY: Mapping[str, tuple[str | None, ...]] = {
    "device": (None, "cpu"),
    "output_value": ("sentence_embedding",),
    "precision": (*PRECISIONS, None),
    "pool": (None,),
    "chunk_size": (None,),
}
_PROMPTS = {"query": ("query",), "document": ("document", "passage", "corpus")}


def check_options(options: Options) -> None:
    """Raise TypeError for an unknown argument, and TypeError or ValueError for an unsupported value."""
    for name, value in options.items():
        if name not in Options.__annotations__:
            raise TypeError(f"encode() got an unexpected keyword argument {name!r}")
        if name in _SWITCHES:
            boolean(value, name)
        if name in _ONLY and (value if value is None else str(value)) not in _ONLY[name]:
            allowed = " or ".join(map(repr, _ONLY[name]))
            raise ValueError(f"`{name}` must be {allowed}; received {value!r}")


def also_named(argument: str) -> Callable[[F], F]:
    """Let callers pass `argument`, the first of a method, under its names in sentence-transformers too."""

    def decorated(method: F) -> F:
        @wraps(method)
        def called(self: Any, *args: Any, **kwargs: Any) -> Any:
            for name in ("inputs", "sentences"):
                if name in kwargs:
                    if args or argument in kwargs:
                        raise TypeError(f"`{argument}` and `{name}` are the same argument; received both")
                    kwargs[argument] = kwargs.pop(name)
            return method(self, *args, **kwargs)

        return cast(F, called)

    return decorated


def in_format(embeddings: Array, options: Options, one: bool) -> Any:
    """Return embeddings, or the only one if `one`, in the requested precision, as array, tensor or list of tensors."""
    embeddings = with_precision(embeddings, options.get("precision") or "float32")
    embeddings = embeddings[0] if one else embeddings
    if options.get("convert_to_tensor"):
        return _tensor(embeddings)
    if not options.get("convert_to_numpy", True):
        return _tensor(embeddings) if embeddings.ndim == 1 else list(_tensor(embeddings))
    return embeddings


def _tensor(array: Array) -> Any:
    """Return a torch tensor that shares the memory of an array."""
    return import_module("torch").from_dlpack(array)


_PAIRS: dict[str, Callable[[Array, Array], Array]] = {
    "cosine": lambda a, b: np.einsum("nd,nd->n", unit(a), unit(b)),
    "dot": lambda a, b: np.einsum("nd,nd->n", a, b),
    "euclidean": lambda a, b: -_distances(a, b),
    "manhattan": lambda a, b: -np.abs(a - b).sum(axis=1),
}
"""Name of a similarity -> its function for row i of `a` and row i of `b`."""

_MATRICES: dict[str, Callable[[Array, Array], Array]] = {
    "cosine": lambda a, b: ops.matmul(unit(a), unit(b).T),
    "dot": lambda a, b: ops.matmul(a, b.T),
    "euclidean": lambda a, b: _by_rows("euclidean", a, b),
    "manhattan": lambda a, b: _by_rows("manhattan", a, b),
}
"""Name of a similarity -> its function for all pairs of rows of `a` and `b`."""


def _distances(a: Array, b: Array) -> Array:
    """Return the Euclidean distances of rows; where float32 squares overflow or underflow, computed in float64."""
    with np.errstate(over="ignore", under="ignore"):
        found = np.linalg.norm(a - b, axis=1)
        if not ((found >= SHORTEST) & (found <= LONGEST)).all():
            exact = np.linalg.norm(a.astype(np.float64) - b.astype(np.float64), axis=1)
            found = np.where((found >= SHORTEST) & (found <= LONGEST), found, exact.astype(np.float32))
    distances: Array = found
    return distances


def _by_rows(name: str, a: Array, b: Array) -> Array:
    return np.array([_PAIRS[name](row[np.newaxis], b) for row in a], np.float32).reshape(len(a), len(b))


class _Card:
    """The model card to which evaluators report; it stores nothing."""

    base_model = None

    def set_evaluation_metrics(self, *_: Any) -> None:
        """Ignore the results of an evaluator, which also returns them."""


class SentenceTransformerNames:
    """The methods and attributes of ``SentenceTransformer`` that the library's evaluators and utilities use."""

    device: ClassVar[str] = "cpu"
    model_card_data: ClassVar[_Card] = _Card()
    encode: Callable[..., Any]
    prompts: dict[str, str]
    dim: int
    _similarity = "cosine"

    @also_named("texts")
    def encode_query(self, texts: Text | Iterable[Text], **arguments: Any) -> Any:
        """Return ``encode(texts, **arguments)`` with the prompt ``"query"``, unless a prompt is given.

        In folders with routes, the route for ``"query"`` is used.
        """
        return self._encode_as("query", texts, arguments)

    @also_named("texts")
    def encode_document(self, texts: Text | Iterable[Text], **arguments: Any) -> Any:
        """Return ``encode(texts, **arguments)`` with a document prompt, unless a prompt is given.

        It is the first existing prompt of ``"document"``, ``"passage"`` and ``"corpus"``. In folders with routes, the
        route for ``"document"`` is used.
        """
        return self._encode_as("document", texts, arguments)

    def _encode_as(self, task: str, texts: Text | Iterable[Text], arguments: dict[str, Any]) -> Any:
        if arguments.get("prompt") is None and arguments.get("prompt_name") is None:
            arguments["prompt_name"] = next((name for name in _PROMPTS[task] if name in self.prompts), None)
        return self._of_task(task).encode(texts, **arguments)

    def _of_task(self, task: str) -> Any:
        """Return the encoder for a task; here `self`, since nothing depends on the task."""
        return self

    @property
    def similarity_fn_name(self) -> str:
        """The similarity function of two embeddings: ``"cosine"``, ``"dot"``, ``"euclidean"`` or ``"manhattan"``.

        The last two are negated distances.
        """
        return self._similarity

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: Any) -> None:
        name = getattr(name, "value", name)  # a member of the library's enumeration
        if name is not None and name not in list(_PAIRS):
            raise ValueError(f"`similarity_fn_name` must be one of {', '.join(map(repr, _PAIRS))}; received {name!r}")
        self._similarity = name or "cosine"

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarity of all pairs of embeddings.

        Parameters
        ----------
        embeddings1, embeddings2 : arrays or tensors of torch, shape (n, dim) and (m, dim), or (dim,) for one
            They are compared in float32.

        Returns
        -------
        ndarray of float32, shape (n, m)
            A tensor if `embeddings1` is one. (The library always returns a tensor.)

        Examples
        --------
        >>> names = SentenceTransformerNames()
        >>> names.similarity([[1, 0], [3, 4]], [0, 2]).tolist()
        [[0.0], [0.800000011920929]]
        """
        a, b = _rows(embeddings1, "embeddings1"), _rows(embeddings2, "embeddings2")
        if a.shape[1] != b.shape[1]:
            raise ValueError(f"`embeddings2` must have rows of {a.shape[1]} numbers; received shape {b.shape}")
        return _like(embeddings1, _MATRICES[self._similarity](a, b))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the similarity of ``embeddings1[i]`` and ``embeddings2[i]`` for each i, float32 of shape (n,).

        Parameters
        ----------
        embeddings1, embeddings2 : arrays or tensors of torch, shape (n, dim), or (dim,) for one
            As in :meth:`similarity`.
        """
        a, b = _rows(embeddings1, "embeddings1"), _rows(embeddings2, "embeddings2")
        if a.shape != b.shape:
            raise ValueError(f"`embeddings2` must have the shape of `embeddings1`, {a.shape}; received {b.shape}")
        return _like(embeddings1, _PAIRS[self._similarity](a, b))

    def get_embedding_dimension(self) -> int:
        """Return the length of an embedding."""
        return self.dim

    def get_sentence_embedding_dimension(self) -> int:
        """Return the length of an embedding; the name before sentence-transformers 5."""
        return self.dim


def _rows(embeddings: Any, argument: str) -> Array:
    if isinstance(embeddings, list | tuple):
        embeddings = [imported(row, argument) for row in embeddings]
        embeddings = np.stack(embeddings) if embeddings else np.empty((0, 0))
    rows = np.atleast_2d(imported(embeddings, argument)).astype(np.float32, copy=False)
    if rows.ndim != 2:
        raise ValueError(f"`{argument}` must have the shape (n, dim) or (dim,); received {rows.shape}")
    return rows


def _like(given: Any, result: Array) -> Any:
    """Return a result as a tensor if it was computed from a tensor or a list of tensors."""
    first = given[0] if isinstance(given, list | tuple) and given else given
    return _tensor(result) if type(first).__module__.partition(".")[0] == "torch" else result
