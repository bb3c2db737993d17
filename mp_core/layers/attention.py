"""Multi-head attention."""

import math
from collections.abc import Mapping, Sequence
from string import ascii_lowercase
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core import ops
from mp_core.arrays import F32, Array, dtypes
from mp_core.layers import initializers
from mp_core.layers.attention_axes import AttentionAxes, checked_axes
from mp_core.layers.einsum_dense import EinsumDense
from mp_core.layers.layer import Layer
from mp_core.layers.masks import as_keep
from mp_core.layers.parts import rows_before
from mp_core.layers.seeds import Seed, generator_of, given_seed
from mp_core.ops.random import dropout as dropped
from mp_core.utilities.arguments import boolean, positive_integer, share

__all__ = ["MultiHeadAttention", "ProjectedAttention", "kept_by"]

Shape = tuple[int | None, ...]


class ProjectedAttention(Layer):
    """What attention in several heads has beside its projections: the weights of sources, and dropout of them."""

    supports_masking = True
    _scale: float

    def __init__(
        self,
        dropout: float,
        use_bias: bool,
        kernel_initializer: Any,
        bias_initializer: Any,
        seed: Seed,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.dropout, self.seed = share(dropout, "dropout"), given_seed(seed)
        self.seed_generator = generator_of(seed) if self.dropout > 0 else None
        self.use_bias = boolean(use_bias, "use_bias")
        self.kernel_initializer = initializers.checked(kernel_initializer)
        self.bias_initializer = initializers.checked(bias_initializer)

    def _common(self) -> dict[str, Any]:
        """Return the arguments that all projections have."""
        return {
            **self._penalties,
            "kernel_initializer": initializers.drawn_anew(self.kernel_initializer),
            "bias_initializer": initializers.drawn_anew(self.bias_initializer),
            "dtype": self.dtype_policy,
        }

    def _attended(
        self, q: Array, k: Array, v: Array, keep: Array | None, training: bool | None, returns_weights: bool
    ) -> tuple[Array, Any]:
        """Return what the heads return, shape (batch, targets, heads, size), and if asked for the weights.

        Neighbouring heads of the queries share one of `k` and `v`, if these have fewer.
        """
        generator = self.seed_generator if training else None
        weights: Any = self._weights(q, k, keep) if generator is not None or returns_weights else None
        if generator is None:
            return ops.dot_product_attention(q, k, v, mask=keep, scale=self._scale), weights
        kept = dropped(weights, generator.next(), self.dropout, rows_before=rows_before(weights, self.name))
        each = _for_each_head(v, q.shape[2])
        return ops.matmul(kept, each.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3), weights

    def _weights(self, q: Array, k: Array, keep: Array | None) -> Array:
        """Return the weights of all sources, shape (batch, heads, targets, sources)."""
        wide = dtypes.result_type(q.dtype, F32)
        each = _for_each_head(k, q.shape[2])
        scores = ops.matmul(q.transpose(0, 2, 1, 3), each.transpose(0, 2, 3, 1), out_dtype=wide)
        weights: Array = ops.cast(ops.softmax(scores, scale=self._scale, mask=keep), q.dtype)
        return weights


def _for_each_head(x: Array, heads: int) -> Array:
    """Return keys or values with one head for each of the queries: neighbours share one."""
    batch, length, shared, size = x.shape
    if shared == heads:
        return x
    parts = np.broadcast_to(x[:, :, :, np.newaxis], (batch, length, shared, heads // shared, size))
    return parts.reshape(batch, length, heads, size)


class MultiHeadAttention(ProjectedAttention):
    """Attention of queries to keys, several heads at once, over axes of arrays (batch, time, features).

    Arrays may have more axes between the batch and the features: those of `attention_axes` are attended over together,
    the others are batches of their own.

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
    attention_axes : int or sequence of int, optional
        The axes over which queries attend to keys. Default: all but the first and the last.
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
    _lacking = MappingProxyType({"sliding_window": None, "use_gate": False})
    _told = ("num_heads", "key_dim")
    _options = (
        "num_heads", "key_dim", "value_dim", "dropout", "use_bias", "output_shape", "attention_axes", "seed",
        "kernel_initializer", "bias_initializer",
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
        super().__init__(dropout, use_bias, kernel_initializer, bias_initializer, seed, **kwargs)
        self.num_heads = positive_integer(num_heads, "num_heads")
        self.key_dim = positive_integer(key_dim, "key_dim")
        self.value_dim = self.key_dim if value_dim is None else positive_integer(value_dim, "value_dim")
        self.attention_axes = None if attention_axes is None else checked_axes(attention_axes)
        if isinstance(output_shape, Sequence) and len(output_shape) == 1:
            output_shape = output_shape[0]
        self.output_shape = None if output_shape is None else positive_integer(output_shape, "output_shape")
        self._scale = 1.0 / math.sqrt(self.key_dim)

    def build(self, query_shape: Shape, value_shape: Shape | None = None, key_shape: Shape | None = None) -> None:
        """Create the projections; values default to the queries' shape, keys to the values'."""
        value_shape = value_shape or query_shape
        key_shape = key_shape or value_shape
        self._axes = AttentionAxes(len(query_shape), self.attention_axes)
        outputs = query_shape[-1] if self.output_shape is None else self.output_shape
        self.query_dense = self._projection("query", query_shape, self.key_dim)
        self.key_dense = self._projection("key", key_shape, self.key_dim)
        self.value_dense = self._projection("value", value_shape, self.value_dim)
        free, a, b, c = self._labels
        self.output_dense = EinsumDense(
            f"{free}{a}{b},{a}{b}{c}->{free}{c}", (*[None] * len(free[1:]), outputs),
            bias_axes=c if self.use_bias else None, name="attention_output", **self._common(),
        )  # fmt: skip
        self.output_dense.build((*query_shape[:-1], self.num_heads, self.value_dim))

    def _projection(self, name: str, shape: Shape, size: int) -> EinsumDense:
        if len(shape) != self._axes.rank:
            allowed = ", ".join(["batch", *["length"] * (self._axes.rank - 2), "width"])
            raise ValueError(f"`{name}` must have shape ({allowed}), as the queries; received {tuple(shape)}")
        free, a, b, c = self._labels
        layer = EinsumDense(
            f"{free}{a},{a}{b}{c}->{free}{b}{c}", (*[None] * len(free[1:]), self.num_heads, size),
            bias_axes=b + c if self.use_bias else None, name=name, **self._common(),
        )  # fmt: skip
        layer.build(shape)
        return layer

    @property
    def _labels(self) -> tuple[str, str, str, str]:
        """The labels of the axes before the last one, and three others, in equations."""
        free = self._axes.rank - 1
        return ascii_lowercase[:free], ascii_lowercase[free], ascii_lowercase[free + 1], ascii_lowercase[free + 2]

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
            `key` defaults to `value`. All of them have as many axes as the shapes with which the layer was built.
        query_mask, value_mask, key_mask : array-like, shape (batch, targets) or (batch, sources), optional
            True where there is a token.
        attention_mask : array-like, optional
            Shape (targets, sources), (batch, targets, sources) or (batch, heads, targets, sources), where lengths may
            be 1: True where a target may attend to a source. All masks are bool, or numbers that are 0 or 1. Of arrays
            with more axes: as the scores, where axes before those of the heads, or of the targets, may lack.
        return_attention_scores : bool
        training : bool, optional
            Whether `dropout` is applied; the scores that are returned are those before it.
        use_causal_mask : bool
            Attend to sources up to the target's own position only. This, and the masks of queries, values and keys,
            are there for arrays of three axes alone.

        Returns
        -------
        outputs : ndarray, shape (batch, targets, output features)
        scores : ndarray, shape (batch, heads, targets, sources)
            With `return_attention_scores` only. Of arrays with more axes: (batch, axes that are not attended over,
            heads, axes of the targets, axes of the sources).
        """
        masks = {
            "query_mask": query_mask,
            "value_mask": value_mask,
            "key_mask": key_mask,
            "attention_mask": attention_mask,
        }
        axes, key = self._axes, value if key is None else key
        axes.check(query, value, key)
        if axes.rank == 3:
            keep = np.tri(query.shape[1], value.shape[1], dtype=bool) if use_causal_mask else None
            keep = kept_by(masks, keep)
        else:
            given = [name for name, mask in list(masks.items())[:3] if mask is not None]
            if given or use_causal_mask:
                raise ValueError(f"`{(*given, 'use_causal_mask')[0]}` is for arrays of 3 axes; give `attention_mask`")
            keep = None if attention_mask is None else axes.mask(as_keep(attention_mask), query, value)
        q, k, v = (axes.rows(x) for x in (self.query_dense(query), self.key_dense(key), self.value_dense(value)))
        context, weights = self._attended(q, k, v, keep, training, return_attention_scores)
        outputs: Array = self.output_dense(axes.from_rows(context, query))
        return outputs if not return_attention_scores else (outputs, axes.scores(weights, query, value))


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


def kept_by(masks: Mapping[str, ArrayLike | None], keep: Array | None = None) -> Array | None:
    """Return where all masks, by the names of arguments, and those before let targets attend to sources."""
    for name, mask in masks.items():
        if mask is not None:
            expanded = _mask(mask, name)
            keep = expanded if keep is None else keep & expanded
    return keep
