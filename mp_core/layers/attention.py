"""Multi-head attention."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core import dtypes, ops
from mp_core.arrays import F32, Array
from mp_core.layers import initializers
from mp_core.layers.einsum_dense import EinsumDense
from mp_core.layers.layer import Layer
from mp_core.layers.masks import as_keep, both
from mp_core.layers.parts import rows_before
from mp_core.layers.seeds import Seed, generator_of, given_seed
from mp_core.ops.random import dropout as dropped
from mp_core.utilities.arguments import axes_of, boolean, positive_integer, share

__all__ = ["MultiHeadAttention"]

Shape = tuple[int | None, ...]


class MultiHeadAttention(Layer):
    """Attention of queries to keys, several heads at once, over axis 1 of arrays (batch, time, features).

    Its four projections are layers named ``query``, ``key``, ``value`` and ``attention_output``, under the same
    policy: a map is looked up with their paths.

    Parameters
    ----------
    num_heads, key_dim : int
        Number of heads, and the length of a head's queries and keys.
    value_dim : int, optional
        The length of a head's values; default: `key_dim`.
    dropout : float
        The share of the weights of attention that training sets to 0: the others are divided by ``1 - dropout``.
    use_bias : bool
    output_shape : int or sequence of one int, optional
        Length of the last axis of the outputs; default: that of the queries.
    attention_axes : None, 1 or a sequence of 1
        Keras'; there are no others.
    kernel_initializer, bias_initializer : str, dict or callable
    seed : int or SeedGenerator, optional
        Where the random numbers of `dropout` come from.
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> layer = MultiHeadAttention(2, 4)
    >>> x = np.ones((1, 3, 8), np.float32)
    >>> layer(x, x).shape, [w.shape for w in layer.get_weights()][:2]
    ((1, 3, 8), [(8, 2, 4), (2, 4)])
    """

    _arrays = ("query", "value")
    supports_masking = True
    _told = ("num_heads", "key_dim")
    _options = (
        "num_heads", "key_dim", "value_dim", "dropout", "use_bias", "output_shape", "seed", "kernel_initializer",
        "bias_initializer",
    )  # fmt: skip

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        attention_axes: int | Sequence[int] | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        seed: Seed = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = positive_integer(num_heads, "num_heads")
        self.key_dim = positive_integer(key_dim, "key_dim")
        self.value_dim = self.key_dim if value_dim is None else positive_integer(value_dim, "value_dim")
        self.dropout, self.seed = share(dropout, "dropout"), given_seed(seed)
        self.seed_generator = generator_of(seed) if self.dropout > 0 else None
        self.use_bias = boolean(use_bias, "use_bias")
        if attention_axes is not None and axes_of(attention_axes) != (1,):
            raise ValueError(f"`attention_axes` must be 1 or None; received attention_axes={attention_axes!r}")
        if isinstance(output_shape, Sequence) and len(output_shape) == 1:
            output_shape = output_shape[0]
        self.output_shape = None if output_shape is None else positive_integer(output_shape, "output_shape")
        self.kernel_initializer = initializers.checked(kernel_initializer)
        self.bias_initializer = initializers.checked(bias_initializer)
        self._scale = 1.0 / math.sqrt(self.key_dim)

    def build(self, query_shape: Shape, value_shape: Shape | None = None, key_shape: Shape | None = None) -> None:
        """Create the projections; values default to the queries' shape, keys to the values'."""
        value_shape = value_shape or query_shape
        key_shape = key_shape or value_shape
        outputs = query_shape[-1] if self.output_shape is None else self.output_shape
        self.query_dense = self._projection("query", query_shape, self.key_dim)
        self.key_dense = self._projection("key", key_shape, self.key_dim)
        self.value_dense = self._projection("value", value_shape, self.value_dim)
        self.output_dense = EinsumDense(
            "abcd,cde->abe", (None, outputs), bias_axes="e" if self.use_bias else None, name="attention_output",
            **self._common(),
        )  # fmt: skip
        self.output_dense.build((*query_shape[:-1], self.num_heads, self.value_dim))

    def _projection(self, name: str, shape: Shape, size: int) -> EinsumDense:
        if len(shape) != 3:
            raise ValueError(f"`{name}` must have shape (batch, length, width); received {tuple(shape)}")
        bias_axes = "de" if self.use_bias else None
        layer = EinsumDense(
            "abc,cde->abde", (None, self.num_heads, size), bias_axes=bias_axes, name=name, **self._common()
        )
        layer.build(shape)
        return layer

    def _common(self) -> dict[str, Any]:
        return {
            **self._penalties,
            "kernel_initializer": self.kernel_initializer,
            "bias_initializer": self.bias_initializer,
            "dtype": self.dtype_policy,
        }

    def call(
        self,
        query: Array,
        value: Array,
        key: Array | None = None,
        query_mask: ArrayLike | None = None,
        value_mask: ArrayLike | None = None,
        key_mask: ArrayLike | None = None,
        attention_mask: ArrayLike | None = None,
        return_attention_scores: bool = False,
        training: bool | None = False,
        use_causal_mask: bool = False,
    ) -> Array | tuple[Array, Array]:
        """Attend.

        Parameters
        ----------
        query : ndarray, shape (batch, targets, features)
        value, key : ndarray, shape (batch, sources, features)
            `key` defaults to `value`.
        query_mask, value_mask, key_mask : array-like, shape (batch, targets) or (batch, sources), optional
            True where there is a token.
        attention_mask : array-like, optional
            Shape (targets, sources), (batch, targets, sources) or (batch, heads, targets, sources), where lengths may
            be 1: True where a target may attend to a source. All masks are bool, or numbers that are 0 or 1.
        return_attention_scores : bool
        training : bool, optional
            Whether `dropout` is applied; the scores that are returned are those before it.
        use_causal_mask : bool
            Attend to sources up to the target's own position only.

        Returns
        -------
        outputs : ndarray, shape (batch, targets, output features)
        scores : ndarray, shape (batch, heads, targets, sources)
            With `return_attention_scores` only.
        """
        masks = {
            "query_mask": query_mask,
            "value_mask": value_mask,
            "key_mask": key_mask,
            "attention_mask": attention_mask,
        }
        keep = np.tri(query.shape[1], value.shape[1], dtype=bool) if use_causal_mask else None
        for name, mask in masks.items():
            if mask is not None:
                expanded = _mask(mask, name)
                keep = expanded if keep is None else both(keep, expanded)
        q, k, v = self.query_dense(query), self.key_dense(value if key is None else key), self.value_dense(value)
        generator = self.seed_generator if training else None
        weights: Any = self._weights(q, k, keep) if generator is not None or return_attention_scores else None
        if generator is not None:
            kept = dropped(weights, generator.next(), self.dropout, rows_before=rows_before(weights, self.name))
            context = ops.matmul(kept, v.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
        else:
            context = ops.dot_product_attention(q, k, v, mask=keep, scale=self._scale)
        outputs: Array = self.output_dense(context)
        return outputs if not return_attention_scores else (outputs, weights)

    def _weights(self, q: Array, k: Array, keep: Array | None) -> Array:
        """Return the weights of all sources, shape (batch, heads, targets, sources)."""
        wide = dtypes.result_type(q.dtype, F32)
        scores = ops.matmul(q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1), out_dtype=wide)
        weights: Array = ops.cast(ops.softmax(scores, scale=self._scale, mask=keep), q.dtype)
        return weights


_TARGETS, _SOURCES = np.s_[:, np.newaxis, :, np.newaxis], np.s_[:, np.newaxis, np.newaxis, :]

_EXPANSIONS: dict[str, dict[int, Any]] = {
    "query_mask": {2: _TARGETS},
    "value_mask": {2: _SOURCES},
    "key_mask": {2: _SOURCES},
    "attention_mask": {2: np.s_[np.newaxis, np.newaxis], 3: np.s_[:, np.newaxis], 4: ...},
}
"""Mask -> number of its axes -> index that gives it the axes (batch, heads, targets, sources)."""


def _mask(mask: ArrayLike, name: str) -> Array:
    """Return a mask as booleans with axes for batch, heads, targets and sources."""
    keep = as_keep(mask, name)
    expansions = _EXPANSIONS[name]
    if keep.ndim not in expansions:
        allowed = " or ".join(map(str, expansions))
        raise ValueError(f"`{name}` must have {allowed} axes; received shape {keep.shape}")
    expanded: Array = keep[expansions[keep.ndim]]
    return expanded
