"""BERT-family sentence encoders, from a folder as the sentence-transformers library writes it."""

from collections.abc import Callable, Iterable
from copy import copy
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from mp_core import dtype_policies, ops
from mp_core.arguments import path_of, positive_integer
from mp_core.arrays import Array, as_mask, imported
from mp_core.dtype_policies import DTypePolicy
from mp_core.layers import Layer
from mp_core.models.folder import Settings, Weights, read_pooling, read_settings, read_tokenizer
from mp_core.models.network import Network
from mp_core.progress import progress

__all__ = ["BertEncoder", "list_of_texts"]

_TOKENIZED_AT_ONCE = 1024


class BertEncoder:
    """A sentence encoder: texts in, one float32 vector each out. :meth:`from_folder` builds one.

    Attributes
    ----------
    dim : int
        Length of an embedding.
    max_length : int
        The most tokens a text may have, its two special tokens included; :meth:`encode` cuts off the rest.

    Examples
    --------
    >>> encoder = BertEncoder.from_folder("all-MiniLM-L6-v2", policy="mixed_bfloat16")  # doctest: +SKIP
    >>> encoder.encode(["A man is eating.", "Someone eats."]).shape  # doctest: +SKIP
    (2, 384)
    """

    def __init__(self, folder: Path, settings: Settings, policy: DTypePolicy, pooling: str, tokenizer: Any) -> None:
        self.dim = settings.hidden_size
        self.max_length: int = tokenizer.truncation["max_length"]
        self._folder = folder
        self._settings = settings
        self._network = _read_network(folder, settings, policy)
        self._pool = _POOL[pooling]
        self._tokenizer = tokenizer

    @classmethod
    def from_folder(cls, path: str | PathLike[str], policy: str | DTypePolicy = "float32") -> "BertEncoder":
        """Load a model.

        Parameters
        ----------
        path : path
            Folder with ``config.json``, ``model.safetensors``, ``tokenizer.json``, ``1_Pooling/config.json`` and, for
            the longest text, ``sentence_bert_config.json`` and ``tokenizer_config.json`` where they exist.
        policy : str or DTypePolicy
            The keys of a DTypePolicyMap are paths such as ``encoder/layer_0/attention/query``.

        Raises
        ------
        OSError
            A file is missing or unreadable.
        ValueError
            A file holds something else than expected; the message names the file, the entry or tensor, and both.
        ImportError
            The tokenizers package is missing.
        """
        folder = path_of(path, "path")
        settings = read_settings(folder)
        pooling = read_pooling(folder, settings)
        tokenizer = read_tokenizer(folder, settings)
        return cls(folder, settings, _float_policy(policy), pooling, tokenizer)

    def with_policy(self, policy: str | DTypePolicy) -> "BertEncoder":
        """Return the model under another policy, with its weights read anew from the folder.

        Parameters
        ----------
        policy : str or DTypePolicy
            As in :meth:`from_folder`.

        Returns
        -------
        BertEncoder

        Raises
        ------
        OSError
            The folder is not there any more.
        ValueError
            Its files have changed and do not fit, or `policy` is none.
        """
        other = copy(self)
        other._network = _read_network(self._folder, self._settings, _float_policy(policy))
        return other

    @property
    def layers(self) -> list[Layer]:
        """The layers in the order of their use; attention has more inside it."""
        return self._network.layers

    @property
    def kernel_names(self) -> dict[str, str]:
        """The path of each layer with a kernel -> the name of its tensor in the checkpoint."""
        return self._network.kernel_names

    def encode(
        self, texts: str | Iterable[str], batch_size: int = 32, normalize: bool = True, show_progress: bool = False
    ) -> Array:
        """Embed texts.

        Parameters
        ----------
        texts : str or iterable of str
            Texts are cut off at `max_length` tokens. An empty text is a text if the tokenizer adds special tokens.
        batch_size : int
            Texts of similar length that go through the network at once; no result depends on it.
        normalize : bool
            Whether to scale every embedding to length 1.
        show_progress : bool
            Whether to show a bar on stderr (needs tqdm).

        Returns
        -------
        ndarray of float32, shape (len(texts), dim)
            In the order of `texts`; of shape (dim,) for a single str, as in sentence-transformers.

        Raises
        ------
        TypeError
            A text is not a str.
        ValueError
            `batch_size` is no positive integer; a text has no token, or a character that UTF-8 cannot encode.
        """
        batch_size = positive_integer(batch_size, "batch_size")
        if isinstance(texts, str):
            return self.encode([texts], batch_size, normalize).reshape(self.dim)
        rows = self._tokenize(list_of_texts(texts, "texts"))
        longest_first = np.argsort([-len(row) for row in rows], kind="stable")
        batches = [longest_first[start : start + batch_size] for start in range(0, len(rows), batch_size)]
        embeddings = np.empty((len(rows), self.dim), np.float32)
        for batch in progress(batches, show=show_progress, total=len(batches), unit="batch"):
            embeddings[batch] = self.embed_tokens(*_pad([rows[index] for index in batch]))
        if normalize:
            lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
            embeddings /= np.maximum(lengths, np.finfo(np.float32).tiny)
        return embeddings

    def embed_tokens(self, ids: Array, mask: Array | None = None) -> Array:
        """Embed texts that are tokens already.

        Parameters
        ----------
        ids : ndarray of int, shape (n, length)
            Vocabulary indices, special tokens included.
        mask : ndarray, shape (n, length), optional
            True where there is a token, False where there is padding; at least one token in a row.

        Returns
        -------
        ndarray of float32, shape (n, dim)
            The pooled embeddings, not normalized.

        Raises
        ------
        TypeError
            `ids` are not integers, or `ids` or `mask` a masked array.
        ValueError
            A shape does not fit, an index is outside the vocabulary, or a row of `mask` has no token.
        """
        ids = imported(ids, "ids")
        mask = np.ones(ids.shape, bool) if mask is None else as_mask(mask)
        self._check_tokens(ids, mask)
        attention_mask = None if mask.all() else mask[:, np.newaxis, :]
        return self._pool(self._network(ids, attention_mask), mask)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in the form in which a run reads them."""
        return self._network.weight_bytes

    def _tokenize(self, texts: list[str]) -> list[Array]:
        """Return the vocabulary indices of each text."""
        rows = [
            np.array(encoding.ids, np.int32)
            for start in range(0, len(texts), _TOKENIZED_AT_ONCE)
            for encoding in self._tokenizer.encode_batch_fast(texts[start : start + _TOKENIZED_AT_ONCE])
        ]
        for position, row in enumerate(rows):
            if not row.size:
                raise ValueError(f"`texts[{position}]` must have a token; the model's tokenizer gives it none")
        return rows

    def _check_tokens(self, ids: Array, mask: Array) -> None:
        settings = self._settings
        if ids.dtype.kind not in "iu":
            raise TypeError(f"`ids` must be integers; received {ids.dtype}")
        if ids.ndim != 2 or not 1 <= ids.shape[1] <= settings.max_position_embeddings:
            limit = settings.max_position_embeddings
            raise ValueError(f"`ids` must have shape (n, 1 to {limit}); received {ids.shape}")
        if ids.size and not 0 <= ids.min() <= ids.max() < settings.vocab_size:
            raise ValueError(f"`ids` must be from 0 to {settings.vocab_size - 1}; received {ids.min()} to {ids.max()}")
        if mask.shape != ids.shape:
            raise ValueError(f"`mask` must have the shape of `ids`, {ids.shape}; received {mask.shape}")
        if not mask.any(axis=1).all():
            raise ValueError(f"`mask` must have a token in every row; received none in row {mask.any(axis=1).argmin()}")


def _read_network(folder: Path, settings: Settings, policy: DTypePolicy) -> Network:
    return Network(settings, Weights.open(folder, settings.num_hidden_layers), policy)


def list_of_texts(texts: str | Iterable[str], argument: str) -> list[str]:
    """Return one text or several as a list; raise unless all are str that a tokenizer takes."""
    if not isinstance(texts, Iterable):
        raise TypeError(f"`{argument}` must be a str or an iterable of str; received {type(texts).__name__}")
    texts = [texts] if isinstance(texts, str) else list(texts)
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"`{argument}[{position}]` must be a str; received {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"`{argument}[{position}]` must be text that UTF-8 can encode: {error}") from None
    return texts


def _pad(rows: list[Array]) -> tuple[Array, Array]:
    """Return `rows` as one array, padded on the right, and the mask of their tokens."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max()) < lengths[:, np.newaxis]
    ids = np.zeros(mask.shape, np.int32)
    ids[mask] = np.concatenate(rows)
    return ids, mask


def _mean(hidden: Array, mask: Array) -> Array:
    totals = ops.matmul(mask.astype(hidden.dtype)[:, np.newaxis, :], hidden, out_dtype="float32")
    means: Array = totals[:, 0] / mask.sum(axis=1, keepdims=True, dtype=np.float32)
    return means


def _first(hidden: Array, mask: Array) -> Array:
    return ops.cast(hidden[np.arange(len(mask)), mask.argmax(axis=1)], "float32")


def _maximum(hidden: Array, mask: Array) -> Array:
    masked = np.where(mask[:, :, np.newaxis], ops.cast(hidden, "float32"), np.float32(-np.inf))
    maxima: Array = masked.max(axis=1)
    return maxima


_POOL: dict[str, Callable[[Array, Array], Array]] = {"mean": _mean, "cls": _first, "max": _maximum}


def _float_policy(policy: Any) -> DTypePolicy:
    found = dtype_policies.get(policy)
    if "float" not in found.compute_dtype:
        raise ValueError(f"`policy` must compute in a floating-point dtype; received {policy!r}")
    return found
