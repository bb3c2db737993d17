"""Sparse encoders: texts in, weights of vocabulary tokens out, from folders of sentence-transformers.

SPLADE [1]_ weights the tokens that a masked language model predicts for a text. Static encoders have a fixed weight for
each token of the text.

.. [1] T. Formal, B. Piwowarski, S. Clinchant, "SPLADE: Sparse Lexical and Expansion Model for First Stage Ranking",
   SIGIR 2021; max pooling: T. Formal et al., arXiv:2109.10086, 2021.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.models.masked import MaskedModel
from mp_core.models.modules import (
    TRANSFORMER,
    Modules,
    kinds_of,
    modules_needed,
    read_network,
    read_pooled,
    read_prompts,
    router_in,
)
from mp_core.models.network import TextNetwork
from mp_core.models.prompted import ATTRIBUTES, PromptedModel
from mp_core.models.rules import only
from mp_core.models.settings import unexpected
from mp_core.models.sparse_ends import AutoEncoder, Splade, TokenWeights, static_weights
from mp_core.models.steps import KINDS_OF_STEPS, apply_steps
from mp_core.models.texts import Text, Tokens, as_ragged, list_of_texts
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.utilities.arguments import path_of, positive_integer
from mp_core.utilities.docstrings import documented
from mp_core.utilities.system import is_present

__all__ = ["SparseEncoder", "SparseVectors"]


@dataclass(frozen=True, slots=True, eq=False)
class SparseVectors:
    """Sparse vectors in CSR form: vector i has the ``values[a:b]`` at ``indices[a:b]``, a, b = ``offsets[i:i + 2]``.

    Attributes
    ----------
    indices : ndarray of int32, shape (numbers,)
        The indices of the non-zero numbers of all vectors, concatenated; ascending within a vector.
    values : ndarray of float32, shape (numbers,)
    offsets : ndarray of int64, shape (n + 1,)
        The bounds of the vectors in `indices` and `values`.
    dim : int
        The length of the vectors.

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
        """Return the non-zero numbers of `rows`, shape (n, dim), or only the `most` largest ones of each row."""
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
        """Return vectors of length `dim` from a list of (indices, values)."""
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
        """Return a ``scipy.sparse.csr_array`` of shape (n, dim) that shares the memory of the numbers."""
        sparse = import_module("scipy.sparse")
        return sparse.csr_array((self.values, self.indices, self.offsets), (len(self), self.dim), copy=False)

    def toarray(self) -> Array:
        """Return an array of shape (n, dim), zeros included."""
        out = np.zeros((len(self), self.dim), F32)
        out[np.repeat(np.arange(len(self)), np.diff(self.offsets)), self.indices] = self.values
        return out

    def similarity(self, other: "SparseVectors") -> Array:
        """Return the scalar products of all pairs of vectors, float32 of shape (n, m)."""
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


@documented(ATTRIBUTES)
class SparseEncoder(PromptedModel):
    """A sparse encoder: texts in, weights of the vocabulary's tokens out. Create it by :meth:`from_folder`.

    Examples
    --------
    >>> encoder = SparseEncoder.from_folder("splade-tiny", policy="mixed_bfloat16")  # doctest: +SKIP
    >>> indices, values = encoder.encode_sparse(["Where does it rain?"])[0]  # doctest: +SKIP
    """

    vector_kinds = ("sparse",)

    def __init__(self, folder: Path, parts: "_Parts", policy: str | DTypePolicy | None) -> None:
        modules, self._end = parts.modules, parts.end
        self._weights = {route: TokenWeights.read(each) for route, each in parts.weights.items()}
        if isinstance(self._end, Splade):
            MaskedModel.check(modules.config, modules.network / "config.json")
            self.kind = MaskedModel
        super().__init__(folder, modules, policy)
        self.dim = len(self._end.after) if isinstance(self._end, AutoEncoder) else modules.settings.vocab_size
        for route, each in parts.weights.items():
            if each.settings.vocab_size != self.dim:
                found, expected = each.settings.vocab_size, f"{self.dim}, the length of other vectors"
                raise ValueError(f"{each.network}: the route {route} has {found} weights; expected {expected}")

    @classmethod
    def from_folder(cls, path: str | PathLike[str], policy: str | DTypePolicy | None = None) -> "SparseEncoder":
        """Load a model.

        Parameters
        ----------
        path : path
            Folder of a ``SparseEncoder`` of sentence-transformers, with one of these:

            * a masked language model with a ``model_type`` in :data:`mp_core.models.masked.MASKED`, and a
              ``SpladePooling``;
            * the same model without ``modules.json``: its logits are pooled by maximum, as in SPLADE;
            * a network, its pooling and a ``SparseAutoEncoder``;
            * a ``SparseStaticEmbedding`` alone.

            With a ``Router``, at most one route may be of another kind than the last.
        policy : str or DTypePolicy, optional
            As in :meth:`mp_core.models.TextEncoder.from_folder`. The paths of the head's layers are ``head/dense``,
            ``head/norm`` and ``head/output``. Static weights are float32 under every policy.
        """
        folder = path_of(path, "path")
        return cls(folder, _read(folder), policy)

    def encode_sparse(
        self,
        texts: Text | Iterable[Text],
        batch_size: int = 32,
        show_progress: bool = False,
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        max_active_dims: int | None = None,
        task: str | None = None,
    ) -> SparseVectors:
        """Return a sparse vector of token weights for each text.

        Parameters
        ----------
        texts, batch_size, show_progress
            Those of :meth:`mp_core.models.TextEncoder.encode`; a single str counts as a list of one text.
        prompt, prompt_name : str, optional
            The prompt before each text, or its name. Default: `default_prompt_name`.
        max_active_dims : int, optional
            The most numbers of a vector to keep: the largest ones; among equal ones the first. Default: the folder's
            setting, or all.
        task : str, optional
            The kind of the texts, such as ``"query"`` or ``"document"``. It selects the route in folders with routes,
            and the prompt of that name, if there is one and no prompt is given.

        Returns
        -------
        SparseVectors
            In the order of `texts`.
        """
        tokens = self.tokenize(texts, prompt=prompt, prompt_name=prompt_name, task=task)
        return self.encode_sparse_tokens(tokens, batch_size, show_progress, max_active_dims=max_active_dims, task=task)

    def tokenize(
        self,
        texts: Text | Iterable[Text],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        from_start: bool | None = None,
        task: str | None = None,
    ) -> Tokens:
        """Return the tokens of texts for :meth:`encode_sparse_tokens`. It may run in another thread.

        Parameters
        ----------
        texts, prompt, prompt_name, task
            Those of :meth:`encode_sparse`.
        from_start : bool, optional
            Whether texts that are too long are truncated at their start instead of their end. Default: the tokenizer's
            setting.
        """
        if prompt is None and prompt_name is None and task in self.prompts:
            prompt_name = task
        weights = self._weights_of(task)
        if weights is None:
            return super().tokenize(texts, prompt=prompt, prompt_name=prompt_name, from_start=from_start)
        prefix = self._prompt(prompt, prompt_name)
        given = [prefix + text for text in list_of_texts(texts, "texts")]
        return Tokens(*weights.tokenizer(given, from_start=from_start))

    def encode_sparse_tokens(
        self,
        tokens: Tokens,
        batch_size: int = 32,
        show_progress: bool = False,
        *,
        max_active_dims: int | None = None,
        task: str | None = None,
        on_batch: Callable[[int], object] | None = None,
    ) -> SparseVectors:
        """Return the sparse vectors of tokenized texts: :meth:`encode_sparse` after :meth:`tokenize`.

        `on_batch` is called after each batch with its number of texts; the other arguments are those of
        :meth:`encode_sparse`.
        """
        most = self._modules.max_active_dims
        if max_active_dims is not None:
            most = positive_integer(max_active_dims, "max_active_dims")
        weights = self._weights_of(task)

        def vectors(texts: Tokens, positions: Array) -> SparseVectors:
            if weights is not None:
                own = weights(texts.rows)
                self._check(own, texts.rows, positions)
                return SparseVectors.of(own, most)
            return self._vectors(texts.rows, positions, texts.skipped, most)

        return SparseVectors.stacked(self.each(vectors, tokens, batch_size, show_progress, on_batch), self.dim)

    def _weights_of(self, task: str | None) -> TokenWeights | None:
        """Return the static token weights for a task; None if a network computes its vectors."""
        router = self._modules.router
        if router is None and task not in (None, "query", "document"):
            raise ValueError(f"`task` must be 'query' or 'document'; received {task!r}")
        own = TokenWeights(self.model, self._tokenizer) if self._end is None else None
        return own if router is None else self._weights.get(router.route_of(task), own)

    def _vectors(self, rows: list[Array], positions: Array, skipped: int, most: int | None) -> SparseVectors:
        ids, offsets = as_ragged(rows)
        if isinstance(self._end, Splade):
            weights = self._of_vocabulary(self.model, ids, offsets)
            self._check(weights, rows, positions)
            return SparseVectors.of(weights, most)
        hidden, longest = self.model.ragged(ids, offsets), self.model.settings.max_length
        pooled = ops.ragged_pool(hidden, offsets, self._modules.poolings, skipped, longest)
        end: Any = self._end
        found = end(apply_steps(self._modules.steps, pooled, None))
        self._check([*zip(pooled, found, strict=True)], rows, positions)
        return SparseVectors.of(found, most or end.most)

    def _of_vocabulary(self, model: TextNetwork, ids: Array, offsets: Array) -> Array:
        network, end = cast(MaskedModel, model), cast(Splade, self._end)
        return network.pooled(ids, offsets, end.pooling, end.logs)

    def _run_alone(self, model: TextNetwork, row: Array, types: Array | None) -> None:
        if isinstance(self._end, Splade):
            self._of_vocabulary(model, *as_ragged([row]))
        else:
            super()._run_alone(model, row, types)


_NETWORK = TRANSFORMER | {
    "transformer_task": only("fill-mask"),
    "modality_config": only({"text": {"method": "forward", "method_output_name": "logits"}}),
}


@dataclass(frozen=True, slots=True)
class _Parts:
    """The content of a folder: the modules of the network, the module after them, and the weights of static routes.

    If the folder has static weights only, those of the first route are the network, and `end` is None.
    """

    modules: Modules
    end: Splade | AutoEncoder | None
    weights: Mapping[str, Modules]


def _read(folder: Path) -> _Parts:
    prompts, router = read_prompts(folder / "config_sentence_transformers.json", "SparseEncoder"), router_in(folder)
    weights: dict[str, Modules] = {}
    networks: list[str | None] = []
    for route in (None,) if router is None else router.routes:
        if kinds_of(folder, route)[:1] != ["SparseStaticEmbedding"]:
            networks.append(route)
            continue
        ((_, home),) = modules_needed(folder, (("SparseStaticEmbedding",),), (), route)
        weights[str(route)] = static_weights(home, prompts)
    if len(networks) > 1:
        raise ValueError(f"{folder / 'modules.json'} has {len(networks)} routes with a network; expected 1 at most")
    modules, end = _read_network(folder, networks[0]) if networks else (weights.pop(next(iter(weights))), None)
    return _Parts(replace(modules, router=router, **prompts), end, weights)


def _read_network(folder: Path, route: str | None) -> tuple[Modules, Splade | AutoEncoder]:
    """Return the modules of the route with the network, and its last module, which makes sparse vectors."""
    if "SparseAutoEncoder" not in kinds_of(folder, route):
        if is_present(folder / "config.json") and not is_present(folder / "modules.json"):
            return _without_modules(folder)
        order = ("Transformer", "MLMTransformer"), ("SpladePooling",)
        (_, network), (_, pooling) = modules_needed(folder, order, (), route)
        return read_network(network, _NETWORK), Splade.read(pooling)
    dense = ("Transformer",), ("Pooling",)
    (_, network), (_, pooling), *others = modules_needed(folder, dense, (*KINDS_OF_STEPS, "SparseAutoEncoder"), route)
    *steps, (last, home) = others
    if last != "SparseAutoEncoder" or "SparseAutoEncoder" in [kind for kind, _ in steps]:
        raise ValueError(f"{folder / 'modules.json'}: 'SparseAutoEncoder' must be the last module, and once")
    modules = read_pooled(network, pooling, steps)
    width = [modules.settings.vector_size * len(modules.poolings), *(step.width for step in modules.steps)][-1]
    return modules, AutoEncoder.read(home, width)


def _without_modules(folder: Path) -> tuple[Modules, Splade]:
    """Return the modules of a lone masked language model, with max pooling as in sentence-transformers."""
    modules = read_network(folder, _NETWORK)
    names = modules.config.get("architectures")
    if not isinstance(names, list) or not is_masked(map(str, names)):
        raise unexpected(
            folder / "config.json", "architectures", names, "a ...ForMaskedLM, since there is no modules.json"
        )
    return modules, Splade("max", 1)


def is_masked(architectures: Iterable[str]) -> bool:
    """Return whether class names in ``config.json`` include a masked language model."""
    return any(name.endswith("ForMaskedLM") for name in architectures)
