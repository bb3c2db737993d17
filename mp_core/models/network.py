"""A transformer encoder as a layer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mp_core.arrays import Array, as_mask
from mp_core.arrays.recorded import is_recorded
from mp_core.core.replay import awake
from mp_core.core.scopes import called_in
from mp_core.layers import Layer
from mp_core.layers.base.building import enclosing_path
from mp_core.layers.base.quantization import already_quantized, apply_to_all, convert_to, quantized_forms
from mp_core.models.architectures import Architecture, architecture_of
from mp_core.models.blocks import Shape
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.policies.dtype_policies.map import unquantized
from mp_core.utilities.arguments import positive_integer

__all__ = ["TextNetwork"]


@dataclass(frozen=True, slots=True)
class _Said:
    """What ``config.json`` says. Layers look for layers and variables in a dict, however long it is, but not here."""

    content: dict[str, Any]


class TextNetwork(Layer):
    """Token indices in, one vector for each token out: a network of one of the architectures that mp_core has.

    Its weights are zeros until they are set; :meth:`mp_core.models.TextEncoder.from_folder` reads them.

    Parameters
    ----------
    config : dict
        What ``config.json`` says, such as ``model_type`` and ``hidden_size``.
    types : int
        How many types of tokens there are in a text: 2 for pairs of texts, where the architecture tells them apart.
    **kwargs
        Those of :class:`~mp_core.layers.Layer`. The keys of a policy map are paths such as ``embeddings/word``,
        ``encoder/layer_0/attention/query`` and ``encoder/layer_0/output``; the name of the model is no part of them.

    Raises
    ------
    ValueError
        `config` says something that mp_core does not compute; `types` is no positive integer.
    TypeError
        `config` is no mapping.

    Examples
    --------
    >>> model = TextNetwork({"model_type": "bert", "vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1,
    ...                "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 16,
    ...                "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu"})
    >>> model(np.array([[1, 2, 3]])).shape, model.encoder.blocks[0].attention.query.path
    ((1, 3, 4), 'encoder/layer_0/attention/query')
    """

    _arrays = ("ids",)
    _options = ("config", "types")

    def __init__(self, config: Mapping[str, Any], types: int = 1, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        if not isinstance(config, Mapping):
            raise TypeError(f"`config` must be a dict; received {config!r}")
        self._said = _Said(dict(config))
        self.differs_from_files = False  # whether `fit` has trained weights, so that they are in no file yet
        self.types = positive_integer(types, "types")
        self.settings = self.architecture.read(self.config, "`config`")

    @property
    def config(self) -> dict[str, Any]:
        """What ``config.json`` says."""
        return self._said.content

    @property
    def architecture(self) -> Architecture:
        """The table that says how the network is built, and what its tensors are called."""
        return architecture_of(self.config, "`config`")

    def build(self, input_shape: Shape = (None, None)) -> None:
        """Create the layers, which do not depend on the shape of the indices."""
        called_in(enclosing_path, self._children_path, self._build_parts, (input_shape,))

    @property
    def _children_path(self) -> str:
        return str(self.path)[: -len(self.name)].rstrip("/")

    def _build_parts(self, input_shape: Shape) -> None:
        """Create the layers, at paths of which the model's name is no part."""
        self.embeddings = self.architecture.embeddings(
            self.settings, types=self.types, name="embeddings", dtype=self.dtype_policy
        )
        self.embeddings.build(input_shape)
        self.encoder = self.architecture.encoder(self.settings, name="encoder", dtype=self.dtype_policy)
        self.encoder.build((*input_shape, self.settings.hidden_size))

    def names(self, prefix: str) -> dict[str, str]:
        """Return the path of each layer -> how the names of its tensors begin, in a checkpoint with this prefix."""
        return {path: prefix + name for path, name in self.architecture.names(self.settings).items()}

    def aliases(self, tensors: Iterable[str], prefix: str) -> dict[str, str]:
        """Return the names of tensors that a checkpoint with these tensors has under another name -> that name."""
        return {}

    def shapes(self) -> dict[str, dict[str, int]]:
        """Return the path of each of the weights that hold all sizes -> the entry of each axis and its length."""
        return self.architecture.shapes(self.settings, self.config)

    def call(
        self,
        ids: Array,
        mask: Any = None,
        types: Array | None = None,
        places: Array | None = None,
        offsets: Array | None = None,
    ) -> Array:
        """Return the vectors of tokens, of texts padded to one length or of ragged ones.

        Parameters
        ----------
        ids : ndarray of int, shape (n, length)
            Vocabulary indices, special tokens included; floats may be whole numbers, as for an Embedding.
        mask : array-like, shape (n, length), optional
            True where there is a token, False where there is padding, to which no token attends. Every row needs at
            least one token. Default: there is no padding.
        types : ndarray of int, shape (n, length), optional
            The type of each token; default: 0.
        places, offsets : ndarray of int32, optional
            Of ragged texts, whose `ids`, shape (tokens,), lie one behind the other without padding: the rows of the
            table of positions that belong to the tokens, from ``model.embeddings.places``, and where each text
            begins and the last one ends, shape (n + 1,). They come from code that has checked them.

        Returns
        -------
        ndarray, shape (n, length, hidden_size), or (tokens, hidden_size) of ragged texts
            The vectors of all positions, padding included, in the output dtype of the last layer.

        Raises
        ------
        TypeError
            `ids` or `types` are no whole numbers, or `mask` is neither bool nor integers.
        ValueError
            A shape does not fit, an index is outside the vocabulary, or a row of `mask` has no token.
        """
        if offsets is not None:
            with awake():
                ragged: Array = self.encoder(self.embeddings(ids, places=places), offsets=offsets)
            return ragged
        ids = self._indices(ids, "ids", self.settings.vocab_size)
        types = None if types is None else self._indices(types, "types", self.types)
        for name, array in (("mask", mask), ("types", types)):
            if array is not None and np.shape(array) != ids.shape:
                raise ValueError(f"`{name}` must have the shape of `ids`, {ids.shape}; received {np.shape(array)}")
        keep = None if mask is None else as_mask(mask)
        if is_recorded(ids, keep):  # a plan looks each index up, and takes a mask as it is
            return self._padded(ids, None if keep is None else keep[:, None, None, :], types)
        if keep is not None and not keep.any(axis=1).all():
            raise ValueError(f"`mask` must have a token in every row; received none in row {keep.any(axis=1).argmin()}")
        return self._padded(ids, None if keep is None or keep.all() else keep[:, None, None, :], types)

    def _padded(self, ids: Array, keep: Array | None, types: Array | None) -> Array:
        with awake():
            outputs: Array = self.encoder(self.embeddings(ids, types=types), keep=keep)
        return outputs

    def _indices(self, given: Array, name: str, limit: int) -> Array:
        """Return indices as integers, checked against `limit`; a Sequential is built with zeros that are floats."""
        with np.errstate(invalid="ignore"):
            indices = given if given.dtype.kind in "iu" else given.astype(np.int64)
        if indices is not given and not np.array_equal(indices, given):
            raise TypeError(f"`{name}` must be integers; received {given.dtype}")
        if indices.ndim != 2 or not 1 <= indices.shape[1] <= self.settings.max_length:
            raise ValueError(f"`{name}` must have shape (n, 1 to {self.settings.max_length}); received {indices.shape}")
        return indices if is_recorded(indices) else _within(indices, name, limit)

    def ragged(self, ids: Array, offsets: Array) -> Array:
        """Return the vectors of the tokens of texts that lie one behind the other.

        Parameters
        ----------
        ids : ndarray of int32, shape (tokens,)
        offsets : ndarray of int32, shape (n + 1,)
            Where each text begins and the last one ends.

        Returns
        -------
        ndarray, shape (tokens, hidden_size)
        """
        ids = self.checked(ids)
        vectors: Array = self(ids, places=self.embeddings.places(ids, offsets), offsets=offsets)
        return vectors

    def checked(self, ids: Array) -> Array:
        """Return integers; raise ValueError if one of them is outside the vocabulary."""
        return _within(ids, "ids", self.settings.vocab_size)

    def _change_policy(self, policy: DTypePolicy) -> None:
        """Give all layers the policy: a model computes in what they compute in."""
        layers = [layer for layer in self.flatten() if isinstance(layer, Layer)]
        if any(layer.quantized for layer in layers):
            raise already_quantized(self, f"dtype_policy={policy.name}")
        plain, forms = unquantized(policy) if self.built else policy, quantized_forms(self, policy)
        apply_to_all(layers, plain)
        convert_to(forms)
        apply_to_all([self], policy)


def _within(indices: Array, name: str, limit: int) -> Array:
    if indices.size and not 0 <= indices.min() <= indices.max() < limit:
        raise ValueError(f"`{name}` must be from 0 to {limit - 1}; received {indices.min()} to {indices.max()}")
    return indices
