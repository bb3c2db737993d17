"""A text network as a layer: token indices in, a vector for each token out."""

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
class _OpaqueConfig:
    """The content of ``config.json``, hidden from layers, which search attributes that are dicts for sublayers."""

    content: dict[str, Any]


class TextNetwork(Layer):
    """A network of one of mp_core's architectures: token indices in, one vector for each token out.

    Its weights are zeros at first; :meth:`mp_core.models.TextEncoder.from_folder` reads them.

    Parameters
    ----------
    config : dict
        The content of ``config.json``, such as ``model_type`` and ``hidden_size``.
    types : int
        The number of token types: 2 for pairs of texts, if the architecture distinguishes the two texts.
    **kwargs
        Those of :class:`~mp_core.layers.Layer`. The keys of a policy map are paths such as ``embeddings/word``,
        ``encoder/layer_0/attention/query`` and ``encoder/layer_0/output``, without the name of the model.

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
        self._opaque_config = _OpaqueConfig(dict(config))
        self.differs_from_files = False  # whether `fit` has changed weights since they were read
        self.types = positive_integer(types, "types")
        self.settings = self.architecture.read(self.config, "`config`")

    @property
    def config(self) -> dict[str, Any]:
        """The content of ``config.json``."""
        return self._opaque_config.content

    @property
    def architecture(self) -> Architecture:
        """The table with the network's settings and the names of its tensors."""
        return architecture_of(self.config, "`config`")

    def build(self, input_shape: Shape = (None, None)) -> None:
        """Create the layers; they do not depend on `input_shape`."""
        called_in(enclosing_path, self._children_path, self._build_parts, (input_shape,))

    @property
    def _children_path(self) -> str:
        return str(self.path)[: -len(self.name)].rstrip("/")

    def _build_parts(self, input_shape: Shape) -> None:
        """Create the layers, with paths that do not contain the model's name."""
        self.embeddings = self.architecture.embeddings(
            self.settings, types=self.types, name="embeddings", dtype=self.dtype_policy
        )
        self.embeddings.build(input_shape)
        self.encoder = self.architecture.encoder(self.settings, name="encoder", dtype=self.dtype_policy)
        self.encoder.build((*input_shape, self.settings.hidden_size))

    def names(self, prefix: str) -> dict[str, str]:
        """Return the path of each layer -> the start of its tensor names, in a checkpoint with this prefix."""
        return {path: prefix + name for path, name in self.architecture.names(self.settings).items()}

    def aliases(self, tensors: Iterable[str], prefix: str) -> dict[str, str]:
        """Return name of a tensor that a checkpoint lacks -> the name of its tensor to use instead."""
        return {}

    def shapes(self) -> dict[str, dict[str, int]]:
        """Return path of a weight -> {``config.json`` entry: length of the axis}; these weights cover all sizes."""
        return self.architecture.shapes(self.settings, self.config)

    def call(
        self,
        ids: Array,
        mask: Any = None,
        types: Array | None = None,
        places: Array | None = None,
        offsets: Array | None = None,
    ) -> Array:
        """Return the vectors of the tokens of padded or ragged texts.

        Parameters
        ----------
        ids : ndarray of int, shape (n, length)
            Vocabulary indices, special tokens included. Floats with integer values are allowed, as for an Embedding.
        mask : array-like, shape (n, length), optional
            True for tokens, False for padding, to which no token attends. Every row needs a token. Default: no padding.
        types : ndarray of int, shape (n, length), optional
            The type of each token. Default: 0.
        places, offsets : ndarray of int32, optional
            For ragged texts: `ids` then has shape (tokens,), and text i is ``ids[offsets[i]:offsets[i + 1]]``. `places`
            comes from ``model.embeddings.places``. Both are not checked here.

        Returns
        -------
        ndarray, shape (n, length, hidden_size), or (tokens, hidden_size) for ragged texts
            The vectors of all positions, including padding, in the output dtype of the last layer.
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
        if is_recorded(ids, keep):  # a plan checks indices at each run, and cannot check a mask
            return self._padded(ids, None if keep is None else keep[:, None, None, :], types)
        if keep is not None and not keep.any(axis=1).all():
            raise ValueError(f"`mask` must have a token in every row; received none in row {keep.any(axis=1).argmin()}")
        return self._padded(ids, None if keep is None or keep.all() else keep[:, None, None, :], types)

    def _padded(self, ids: Array, keep: Array | None, types: Array | None) -> Array:
        with awake():
            outputs: Array = self.encoder(self.embeddings(ids, types=types), keep=keep)
        return outputs

    def _indices(self, given: Array, name: str, limit: int) -> Array:
        """Return indices as integers below `limit`; a Sequential is built with zeros of a float dtype."""
        with np.errstate(invalid="ignore"):
            indices = given if given.dtype.kind in "iu" else given.astype(np.int64)
        if indices is not given and not np.array_equal(indices, given):
            raise TypeError(f"`{name}` must be integers; received {given.dtype}")
        if indices.ndim != 2 or not 1 <= indices.shape[1] <= self.settings.max_length:
            raise ValueError(f"`{name}` must have shape (n, 1 to {self.settings.max_length}); received {indices.shape}")
        return indices if is_recorded(indices) else _within(indices, name, limit)

    def ragged(self, ids: Array, offsets: Array) -> Array:
        """Return the vectors of the tokens of ragged texts, shape (tokens, hidden_size).

        Text i is ``ids[offsets[i]:offsets[i + 1]]``; both arrays are int32.
        """
        ids = self.checked(ids)
        vectors: Array = self(ids, places=self.embeddings.places(ids, offsets), offsets=offsets)
        return vectors

    def checked(self, ids: Array) -> Array:
        """Return `ids`; raise ValueError if one is outside the vocabulary."""
        return _within(ids, "ids", self.settings.vocab_size)

    def _change_policy(self, policy: DTypePolicy) -> None:
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
