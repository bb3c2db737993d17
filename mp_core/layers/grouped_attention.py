"""Multi-head attention in which groups of heads share keys and values."""

import math
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core import ops
from mp_core.arrays import Array
from mp_core.layers.attention import ProjectedAttention, combined_mask, with_dropout_parameters
from mp_core.layers.einsum_dense import EinsumDense
from mp_core.layers.seeds import Seed
from mp_core.layers.shapes import Shape
from mp_core.utilities.arguments import boolean, positive_integer

__all__ = ["GroupedQueryAttention"]


@with_dropout_parameters
class GroupedQueryAttention(ProjectedAttention):
    """Attention of queries to keys in several heads; neighbouring heads share one head of keys and values.

    The projections are layers named ``query``, ``key``, ``value`` and ``attention_output``, with `use_gate` also
    ``gate``. Keras' alias is ``GroupQueryAttention``.

    Parameters
    ----------
    head_dim : int
        The size of queries, keys and values in a head.
    num_query_heads, num_key_value_heads : int
        The second must divide the first.
    use_bias : bool
    sliding_window : int, optional
        Targets attend only to sources fewer than this many positions away.
    flash_attention : bool, optional
        Ignored. Keras has this argument.
    kernel_initializer, bias_initializer : str, dict or callable
    use_gate : bool
        Whether to multiply the outputs of the heads by the sigmoid of another projection of the queries.

    Examples
    --------
    >>> layer = GroupedQueryAttention(head_dim=4, num_query_heads=6, num_key_value_heads=2)
    >>> x = np.ones((1, 3, 8), np.float32)
    >>> layer(x, x, use_causal_mask=True).shape, [w.shape for w in layer.get_weights()][:4]
    ((1, 3, 8), [(8, 6, 4), (6, 4), (8, 2, 4), (2, 4)])
    """

    _arrays = ("query", "value")
    _lacking = MappingProxyType({"sliding_window": None})
    exported_as = "GroupQueryAttention"
    """The class name in Keras' configurations. Layer names and names in files derive from the Python class name."""
    _repr_arguments = ("num_query_heads", "num_key_value_heads", "head_dim")
    _options = (
        "head_dim", "num_query_heads", "num_key_value_heads", "dropout", "use_bias", "sliding_window",
        "kernel_initializer", "bias_initializer", "use_gate", "seed",
    )  # fmt: skip

    def __init__(
        self,
        head_dim: int,
        num_query_heads: int,
        num_key_value_heads: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        use_gate: bool = False,
        seed: Seed = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout, use_bias, kernel_initializer, bias_initializer, seed, **kwargs)
        self.head_dim = positive_integer(head_dim, "head_dim")
        self.num_query_heads = positive_integer(num_query_heads, "num_query_heads")
        self.num_key_value_heads = positive_integer(num_key_value_heads, "num_key_value_heads")
        if self.num_query_heads % self.num_key_value_heads:
            raise ValueError(
                f"`num_query_heads` must be divisible by `num_key_value_heads`; received {num_query_heads} and "
                f"{num_key_value_heads}"
            )
        if flash_attention not in (None, False, True):
            raise ValueError(f"`flash_attention` must be a bool or None; received {flash_attention!r}")
        self.sliding_window = None if sliding_window is None else positive_integer(sliding_window, "sliding_window")
        self.use_gate = boolean(use_gate, "use_gate")
        self._scale = 1.0 / math.sqrt(self.head_dim)

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None) -> None:
        """Create the projections. The shape of keys defaults to that of values."""
        heads, shared = self.num_query_heads, self.num_key_value_heads
        self._query_dense = self._projection("query", query_shape, heads)
        self._key_dense = self._projection("key", key_shape or value_shape, shared)
        self._gate_dense = self._projection("gate", query_shape, heads, "sigmoid") if self.use_gate else None
        self._value_dense = self._projection("value", value_shape, shared)
        self._output_dense = EinsumDense(
            "abcd,cde->abe", (None, query_shape[-1]), bias_axes="e" if self.use_bias else None,
            name="attention_output", **self._projection_arguments(),
        )  # fmt: skip
        self._output_dense.build((*query_shape[:-1], heads, self.head_dim))

    def _projection(self, name: str, shape: Shape, heads: int, activation: str | None = None) -> EinsumDense:
        if len(shape) != 3:
            raise ValueError(f"`{name}` must have shape (batch, length, width); received {tuple(shape)}")
        layer = EinsumDense(
            "abc,cde->abde", (None, heads, self.head_dim), activation, bias_axes="de" if self.use_bias else None,
            name=name, **self._projection_arguments(),
        )  # fmt: skip
        layer.build(shape)
        return layer

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
        """Return the outputs of attention; arguments and results are those of :meth:`MultiHeadAttention.call`."""
        keep = self._position_mask(query.shape[1], value.shape[1], use_causal_mask)
        masks = {
            "query_mask": query_mask,
            "value_mask": value_mask,
            "key_mask": key_mask,
            "attention_mask": attention_mask,
        }
        keep = combined_mask(masks, keep)
        q = self._query_dense(query)
        k, v = self._key_dense(value if key is None else key), self._value_dense(value)
        context, weights = self._attend(q, k, v, keep, training, return_attention_scores)
        if self._gate_dense is not None:
            context = ops.multiply(context, self._gate_dense(query))
        outputs: Array = self._output_dense(context)
        return outputs if not return_attention_scores else (outputs, weights)

    def _position_mask(self, targets: int, sources: int, is_causal: bool) -> Array | None:
        """Return the mask (targets, sources) of causal attention and the sliding window; None if neither is used."""
        keep = np.tri(targets, sources, dtype=bool) if is_causal else None
        if self.sliding_window is None:
            return keep
        distance = np.abs(np.subtract.outer(np.arange(targets), np.arange(sources)))
        near: Array = distance < self.sliding_window
        return near if keep is None else near & keep
