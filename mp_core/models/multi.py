"""Multi-vector encoders such as ColBERT [1]_: texts in, one vector for each token out.

.. [1] O. Khattab, M. Zaharia, "ColBERT: Efficient and Effective Passage Search via Contextualized Late Interaction over
   BERT", SIGIR 2020.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array, imported
from mp_core.arrays.quantization import quantize
from mp_core.models.colbert import format_of, read_colbert
from mp_core.models.folder import read_object
from mp_core.models.modules import TRANSFORMER, Modules, modules_needed, read_network, read_prompts
from mp_core.models.prompted import ATTRIBUTES, PromptedModel, TextError
from mp_core.models.rules import Rule, check, only, read_known
from mp_core.models.settings import choices, unexpected
from mp_core.models.steps import KINDS_OF_STEPS, apply_steps, read_steps
from mp_core.models.texts import Text, Tokens, pad
from mp_core.models.tokenizer import Tokenizer
from mp_core.ops import pack
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.utilities.arguments import path_of
from mp_core.utilities.docstrings import documented

__all__ = ["MultiVectorEncoder", "max_similarity"]

TASKS = ("query", "document")


@dataclass(frozen=True, slots=True)
class LateSettings:
    """The settings for queries and documents in a multi-vector encoder's folder."""

    skipped: Mapping[str, frozenset[int]]  # Task -> the tokens whose vectors are dropped.
    kept: frozenset[int] | None  # If given, only vectors of these tokens are kept in documents.
    # (length to which queries are padded, padding token, whether other tokens attend to the padding).
    expansion: tuple[int, int, bool] | None


def max_similarity(queries: Sequence[Any], documents: Sequence[Any], *, dtype: str = "float32") -> Array:
    """Return MaxSim: the sum, over the vectors of a query, of the largest scalar product with a document's vector.

    Parameters
    ----------
    queries, documents : sequence of array-like, shapes (tokens, dim)
        The vectors of each text, float.
    dtype : {"float32", "bfloat16", "int8"}
        The type in which vectors are multiplied. In int8, each vector has its own scale, and a document takes a quarter
        of the memory.

    Returns
    -------
    ndarray of float32, shape (queries, documents)
        0 for a query without vectors, minus infinity for a document without any.

    Examples
    --------
    >>> query, document = np.eye(2, dtype=np.float32), np.array([[0.5, 0.25], [1, 0]], np.float32)
    >>> max_similarity([query], [document, document[:1]])
    array([[1.25, 0.75]], dtype=float32)
    """
    if dtype not in ("float32", "bfloat16", "int8"):
        raise ValueError(f"`dtype` must be 'float32', 'bfloat16' or 'int8'; received {dtype!r}")
    rows, others = (_matrices(given, name) for given, name in ((queries, "queries"), (documents, "documents")))
    widths = {x.shape[1] for x in (*rows, *others)}
    if len(widths) > 1:
        raise ValueError(f"`queries` and `documents` must have vectors of one length; received {sorted(widths)}")
    out = np.full((len(rows), len(others)), -np.inf, F32)
    if not rows or not widths:
        return out
    ends = np.cumsum([0, *map(len, rows)])
    left = np.concatenate(rows)
    for column, document in enumerate(others):
        if len(document):
            best = _products(left, document, dtype).max(axis=1)
            out[:, column] = [ops.sum(best[begin:end]) for begin, end in pairwise(ends)]
    return out


def _products(left: Array, right: Array, dtype: str) -> Array:
    """Return the scalar products of all rows of two matrices, float32."""
    if dtype == "int8":
        products: Array = ops.dynamic_matmul(left, pack(quantize(right, axis=0).T))
        return products
    return ops.matmul(ops.cast(left, dtype), ops.cast(right, dtype).T, out_dtype="float32")


def _matrices(given: Sequence[Any], name: str) -> list[Array]:
    """Return arrays as float32 matrices; raise ValueError for another number of axes."""
    found = []
    for position, x in enumerate(given):
        matrix = imported(x, f"{name}[{position}]")
        if matrix.ndim != 2:
            raise ValueError(f"`{name}[{position}]` must have shape (tokens, dim); received {matrix.shape}")
        found.append(ops.cast(matrix, F32))
    return found


@documented(ATTRIBUTES)
class MultiVectorEncoder(PromptedModel):
    """A multi-vector encoder: texts in, one vector for each token out. Create it by :meth:`from_folder`.

    Of its `prompts`, ``"query"`` and ``"document"`` belong to the tasks.

    Examples
    --------
    >>> encoder = MultiVectorEncoder.from_folder("colbert-small", policy="mixed_bfloat16")  # doctest: +SKIP
    >>> query = encoder.encode_multi("Where does it rain?", task="query")  # doctest: +SKIP
    >>> encoder.similarity(query, encoder.encode_multi(["It rains in the north."]))  # doctest: +SKIP
    """

    vector_kinds = ("multi-vector",)

    def __init__(
        self, folder: Path, modules: Modules, options: Mapping[str, Any], policy: str | DTypePolicy | None
    ) -> None:
        super().__init__(folder, modules, policy)
        self._late = _late(modules, options, self._tokenizer)
        self._tokenizers = {
            task: Tokenizer(replace(modules, max_length=length)) if length else self._tokenizer
            for task, length in _lengths(options).items()
        }
        self.dim = modules.steps[-1].width if modules.steps else modules.settings.vector_size

    @classmethod
    def from_folder(cls, path: str | PathLike[str], policy: str | DTypePolicy | None = None) -> "MultiVectorEncoder":
        """Load a model.

        Parameters
        ----------
        path : path
            Folder of a ``MultiVectorEncoder`` of sentence-transformers 6: a network, modules such as ``Dense`` and
            ``Normalize`` for the token vectors, and a ``MultiVectorMask``. Or a folder of PyLate 3 or of Stanford's
            ColBERT.
        policy : str or DTypePolicy, optional
            As in :meth:`mp_core.models.TextEncoder.from_folder`.
        """
        folder = path_of(path, "path")
        return cls(folder, *_read(folder), policy)

    def encode_multi(
        self,
        texts: Text | Iterable[Text],
        batch_size: int = 32,
        show_progress: bool = False,
        *,
        task: str = "document",
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> list[Array]:
        """Return the token vectors of texts.

        Parameters
        ----------
        texts, batch_size, show_progress
            Those of :meth:`mp_core.models.TextEncoder.encode`; a single str counts as a list of one text.
        task : {"document", "query"}
            The kind of the texts. It determines their maximum length, which vectors are kept, and whether they are
            padded as queries.
        prompt, prompt_name : str, optional
            The prompt before each text, or its name. Default: the prompt named like the task.

        Returns
        -------
        list of ndarray of float32, shapes (tokens, dim)
            In the order of `texts`.
        """
        tokens = self.tokenize(texts, prompt=prompt, prompt_name=prompt_name, task=task)
        return self.encode_multi_tokens(tokens, batch_size, show_progress, task=task)

    def tokenize(
        self,
        texts: Text | Iterable[Text],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        from_start: bool | None = None,
        task: str = "document",
    ) -> Tokens:
        """Return the tokens of texts for :meth:`encode_multi_tokens`. It may run in another thread.

        Parameters
        ----------
        texts, prompt, prompt_name, task
            Those of :meth:`encode_multi`.
        from_start : bool, optional
            Whether texts that are too long are truncated at their start; texts with a marker there are refused.
            Default: the tokenizer's setting.
        """
        if task not in TASKS:
            raise ValueError(f"`task` must be 'query' or 'document'; received {task!r}")
        prefix = self._prompt(prompt, task if prompt is None and prompt_name is None else prompt_name)
        tokens = self._tokens(texts, prefix, self._tokenizers[task], from_start)
        if prefix and tokens.cut and self._tokenizers[task].cuts_start(from_start):
            must = f"must not be cut at its start, where {prefix!r} is: cut its end, or shorten it"
            raise TextError(tokens.cut[0], must)
        return tokens

    def encode_multi_tokens(
        self,
        tokens: Tokens,
        batch_size: int = 32,
        show_progress: bool = False,
        *,
        task: str = "document",
        on_batch: Callable[[int], object] | None = None,
    ) -> list[Array]:
        """Return the token vectors of tokenized texts: :meth:`encode_multi` after :meth:`tokenize`.

        `on_batch` is called after each batch with its number of texts; the other arguments are those of
        :meth:`encode_multi`.
        """
        return self.each(partial(self._vectors, task=task), tokens, batch_size, show_progress, on_batch)

    def similarity(self, queries: Sequence[Any], documents: Sequence[Any], *, dtype: str = "float32") -> Array:
        """Return :func:`max_similarity`, shape (queries, documents)."""
        return max_similarity(queries, documents, dtype=dtype)

    def _vectors(self, tokens: Tokens, positions: Array, task: str) -> list[Array]:
        ids, mask = pad(tokens.rows)
        counted = mask
        if task == "query" and self._late.expansion is not None:
            ids, mask, counted = _expanded(ids, mask, *self._late.expansion)
        hidden = ops.cast(self.model(ids, mask=mask), F32)
        counted = counted & ~np.isin(ids, [*self._late.skipped[task]])
        if task == "document" and self._late.kept is not None:
            counted &= np.isin(ids, [*self._late.kept])
        vectors = apply_steps(self._modules.steps, hidden[counted], None)
        found = np.split(vectors, np.cumsum(counted.sum(axis=1))[:-1])
        self._check(found, tokens.rows, positions)
        return found


def _expanded(ids: Array, mask: Array, length: int, token: int, attended: bool) -> tuple[Array, Array, Array]:
    """Return queries padded to a length with a token, the attention mask, and the mask of vectors to keep."""
    more = max(0, length - ids.shape[1])
    ids, mask = (np.pad(x, ((0, 0), (0, more))) for x in (ids, mask))
    filled = ~mask & (np.arange(ids.shape[1]) < length)
    return np.where(filled, token, ids).astype(ids.dtype), mask | filled if attended else mask, mask | filled


_WORDS: Rule = lambda value: isinstance(value, list) and all(isinstance(word, str) for word in value), "a list of str"
_MASK: dict[str, Rule] = {
    "skiplist_words": _WORDS,
    "skiplist_tasks": (lambda value: isinstance(value, list) and set(value) <= {*TASKS}, f"a list of {choices(TASKS)}"),
    "keep_only_token_ids": (
        lambda value: value is None or (isinstance(value, list) and all(type(number) is int for number in value)),
        "a list of integers or null",
    ),
}
_EXPANSION: dict[str, Rule] = {
    "strategy": only("fixed", "min"),  # both pad queries; only "fixed" also truncates longer ones
    "attend": only(False, True),
    "token": (lambda value: value is None or isinstance(value, str), "a string or null"),
    "length": (lambda value: type(value) is int and value > 0, "a positive integer"),
}
_OBJECT: Rule = lambda value: value is None or isinstance(value, dict), "an object or null"
_LENGTH: Rule = lambda value: value is None or (type(value) is int and value > 1), "an integer of at least 2 or null"
_NETWORK = TRANSFORMER | {"query_expansion": _OBJECT, "query_length": _LENGTH, "document_length": _LENGTH}


def _read(folder: Path) -> tuple[Modules, dict[str, Any]]:
    """Return the modules of a folder, and its settings for queries and documents."""
    older = format_of(folder)
    if older is not None:
        return read_colbert(folder, older)
    (_, network), *others = modules_needed(folder, (("Transformer",),), (*KINDS_OF_STEPS, "MultiVectorMask"))
    masks = [place for kind, place in others if kind == "MultiVectorMask"]
    if len(masks) != 1:
        raise ValueError(f"{folder / 'modules.json'} lists {len(masks)} modules 'MultiVectorMask'; expected 1")
    mask = read_object(masks[0] / "config.json")
    check(masks[0] / "config.json", mask, _MASK)
    path = network / "sentence_bert_config.json"
    transformer = read_known(path, _NETWORK)
    if transformer.get("query_expansion"):
        check(path, transformer["query_expansion"], _EXPANSION)
        if "strategy" not in transformer["query_expansion"]:
            raise unexpected(path, "query_expansion.strategy", None, choices(("fixed", "min")))
    steps = [(kind, place) for kind, place in others if kind != "MultiVectorMask"]
    found = read_network(network, _NETWORK)
    modules = replace(
        found,
        steps=read_steps(steps, found.settings.vector_size, ("token_embeddings",)),
        **read_prompts(folder / "config_sentence_transformers.json", "MultiVectorEncoder"),
    )
    return modules, transformer | mask


def _lengths(options: Mapping[str, Any]) -> dict[str, int | None]:
    """Return task -> the most tokens of a text, None if no file limits them."""
    lengths = {task: options.get(f"{task}_length") for task in TASKS}
    expansion = options.get("query_expansion")
    if expansion and expansion["strategy"] == "fixed":
        lengths["query"] = expansion["length"]
    return lengths


def _late(modules: Modules, options: Mapping[str, Any], tokenizer: Tokenizer) -> LateSettings:
    """Return the settings for queries and documents, with words replaced by tokens.

    Words that are not one token of the vocabulary are left out, as in sentence-transformers.
    """
    indices = frozenset(i for i in map(tokenizer.index_of, options.get("skiplist_words") or []) if i is not None)
    tasks = options.get("skiplist_tasks", ["document"])
    kept, expansion = options.get("keep_only_token_ids"), options.get("query_expansion")
    return LateSettings(
        skipped={task: indices if task in tasks else frozenset() for task in TASKS},
        kept=frozenset(kept) if kept else None,
        expansion=_expansion(modules, expansion, tokenizer) if expansion else None,
    )


def _expansion(modules: Modules, options: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[int, int, bool]:
    word = options.get("token") or tokenizer.special("mask_token") or tokenizer.special("eos_token")
    index = None if word is None else tokenizer.index_of(word)
    if index is None:
        path = modules.network / "tokenizer_config.json"
        raise unexpected(path, "the token that pads queries", word, "a token of the vocabulary")
    length = options.get("length")
    if length is None or not 1 < length <= modules.settings.max_length:
        expected = f"from 2 to {modules.settings.max_length}"
        raise unexpected(modules.network / "sentence_bert_config.json", "query_expansion.length", length, expected)
    return length, index, options.get("attend", False)
