"""BGE-M3 [1]_: one pass of the network gives a dense vector, a sparse vector and token vectors for each text.

.. [1] J. Chen et al., "BGE M3-Embedding: Multi-Lingual, Multi-Functionality, Multi-Granularity Text Embeddings Through
   Self-Knowledge Distillation", 2024, arXiv:2402.03216; the formulas are those of FlagEmbedding's BGEM3FlagModel.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.models.files import refuse_stretched
from mp_core.models.modules import Modules
from mp_core.models.multi import max_similarity
from mp_core.models.pooling import unit
from mp_core.models.settings import unexpected
from mp_core.models.sparse import SparseVectors
from mp_core.models.steps import apply_steps, checked_tensors
from mp_core.models.text_encoder import TextEncoder
from mp_core.models.texts import Text, Tokens, as_ragged
from mp_core.ops import PackedMatrix, pack
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.utilities.arguments import is_number
from mp_core.utilities.system import is_present

__all__ = ["M3Encoder", "M3Vectors", "has_heads"]

_FILES = _SPARSE, _MULTI = "sparse_linear.pt", "colbert_linear.pt"
_WITHOUT_WEIGHT = {"cls_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
"""Entry of ``tokenizer_config.json`` -> the default of this special token. Special tokens get no weight."""


@dataclass(frozen=True, slots=True, eq=False)
class M3Vectors:
    """The three kinds of vectors of n texts.

    Attributes
    ----------
    dense : ndarray of float32, shape (n, dim)
        One vector for each text.
    sparse : SparseVectors
        The weights of the tokens that occur in each text.
    multi : list of ndarray of float32, shapes (tokens - 1, width)
        For each text, one vector for each token except the first.

    Examples
    --------
    >>> sparse = SparseVectors.of(np.float32([[0, 2, 0], [0, 0, 1]]))
    >>> texts = M3Vectors(np.eye(2, dtype=np.float32), sparse, [np.float32([[1, 0]]), np.float32([[0, 1]])])
    >>> len(texts)
    2
    >>> texts.similarity(texts, weights=(0, 1, 0))  # only the sparse vectors: 2 * 2 and 1 * 1
    array([[4., 0.],
           [0., 1.]], dtype=float32)
    """

    dense: Array
    sparse: SparseVectors
    multi: list[Array]

    def __len__(self) -> int:
        return len(self.multi)

    def similarity(self, other: "M3Vectors", weights: Sequence[float] = (1.0, 1.0, 1.0)) -> Array:
        """Return the similarity of each text, as a query, to each text of `other`, as FlagEmbedding computes it.

        It is the weighted mean of three numbers: the scalar product of the dense vectors, that of the sparse vectors,
        and MaxSim divided by the number of vectors of the query.

        Parameters
        ----------
        other : M3Vectors
            The vectors of m documents.
        weights : sequence of three float
            The weights of the dense, sparse and multi-vector similarity: not negative, and not all 0.

        Returns
        -------
        ndarray of float32, shape (n, m)

        Examples
        --------
        >>> one = M3Vectors(np.ones((1, 1), np.float32), SparseVectors.of(np.eye(1, 3, dtype=np.float32)),
        ...                 [np.eye(2, dtype=np.float32)])
        >>> one.similarity(one, weights=(0.4, 0.2, 0.4))
        array([[1.]], dtype=float32)
        """
        if len(weights) != 3 or not all(is_number(w) and 0 <= w < np.inf for w in weights) or not any(weights):
            raise ValueError(f"`weights` must be three numbers of at least 0, not all 0; received {weights!r}")
        if self.dense.shape[1] != other.dense.shape[1]:
            expected = f"dense vectors of {self.dense.shape[1]} numbers"
            raise ValueError(f"`other` must have {expected}; received {other.dense.shape[1]}")
        counts = np.array([[max(len(vectors), 1)] for vectors in self.multi], F32).reshape(-1, 1)
        parts = (
            ops.matmul(self.dense, other.dense.T),
            self.sparse.similarity(other.sparse),
            max_similarity(self.multi, other.multi) / counts,
        )
        total = sum(F32.type(w) * part for w, part in zip(weights, parts, strict=True) if w)
        scores: Array = total / F32.type(sum(weights))
        return scores


def has_heads(folder: Path) -> bool:
    """Return whether a folder has the two extra files of an :class:`M3Encoder`."""
    return all(is_present(folder / name) for name in _FILES)


class _TextVectors(NamedTuple):
    """The three kinds of vectors of one text; the sparse one as (indices, values)."""

    dense: Array
    sparse: tuple[Array, Array]
    multi: Array


class M3Encoder(TextEncoder):
    """An encoder like BGE-M3: one pass gives a dense vector, a sparse vector and token vectors for each text.

    It is a :class:`TextEncoder`; :meth:`encode` returns the dense vectors alone. :meth:`from_folder` creates one from
    a folder with ``sparse_linear.pt`` and ``colbert_linear.pt`` beside the network.

    Attributes
    ----------
    multi_dim : int
        The length of the token vectors.

    Examples
    --------
    >>> encoder = M3Encoder.from_folder("bge-m3", policy="mixed_bfloat16")  # doctest: +SKIP
    >>> vectors = encoder.encode_all(["Where does it rain?", "It rains in the north."])  # doctest: +SKIP
    >>> vectors.dense.shape, vectors.sparse[0], vectors.multi[0].shape  # doctest: +SKIP
    """

    vector_kinds = ("dense", "sparse", "multi-vector")

    def __init__(self, folder: Path, modules: Modules, policy: str | DTypePolicy | None) -> None:
        kind = modules.config["model_type"]
        if kind != "xlm-roberta":
            raise unexpected(modules.network / "config.json", "model_type", kind, "'xlm-roberta', as of BGE-M3")
        super().__init__(folder, modules, policy)
        width = modules.settings.hidden_size
        self._weigh, self._project = (
            _head(modules.network / name, width, units) for name, units in zip(_FILES, (1, None), strict=True)
        )
        self.multi_dim = self._project[0].shape[1]
        words = (self._tokenizer.special(entry) or word for entry, word in _WITHOUT_WEIGHT.items())
        self._unused = [index for index in map(self._tokenizer.index_of, words) if index is not None]

    def encode_all(
        self,
        texts: Text | Iterable[Text],
        batch_size: int = 32,
        show_progress: bool = False,
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> M3Vectors:
        """Return the three kinds of vectors of texts, with one pass of the network for each batch.

        Parameters
        ----------
        texts, batch_size, show_progress, prompt, prompt_name
            Those of :meth:`TextEncoder.encode`; a single str counts as a list of one text.

        Returns
        -------
        M3Vectors
            In the order of `texts`. Dense vectors have the same bits as from :meth:`encode`; token vectors have length
            1. The weight of a token is the largest one over all its positions; special tokens have none.
        """
        tokens = self.tokenize(texts, prompt=prompt, prompt_name=prompt_name)
        return self.encode_all_tokens(tokens, batch_size, show_progress)

    def encode_all_tokens(self, tokens: Tokens, batch_size: int = 32, show_progress: bool = False) -> M3Vectors:
        """Return the vectors of tokenized texts: :meth:`encode_all` after :meth:`tokenize`."""
        found = self.each(self._vectors, tokens, batch_size, show_progress)
        dense = np.array([own.dense for own in found], F32).reshape(len(found), self.dim)
        return M3Vectors(dense, self._stacked([own.sparse for own in found]), [own.multi for own in found])

    def encode_sparse_tokens(
        self,
        tokens: Tokens,
        batch_size: int = 32,
        show_progress: bool = False,
        *,
        on_batch: Callable[[int], object] | None = None,
    ) -> SparseVectors:
        """Return only the sparse vectors, as :class:`SparseEncoder` does."""

        def vectors(texts: Tokens, positions: Array) -> list[tuple[Array, Array]]:
            return [own.sparse for own in self._vectors(texts, positions)]

        return self._stacked(self.each(vectors, tokens, batch_size, show_progress, on_batch))

    def encode_multi_tokens(
        self,
        tokens: Tokens,
        batch_size: int = 32,
        show_progress: bool = False,
        *,
        on_batch: Callable[[int], object] | None = None,
    ) -> list[Array]:
        """Return only the token vectors, as :class:`MultiVectorEncoder` does."""

        def vectors(texts: Tokens, positions: Array) -> list[Array]:
            return [own.multi for own in self._vectors(texts, positions)]

        return self.each(vectors, tokens, batch_size, show_progress, on_batch)

    def _vectors(self, texts: Tokens, positions: Array) -> list[_TextVectors]:
        """Return the three kinds of vectors of each text of a batch."""
        ids, offsets = as_ragged(texts.rows)
        hidden = self.model.ragged(ids, offsets)
        pooled = ops.ragged_pool(hidden, offsets, self.poolings, texts.skipped, self.model.settings.max_length)
        dense = ops.cast(apply_steps(self._modules.steps, pooled, None)[:, : self.dim], F32)
        hidden = ops.cast(hidden, F32)
        weights = np.maximum(_product(self._weigh, hidden)[:, 0], 0)
        found, outputs = [], []
        for row, (begin, end) in zip(dense, pairwise(offsets), strict=True):
            multi = unit(_product(self._project, hidden[begin + 1 : end]))
            found.append(_TextVectors(row, self._lexical(ids[begin:end], weights[begin:end]), multi))
            outputs.append((row, weights[begin:end], multi))
        self._check(outputs, texts.rows, positions)
        return found

    def _stacked(self, vectors: list[tuple[Array, Array]]) -> SparseVectors:
        return SparseVectors.stacked(vectors, self.model.settings.vocab_size)

    def _lexical(self, ids: Array, weights: Array) -> tuple[Array, Array]:
        """Return the tokens of a text with a weight above 0, ascending, and the largest weight of each."""
        kept = (weights > 0) & ~np.isin(ids, self._unused)
        indices, places = np.unique(ids[kept], return_inverse=True)
        values = np.zeros(len(indices), F32)
        np.maximum.at(values, places, weights[kept])
        return indices.astype(np.int32), values


_Head = tuple[PackedMatrix, Array]


def _head(path: Path, width: int, units: int | None) -> _Head:
    """Return the packed matrix and the bias in a file; `units` None: any number of units."""
    from mp_core.files.checkpoint.torch_file import open_torch  # imported here: few models need zip archives

    tensors = open_torch(path)
    refuse_stretched(path, tensors)
    shape = getattr(tensors.get("weight"), "shape", ())
    units = units or (shape[0] if shape and shape[0] else width)
    matrix, bias = checked_tensors(path, tensors, {"weight": (units, width), "bias": (units,)})
    return pack(matrix.T), bias


def _product(head: _Head, hidden: Array) -> Array:
    outputs: Array = ops.matmul(hidden, head[0], bias=head[1])
    return outputs
