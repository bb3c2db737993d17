"""Attention with one head and without projections: Keras' layers that take a list [query, value, key]."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.layers.attention import with_dropout_parameters
from mp_core.layers.layer import Layer
from mp_core.layers.masks import as_keep
from mp_core.layers.parts import rows_before
from mp_core.layers.seeds import Seed, generator_of, given_seed
from mp_core.ops.elementwise import floating, rounded
from mp_core.ops.random import dropout as dropped
from mp_core.utilities.arguments import boolean, share

__all__ = ["AdditiveAttention", "Attention"]


@with_dropout_parameters
class Attention(Layer):
    """``softmax(scores) @ value``, where by default ``scores = query @ key.T``.

    Parameters
    ----------
    use_scale : bool
        Whether to multiply by a trained number: the scores, or with "concat" the sums ``query + key``.
    score_mode : {"dot", "concat"}
        "dot": scores are ``query @ key.T``. "concat": scores are the sum of ``tanh(query + key)`` over the features,
        times a trained number.

    Examples
    --------
    >>> x = np.ones((2, 3, 4), np.float32)
    >>> Attention()([x, x]).shape
    (2, 3, 4)
    """

    supports_masking = True
    _options: tuple[str, ...] = ("use_scale", "score_mode", "dropout", "seed")
    _repr_arguments: tuple[str, ...] = ("score_mode",)

    def __init__(
        self,
        use_scale: bool = False,
        score_mode: str = "dot",
        dropout: float = 0.0,
        seed: Seed = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if score_mode not in ("dot", "concat"):
            raise ValueError(f"`score_mode` must be 'dot' or 'concat'; received {score_mode!r}")
        self.use_scale = boolean(use_scale, "use_scale")
        self.score_mode = score_mode
        self.dropout, self.seed = share(dropout, "dropout"), given_seed(seed)
        self.seed_generator = generator_of(seed) if self.dropout > 0 else None

    def build(self, input_shape: Any) -> None:
        """Create the variables. Their shapes do not depend on `input_shape`."""
        self.scale = self.concat_score_weight = None
        if self.use_scale:
            self.scale = self.add_weight((), initializer="ones", name="scale")
        if self.score_mode == "concat":
            self.concat_score_weight = self.add_weight((), initializer="ones", name="concat_score_weight")

    def call(
        self,
        inputs: Sequence[Array],
        mask: Sequence[Any] | None = None,
        training: bool | None = False,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> Any:
        """Return the outputs, shape (batch, queries, width of the values), and on request the attention weights.

        Parameters
        ----------
        inputs : list of ndarray
            [query, value] or [query, value, key]: query (batch, queries, width), value (batch, keys, any width), key
            (batch, keys, width). Without key, the value is used.
        mask : list of (array-like or None), optional
            [query mask, value mask]. Outputs are 0 where the query mask, (batch, queries), is False. Keys where the
            value mask, (batch, keys), is False are not attended to.
        training : bool, optional
            Whether `dropout` is applied, also to the returned weights.
        return_attention_scores : bool
        use_causal_mask : bool
            Whether query i attends only to keys up to i.
        """
        query, value, key = self._parts(inputs)
        self._check_masks(mask)
        queries, keys = (None, None) if mask is None else (m if m is None else as_keep(m) for m in mask[:2])
        keep = None if keys is None else keys[:, np.newaxis]
        if use_causal_mask:
            causal = np.tri(query.shape[1], key.shape[1], dtype=bool)
            keep = causal[np.newaxis] if keep is None else keep & causal
        weights = ops.softmax(self._scores(query, key), mask=keep)
        if training and self.seed_generator is not None:
            before = rows_before(weights, self.name)
            weights = dropped(weights, self.seed_generator.next(), self.dropout, rows_before=before)
        outputs = ops.matmul(weights, value)
        if queries is not None:
            outputs = np.where(queries[..., np.newaxis], outputs, outputs.dtype.type(0))
        return (outputs, weights) if return_attention_scores else outputs

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return the query mask, the first of the list `mask`. The argument has Keras' name."""
        self._check_masks(mask)
        return None if mask is None else mask[0]

    def _check_masks(self, mask: Any) -> None:
        if mask is not None and (not isinstance(mask, list | tuple) or len(mask) not in (2, 3)):
            raise ValueError(f"`mask` of layer '{self.name}' must be a list of two or three; received {mask!r:.200}")

    def _parts(self, inputs: Any) -> tuple[Array, Array, Array]:
        several = isinstance(inputs, list | tuple) and len(inputs) in (2, 3)
        if not several or not all(isinstance(x, np.ndarray) and x.ndim == 3 for x in inputs):
            raise ValueError(
                f"`inputs` of layer '{self.name}' must be a list of query, value and, unless it is the value, key, "
                f"with 3 axes each; received {inputs!r:.200}"
            )
        query, value, key = (floating(x, self._compute) for x in (*inputs, inputs[1])[:3])
        if query.shape[::2] != key.shape[::2] or key.shape[:2] != value.shape[:2]:
            raise ValueError(
                f"The inputs of layer '{self.name}' do not fit each other: query, value and key must have shapes "
                "(batch, targets, size), (batch, sources, any) and (batch, sources, size); "
                f"received {[x.shape for x in inputs]}"
            )
        return query, value, key

    def _scores(self, query: Array, key: Array) -> Array:
        factors = [v.read_value() for v in (self.scale, self.concat_score_weight) if v is not None]
        if self.score_mode == "dot":
            scores = ops.matmul(query, key.swapaxes(1, 2))
            return rounded(np.multiply, scores, *factors) if factors else scores
        inner, outer = factors if self.use_scale else (np.ones((), query.dtype), factors[0])

        def concatenated(query: Array, key: Array, inner: Array, outer: Array) -> Any:
            return outer * ops.sum(ops.tanh(inner * (query[:, :, np.newaxis] + key[:, np.newaxis])), -1)

        return rounded(concatenated, query, key, inner, outer)


@with_dropout_parameters
class AdditiveAttention(Attention):
    """``softmax(scores) @ value``, where ``scores = sum(scale * tanh(query + key))`` over the features.

    Parameters
    ----------
    use_scale : bool
        Whether each feature has a trained `scale`; otherwise it is 1.

    Examples
    --------
    >>> x = np.ones((2, 3, 4), np.float32)
    >>> AdditiveAttention()([x, x]).shape
    (2, 3, 4)
    """

    _options = ("use_scale", "dropout", "seed")
    _repr_arguments = ()

    def __init__(self, use_scale: bool = True, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(use_scale, dropout=dropout, **kwargs)

    def build(self, input_shape: Any) -> None:
        """Create the scale; `input_shape` is a list, its first shape that of the queries."""
        if not isinstance(input_shape, list | tuple) or not all(isinstance(each, Sequence) for each in input_shape):
            raise ValueError(
                f"`inputs` of layer '{self.name}' must be a list of query, value and, unless it is the value, key; "
                f"received the shape {input_shape}"
            )
        self.scale = None
        if self.use_scale:
            self.scale = self.add_weight((input_shape[0][-1],), name="scale")

    def _scores(self, query: Array, key: Array) -> Array:
        scale = np.ones((), query.dtype) if self.scale is None else self.scale.read_value()

        def added(query: Array, key: Array, scale: Array) -> Any:
            return ops.sum(scale * ops.tanh(query[:, :, np.newaxis] + key[:, np.newaxis]), -1)

        return rounded(added, query, key, scale)
