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
from mp_core.utilities.docstrings import documented

__all__ = ["MultiHeadAttention", "ProjectedAttention", "combined_mask", "with_dropout_parameters"]

Shape = tuple[int | None, ...]

with_dropout_parameters = documented(
    last="""
    dropout : float
        Fraction of attention weights that training sets to 0; the others are divided by ``1 - dropout``.
    seed : int or SeedGenerator, optional
        Source of the random numbers for `dropout`.
    **kwargs : those of :class:`Layer`
"""
)
"""Decorator of attention layers: adds the parameters of dropout to the docstring."""


class ProjectedAttention(Layer):
    """The base of multi-head attention layers: attention weights and their dropout, without the projections."""

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

    def _projection_arguments(self) -> dict[str, Any]:
        return {
            **self._penalties,
            "kernel_initializer": initializers.with_new_keys(self.kernel_initializer),
            "bias_initializer": initializers.with_new_keys(self.bias_initializer),
            "dtype": self.dtype_policy,
        }

    def _attend(
        self, q: Array, k: Array, v: Array, keep: Array | None, training: bool | None, returns_weights: bool
    ) -> tuple[Array, Any]:
        """Return the outputs of the heads, shape (batch, targets, heads, size), and the weights or None.

        If `k` and `v` have fewer heads than `q`, neighbouring heads of `q` share one.
        """
        generator = self.seed_generator if training else None
        weights: Any = self._weights(q, k, keep) if generator is not None or returns_weights else None
        if generator is None:
            return ops.dot_product_attention(q, k, v, mask=keep, scale=self._scale), weights
        kept = dropped(weights, generator.next(), self.dropout, rows_before=rows_before(weights, self.name))
        each = _repeat_heads(v, q.shape[2])
        return ops.matmul(kept, each.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3), weights

    def _weights(self, q: Array, k: Array, keep: Array | None) -> Array:
        """Return the attention weights, shape (batch, heads, targets, sources)."""
        wide = dtypes.result_type(q.dtype, F32)
        each = _repeat_heads(k, q.shape[2])
        scores = ops.matmul(q.transpose(0, 2, 1, 3), each.transpose(0, 2, 3, 1), out_dtype=wide)
        weights: Array = ops.cast(ops.softmax(scores, scale=self._scale, mask=keep), q.dtype)
        return weights


def _repeat_heads(x: Array, heads: int) -> Array:
    """Repeat the heads of keys or values until there are as many as for the queries; neighbours share one."""
    batch, length, shared, size = x.shape
    if shared == heads:
        return x
    parts = np.broadcast_to(x[:, :, :, np.newaxis], (batch, length, shared, heads // shared, size))
    return parts.reshape(batch, length, heads, size)


@with_dropout_parameters
class MultiHeadAttention(ProjectedAttention):
    """Attention of queries to keys in several heads, for arrays (batch, time, features).

    Arrays may have more axes between batch and features. Attention is computed jointly over
    `attention_axes`; the other axes are treated as batch axes.

    The four projections are layers named ``query``, ``key``, ``value`` and ``attention_output`` with the same policy;
    a map of policies is looked up by their paths.

    Parameters
    ----------
    num_heads, key_dim : int
        Number of heads, and the size of queries and keys in a head.
    value_dim : int, optional
        The size of values in a head; default: `key_dim`.
    use_bias : bool
    output_shape : int or sequence of one int, optional
        Length of the last axis of the outputs; default: as in the queries.
    attention_axes : int or sequence of int, optional
        The axes over which queries attend to keys. Default: all except the first and the last.
    kernel_initializer, bias_initializer : str, dict or callable

    Examples
    --------
    >>> layer = MultiHeadAttention(2, 4)
    >>> x = np.ones((1, 3, 8), np.float32)
    >>> layer(x, x).shape, [w.shape for w in layer.get_weights()][:2]
    ((1, 3, 8), [(8, 2, 4), (2, 4)])
    """

    _arrays = ("query", "value")
    _lacking = MappingProxyType({"sliding_window": None, "use_gate": False})
    _repr_arguments = ("num_heads", "key_dim")
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
        """Create the projections. By default values have the shape of the queries, and keys that of the values."""
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
            bias_axes=c if self.use_bias else None, name="attention_output", **self._projection_arguments(),
        )  # fmt: skip
        self.output_dense.build((*query_shape[:-1], self.num_heads, self.value_dim))

    def _projection(self, name: str, shape: Shape, size: int) -> EinsumDense:
        if len(shape) != self._axes.rank:
            allowed = ", ".join(["batch", *["length"] * (self._axes.rank - 2), "width"])
            raise ValueError(f"`{name}` must have shape ({allowed}), as the queries; received {tuple(shape)}")
        free, a, b, c = self._labels
        layer = EinsumDense(
            f"{free}{a},{a}{b}{c}->{free}{b}{c}", (*[None] * len(free[1:]), self.num_heads, size),
            bias_axes=b + c if self.use_bias else None, name=name, **self._projection_arguments(),
        )  # fmt: skip
        layer.build(shape)
        return layer

    @property
    def _labels(self) -> tuple[str, str, str, str]:
        """Letters for einsum equations: those of all axes except the last one, and three unused ones."""
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
        """Return the outputs of attention, and with `return_attention_scores` also the weights.

        Parameters
        ----------
        query : ndarray, shape (batch, targets, features)
        value, key : ndarray, shape (batch, sources, features)
            `key` defaults to `value`. All three have as many axes as the shapes for which the layer was built.
        query_mask, value_mask, key_mask : array-like, shape (batch, targets) or (batch, sources), optional
            True where there is a token. For arrays with three axes only.
        attention_mask : array-like, optional
            True where a target may attend to a source. Shape (targets, sources), (batch, targets, sources) or (batch,
            heads, targets, sources); lengths may be 1. All masks are bool, or numbers that are 0 or 1. For arrays with
            more axes, the shape of `scores`; leading axes may be missing.
        return_attention_scores : bool
        training : bool, optional
            Whether `dropout` is applied; returned scores are those before dropout.
        use_causal_mask : bool
            Attend only to sources up to the target's own position. For arrays with three axes only.

        Returns
        -------
        outputs : ndarray, shape (batch, targets, output features)
        scores : ndarray, shape (batch, heads, targets, sources)
            Only with `return_attention_scores`. For arrays with more axes: (batch, axes that are not attended over,
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
            keep = combined_mask(masks, keep)
        else:
            given = [name for name, mask in list(masks.items())[:3] if mask is not None]
            if given or use_causal_mask:
                raise ValueError(
                    f"`{(*given, 'use_causal_mask')[0]}` is for arrays of 3 axes; received {axes.rank} axes: give "
                    "`attention_mask`"
                )
            keep = None if attention_mask is None else axes.mask(as_keep(attention_mask), query, value)
        q, k, v = (axes.rows(x) for x in (self.query_dense(query), self.key_dense(key), self.value_dense(value)))
        context, weights = self._attend(q, k, v, keep, training, return_attention_scores)
        outputs: Array = self.output_dense(axes.from_rows(context, query))
        return outputs if not return_attention_scores else (outputs, axes.scores(weights, query, value))


_TARGETS, _SOURCES = np.s_[:, np.newaxis, :, np.newaxis], np.s_[:, np.newaxis, np.newaxis, :]

_EXPANSIONS: dict[str, dict[int, Any]] = {
    "query_mask": {2: _TARGETS},
    "value_mask": {2: _SOURCES},
    "key_mask": {2: _SOURCES},
    "attention_mask": {2: np.s_[np.newaxis, np.newaxis], 3: np.s_[:, np.newaxis], 4: ...},
}
"""Mask -> its number of axes -> index that expands it to the axes (batch, heads, targets, sources)."""


def _mask(mask: ArrayLike, name: str) -> Array:
    """Return a mask as booleans that broadcast to (batch, heads, targets, sources)."""
    keep = as_keep(mask, name)
    expansions = _EXPANSIONS[name]
    if keep.ndim not in expansions:
        allowed = " or ".join(map(str, expansions))
        raise ValueError(f"`{name}` must have {allowed} axes; received shape {keep.shape}")
    expanded: Array = keep[expansions[keep.ndim]]
    return expanded


def combined_mask(masks: Mapping[str, ArrayLike | None], keep: Array | None = None) -> Array | None:
    """Return the conjunction of `keep` and all `masks` (argument -> mask); None if there is no mask."""
    for name, mask in masks.items():
        if mask is not None:
            expanded = _mask(mask, name)
            keep = expanded if keep is None else keep & expanded
    return keep
