"""Sparse encoders: texts in, weights of tokens of the vocabulary out, from a folder as sentence-transformers writes it.

SPLADE [1]_ gives a text the tokens that a masked language model expects in it; static ones have a weight for each token
that is in the text.

.. [1] T. Formal, B. Piwowarski, S. Clinchant, "SPLADE: Sparse Lexical and Expansion Model for First Stage Ranking",
   SIGIR 2021; max pooling: T. Formal et al., arXiv:2109.10086, 2021.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.dtype_policies import DTypePolicy
from mp_core.models.architectures import architecture_of
from mp_core.models.folder import read_object
from mp_core.models.masked import MaskedModel
from mp_core.models.modules import (
    TRANSFORMER,
    Modules,
    Rule,
    check,
    modules_listed,
    only,
    read_known,
    read_prompts,
    token_limit,
)
from mp_core.models.prompted import PromptedModel
from mp_core.models.texts import Text, batches
from mp_core.utilities.arguments import path_of, positive_integer

__all__ = ["SparseEncoder", "SparseVectors"]


@dataclass(frozen=True, slots=True, eq=False)
class SparseVectors:
    """Vectors most of whose numbers are 0: of each, the places of the others and these numbers.

    Attributes
    ----------
    indices : ndarray of int32, shape (numbers,)
        The places of the numbers of all vectors, one vector behind the other, ascending in each.
    values : ndarray of float32, shape (numbers,)
    offsets : ndarray of int64, shape (n + 1,)
        Where each vector begins in these, and the last one ends.
    dim : int
        How long the vectors are.

    Examples
    --------
    >>> vectors = SparseVectors.of(np.array([[0, 2, 0, 1], [0, 0, 0, 0]], np.float32))
    >>> vectors[0]
    (array([1, 3], dtype=int32), array([2., 1.], dtype=float32))
    >>> vectors.similarity(vectors)
    array([[5., 0.],
           [0., 0.]], dtype=float32)
    """

    indices: Array
    values: Array
    offsets: Array
    dim: int

    @classmethod
    def of(cls, rows: Array, most: int | None = None) -> "SparseVectors":
        """Return the numbers of rows, shape (n, dim), that are not 0: all, or the `most` largest of each row."""
        if most is not None and most < rows.shape[1]:
            least = np.partition(rows, -most, axis=1)[:, -most, np.newaxis]
            kept = (rows > least) & (rows != 0)
            room = most - kept.sum(axis=1, keepdims=True)
            ties = (rows == least) & (rows != 0)
            kept |= ties & (np.cumsum(ties, axis=1) <= room)
        else:
            kept = rows != 0
        row, indices = np.nonzero(kept)
        offsets = np.searchsorted(row, np.arange(len(rows) + 1))
        return cls(indices.astype(np.int32), rows[row, indices], offsets.astype(np.int64), rows.shape[1])

    @classmethod
    def stacked(cls, vectors: list[tuple[Array, Array]], dim: int) -> "SparseVectors":
        """Return vectors of this length, each of which is its indices and values."""
        offsets = np.cumsum([0, *(len(values) for _, values in vectors)])
        indices = np.concatenate([np.empty(0, np.int32), *(places for places, _ in vectors)])
        values = np.concatenate([np.empty(0, F32), *(values for _, values in vectors)])
        return cls(indices, values, offsets.astype(np.int64), dim)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, position: int) -> tuple[Array, Array]:
        """Return the indices and values of one vector."""
        position = range(len(self))[position]
        own = slice(*self.offsets[position : position + 2])
        return self.indices[own], self.values[own]

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        return map(self.__getitem__, range(len(self)))

    def to_scipy(self) -> Any:
        """Return a ``scipy.sparse.csr_array`` of shape (n, dim), which shares the memory of the numbers."""
        sparse = import_module("scipy.sparse")
        return sparse.csr_array((self.values, self.indices, self.offsets), (len(self), self.dim), copy=False)

    def toarray(self) -> Array:
        """Return an array of shape (n, dim), zeros included."""
        out = np.zeros((len(self), self.dim), F32)
        out[np.repeat(np.arange(len(self)), np.diff(self.offsets)), self.indices] = self.values
        return out

    def similarity(self, other: "SparseVectors") -> Array:
        """Return the scalar product of each vector and each of others, float32 of shape (n, m).

        Raises
        ------
        ValueError
            The others have another length.
        """
        if self.dim != other.dim:
            raise ValueError(f"`other` must have vectors of {self.dim} numbers; received {other.dim}")
        used = np.unique(self.indices)
        place = np.full(self.dim, -1, np.int32)
        place[used] = np.arange(len(used))
        left, right = (np.zeros((len(x), len(used)), F32) for x in (self, other))
        for x, dense in ((self, left), (other, right)):
            columns, row = place[x.indices], np.repeat(np.arange(len(x)), np.diff(x.offsets))
            dense[row[columns >= 0], columns[columns >= 0]] = x.values[columns >= 0]
        products: Array = ops.matmul(left, right.T)
        return products


class SparseEncoder(PromptedModel):
    """A sparse encoder: texts in, weights of tokens out. :meth:`from_folder` builds one.

    Attributes
    ----------
    model : Model
        The network.
    dim : int
        The length of a vector: the size of the vocabulary.
    max_length : int
        The most tokens a text may have, its special tokens included; :meth:`encode_sparse` cuts off the rest.
    prompts : dict of str to str
        Name -> text to put before a text, as the folder lists them.
    default_prompt_name : str or None
        The name of the prompt that :meth:`encode_sparse` uses if the caller names none.
    tensor_names, kernel_names : dict of str to str
        As those of :class:`BertEncoder`.

    Examples
    --------
    >>> encoder = SparseEncoder.from_folder("splade-tiny", policy="mixed_bfloat16")  # doctest: +SKIP
    >>> indices, values = encoder.encode_sparse(["Where does it rain?"])[0]  # doctest: +SKIP
    """

    kind = MaskedModel
    model: MaskedModel

    def __init__(self, folder: Path, modules: Modules, logs: int, policy: str | DTypePolicy | None) -> None:
        MaskedModel.check(modules.config, modules.network / "config.json")
        super().__init__(folder, modules, policy)
        self._logs = logs
        self.dim = modules.settings.vocab_size

    def __repr__(self) -> str:
        size, policy = f"{self.weight_bytes / 1e6:.1f} MB", self.model.dtype_policy.name
        return f"<SparseEncoder {str(self._folder)!r}: dim={self.dim}, policy={policy}, {size} of weights>"

    @classmethod
    def from_folder(cls, path: str | PathLike[str], policy: str | DTypePolicy | None = None) -> "SparseEncoder":
        """Load a model.

        Parameters
        ----------
        path : path
            Folder of a ``SparseEncoder`` as sentence-transformers saves it: a network with the head of a masked
            language model, of one of the kinds of :data:`mp_core.models.masked.MASKED`, and a ``SpladePooling``.
        policy : str or DTypePolicy, optional
            As in :meth:`mp_core.models.BertEncoder.from_folder`. The layers of the head are at ``head/dense``,
            ``head/norm`` and ``head/output``.

        Raises
        ------
        OSError
            A file is missing or unreadable.
        ValueError
            A file holds something else than expected, or a setting that mp_core does not know.
        ImportError
            The tokenizers package is missing.
        """
        folder = path_of(path, "path")
        return cls(folder, *_read(folder), policy)

    def encode_sparse(
        self,
        texts: Text | Iterable[Text],
        batch_size: int = 32,
        show_progress: bool = False,
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        max_active_dims: int | None = None,
    ) -> SparseVectors:
        """Return the weights of tokens of texts.

        Parameters
        ----------
        texts : str or iterable of str
            As in :meth:`mp_core.models.BertEncoder.encode`; one str is a list of one text.
        batch_size : int
            Texts of similar length that go through the network at once; no result depends on it.
        show_progress : bool
            Whether to show a bar on stderr (needs tqdm).
        prompt, prompt_name : str, optional
            What is put before each text, or its name; by default `default_prompt_name`.
        max_active_dims : int, optional
            How many numbers of a vector to keep at most: the largest, of equal ones the first. Default: all.

        Returns
        -------
        SparseVectors
            In the order of `texts`.

        Raises
        ------
        TypeError, ValueError
            As :meth:`mp_core.models.BertEncoder.encode`; `max_active_dims` is no positive integer.
        """
        batch_size = positive_integer(batch_size, "batch_size")
        most = None if max_active_dims is None else positive_integer(max_active_dims, "max_active_dims")
        tokens = self.tokenize(texts, prompt=prompt, prompt_name=prompt_name)
        found: list[tuple[Array, Array] | None] = [None] * len(tokens)
        for batch in batches(tokens.rows, batch_size, show_progress):
            for place, vector in zip(batch, self._vectors([tokens.rows[i] for i in batch], most), strict=True):
                found[place] = vector
        return SparseVectors.stacked([vector for vector in found if vector is not None], self.dim)

    def _vectors(self, rows: list[Array], most: int | None) -> SparseVectors:
        offsets = np.cumsum([0, *map(len, rows)]).astype(np.int32)
        ids = np.concatenate(rows).astype(np.int32, copy=False)
        return SparseVectors.of(self.model.pooled(ids, offsets, self._modules.poolings[0], self._logs), most)


_SPLADE: dict[str, Rule] = {
    "pooling_strategy": only("max", "sum"),
    "activation_function": only("relu", "log1p_relu"),
    "embedding_dimension": (lambda value: value is None or type(value) is int, "an integer or null"),
    "word_embedding_dimension": (lambda value: value is None or type(value) is int, "an integer or null"),
}
_NETWORK = TRANSFORMER | {
    "transformer_task": only("fill-mask"),
    "modality_config": only({"text": {"method": "forward", "method_output_name": "logits"}}),
}


def _read(folder: Path) -> tuple[Modules, int]:
    """Return the settings of a folder, and how often ``log1p`` is applied to logits."""
    (_, network), (_, pooling) = modules_listed(folder, (("Transformer", "MLMTransformer"), ("SpladePooling",)), ())
    path = network / "config.json"
    config = read_object(path)
    settings = architecture_of(config, path).read(config, path)
    said = read_object(pooling / "config.json")
    check(pooling / "config.json", said, _SPLADE)
    path = network / "sentence_bert_config.json"
    transformer = read_known(path, _NETWORK)
    modules = Modules(
        network=network,
        config=config,
        settings=settings,
        poolings=(said.get("pooling_strategy", "max"),),
        include_prompt=True,
        steps=(),
        max_length=token_limit(path, transformer, "max_seq_length"),
        lower_case=transformer.get("do_lower_case", False),
        **read_prompts(folder / "config_sentence_transformers.json", "SparseEncoder"),
    )
    return modules, 1 + (said.get("activation_function", "relu") == "log1p_relu")
