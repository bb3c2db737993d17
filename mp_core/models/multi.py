"""Multi-vector encoders: texts in, a vector for each token out, as ColBERT [1]_ compares them.

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
from mp_core.models.prompted import PromptedModel, TextError
from mp_core.models.rules import Rule, check, only, read_known
from mp_core.models.settings import choices, unexpected
from mp_core.models.steps import KINDS_OF_STEPS, applied, read_steps
from mp_core.models.texts import Text, Tokens, pad
from mp_core.models.tokenizer import Tokenizer
from mp_core.ops import pack
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.utilities.arguments import path_of

__all__ = ["MultiVectorEncoder", "max_similarity"]

TASKS = ("query", "document")


@dataclass(frozen=True, slots=True)
class Late:
    """What the files of a multi-vector encoder say of queries and documents.

    Attributes
    ----------
    skipped : mapping of str to frozenset of int
        Task -> the tokens whose vectors do not count.
    kept : frozenset of int or None
        The only tokens of documents whose vectors count, if a file names some.
    expansion : tuple of (int, int, bool) or None
        To how many tokens a query is filled up, with which one, and whether all tokens attend to them.
    """

    skipped: Mapping[str, frozenset[int]]
    kept: frozenset[int] | None
    expansion: tuple[int, int, bool] | None


def max_similarity(queries: Sequence[Any], documents: Sequence[Any], *, dtype: str = "float32") -> Array:
    """Return the sum, over the vectors of a query, of the largest scalar product with a vector of a document.

    Parameters
    ----------
    queries, documents : sequence of array-like, shapes (tokens, dim)
        The vectors of each text, float.
    dtype : {"float32", "bfloat16", "int8"}
        The type in which vectors are multiplied. In int8, each vector has a scale of its own, and a document has a
        quarter of the bytes.

    Returns
    -------
    ndarray of float32, shape (queries, documents)
        0 for a query without vectors, minus infinity for a document without any.

    Raises
    ------
    TypeError
        Vectors are not floats.
    ValueError
        `dtype` is none of these, or vectors are no matrices of one width.

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
    """Return matrices in float32; raise unless they are."""
    found = []
    for position, x in enumerate(given):
        matrix = imported(x, f"{name}[{position}]")
        if matrix.ndim != 2:
            raise ValueError(f"`{name}[{position}]` must have shape (tokens, dim); received {matrix.shape}")
        found.append(ops.cast(matrix, F32))
    return found


class MultiVectorEncoder(PromptedModel):
    """A multi-vector encoder: texts in, a vector for each token out. :meth:`from_folder` builds one.

    Attributes
    ----------
    model : TextNetwork
        The network.
    dim : int
        The length of a vector.
    max_length : int
        The most tokens a text may have, its special tokens included; :meth:`encode_multi` cuts off the rest.
    prompts : dict of str to str
        Name -> text to put before a text, as the folder lists them: ``"query"`` and ``"document"`` are those of tasks.
    tensor_names, kernel_names : dict of str to str
        As those of :class:`TextEncoder`.

    Examples
    --------
    >>> encoder = MultiVectorEncoder.from_folder("colbert-small", policy="mixed_bfloat16")  # doctest: +SKIP
    >>> query = encoder.encode_multi("Where does it rain?", task="query")  # doctest: +SKIP
    >>> encoder.similarity(query, encoder.encode_multi(["It rains in the north."]))  # doctest: +SKIP
    """

    vector_kinds = ("multi-vector",)

    def __init__(
        self, folder: Path, modules: Modules, said: Mapping[str, Any], policy: str | DTypePolicy | None
    ) -> None:
        super().__init__(folder, modules, policy)
        self._late = _late(modules, said, self._tokenizer)
        self._tokenizers = {
            task: Tokenizer(replace(modules, max_length=length)) if length else self._tokenizer
            for task, length in _lengths(said).items()
        }
        self.dim = modules.steps[-1].width if modules.steps else modules.settings.vector_size

    @classmethod
    def from_folder(cls, path: str | PathLike[str], policy: str | DTypePolicy | None = None) -> "MultiVectorEncoder":
        """Load a model.

        Parameters
        ----------
        path : path
            Folder of a ``MultiVectorEncoder`` as sentence-transformers 6 saves it: a network, then ``Dense``,
            ``Normalize`` and the like for the vectors of tokens, and a ``MultiVectorMask``. Or a folder of PyLate 3 or
            of Stanford's ColBERT.
        policy : str or DTypePolicy, optional
            As in :meth:`mp_core.models.TextEncoder.from_folder`.

        Raises
        ------
        OSError, ValueError, ImportError
            As :meth:`mp_core.models.TextEncoder.from_folder`.
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
        """Return the vectors of the tokens of texts.

        Parameters
        ----------
        texts, batch_size, show_progress
            Those of :meth:`mp_core.models.TextEncoder.encode`; one str is a list of one text.
        task : {"document", "query"}
            What the texts are. It decides how many tokens they may have and which of their vectors count, and fills up
            queries if the folder says so.
        prompt, prompt_name : str, optional
            What is put before each text, or its name. By default the prompt of the name of the task.

        Returns
        -------
        list of ndarray of float32, shapes (tokens, dim)
            In the order of `texts`.

        Raises
        ------
        TypeError, ValueError
            As :meth:`mp_core.models.TextEncoder.encode`; `task` is none of these.
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
        """Return the tokens of texts: the first half of :meth:`encode_multi`, which may run in another thread.

        Parameters
        ----------
        texts, prompt, prompt_name, task
            Those of :meth:`encode_multi`.
        from_start : bool, optional
            Whether a text that is too long loses its start instead of its end; one with a marker there is refused.
            Default: what the files of the tokenizer say.
        """
        if task not in TASKS:
            raise ValueError(f"`task` must be 'query' or 'document'; received {task!r}")
        prefix = self._prompt(prompt, task if prompt is None and prompt_name is None else prompt_name)
        tokens = self._tokens(texts, prefix, self._tokenizers[task], from_start)
        if prefix and tokens.cut and self._tokenizers[task].cuts_start(from_start):
            raise TextError(tokens.cut[0], f"must not be cut at its start: there is {prefix!r}, which the model needs")
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
        """Return the vectors of texts that :meth:`tokenize` made tokens of: the second half of :meth:`encode_multi`.

        Parameters
        ----------
        tokens : Tokens
        batch_size, show_progress, task
            Those of :meth:`encode_multi`.
        on_batch : callable, optional
            Called with the number of texts of each batch once it is done.
        """
        return self.each(partial(self._vectors, task=task), tokens, batch_size, show_progress, on_batch)

    def similarity(self, queries: Sequence[Any], documents: Sequence[Any], *, dtype: str = "float32") -> Array:
        """Return :func:`max_similarity` of the vectors of queries and of documents, shape (queries, documents)."""
        return max_similarity(queries, documents, dtype=dtype)

    def _vectors(self, tokens: Tokens, positions: Array, task: str) -> list[Array]:
        ids, mask = pad(tokens.rows)
        counted = mask
        if task == "query" and self._late.expansion is not None:
            ids, mask, counted = _filled(ids, mask, *self._late.expansion)
        hidden = ops.cast(self.model(ids, mask=mask), F32)
        counted = counted & ~np.isin(ids, [*self._late.skipped[task]])
        if task == "document" and self._late.kept is not None:
            counted &= np.isin(ids, [*self._late.kept])
        vectors = applied(self._modules.steps, hidden[counted], None)
        found = np.split(vectors, np.cumsum(counted.sum(axis=1))[:-1])
        self._check(found, tokens.rows, positions)
        return found


def _filled(ids: Array, mask: Array, length: int, token: int, attended: bool) -> tuple[Array, Array, Array]:
    """Return queries filled up to a length with a token, which tokens are attended to, and which count."""
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
    "strategy": only("fixed", "min"),  # both fill queries up; only the first cuts longer ones to the length
    "attend": only(False, True),
    "token": (lambda value: value is None or isinstance(value, str), "a string or null"),
    "length": (lambda value: type(value) is int and value > 0, "a positive integer"),
}
_OBJECT: Rule = lambda value: value is None or isinstance(value, dict), "an object or null"
_LENGTH: Rule = lambda value: value is None or (type(value) is int and value > 1), "an integer of at least 2 or null"
_NETWORK = TRANSFORMER | {"query_expansion": _OBJECT, "query_length": _LENGTH, "document_length": _LENGTH}


def _read(folder: Path) -> tuple[Modules, dict[str, Any]]:
    """Return the settings of a folder, and those of the mask and of queries."""
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


def _lengths(said: Mapping[str, Any]) -> dict[str, int | None]:
    """Return by task how many tokens a text may have, if a file says so."""
    lengths = {task: said.get(f"{task}_length") for task in TASKS}
    expansion = said.get("query_expansion")
    if expansion and expansion["strategy"] == "fixed":
        lengths["query"] = expansion["length"]
    return lengths


def _late(modules: Modules, said: Mapping[str, Any], tokenizer: Tokenizer) -> Late:
    """Return what files say of queries and documents, with tokens for the words that they name.

    Words that the vocabulary does not have as one token are left out, as in sentence-transformers.
    """
    indices = frozenset(i for i in map(tokenizer.index_of, said.get("skiplist_words") or []) if i is not None)
    tasks = said.get("skiplist_tasks", ["document"])
    kept = said.get("keep_only_token_ids")
    return Late(
        skipped={task: indices if task in tasks else frozenset() for task in TASKS},
        kept=frozenset(kept) if kept else None,
        expansion=_expansion(modules, said["query_expansion"], tokenizer) if said.get("query_expansion") else None,
    )


def _expansion(modules: Modules, said: Mapping[str, Any], tokenizer: Tokenizer) -> tuple[int, int, bool]:
    """Return to how many tokens queries are filled up, with which one, and whether all tokens attend to them."""
    word = said.get("token") or tokenizer.special("mask_token") or tokenizer.special("eos_token")
    index = None if word is None else tokenizer.index_of(word)
    if index is None:
        path = modules.network / "tokenizer_config.json"
        raise unexpected(path, "the token that fills up queries", word, "a token of the vocabulary")
    length = said.get("length")
    if length is None or not 1 < length <= modules.settings.max_length:
        expected = f"from 2 to {modules.settings.max_length}"
        raise unexpected(modules.network / "sentence_bert_config.json", "query_expansion.length", length, expected)
    return length, index, said.get("attend", False)
