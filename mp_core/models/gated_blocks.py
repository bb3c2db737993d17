"""Transformers with rotary positions and gated perceptrons, such as Llama, Qwen, Gemma and ModernBERT.

T5 and Jina's networks use these blocks too, with position biases instead of rotary positions, or without gates. The
settings describe the differences: a :class:`Layout` gives the layers of a block and their order, the rest are numbers
of ``config.json``. A pre-norm network (`Layout.normed_inputs`) keeps its residual sum in float32, or float64 under a
float64 policy, whatever the compute dtype of its layers is.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array, dtypes
from mp_core.arrays.recorded import UnseenError, constant, is_recorded
from mp_core.layers.side_by_side import side_by_side
from mp_core.models.blocks import (
    Embeddings,
    Encoder,
    Part,
    PositionBias,
    Shape,
    TypedPart,
    attend,
    by_distance,
    dropped,
)
from mp_core.models.experts import Experts, Routing
from mp_core.models.past import Past
from mp_core.models.rope import Rope, angles, short_of
from mp_core.models.settings import Count, Settings
from mp_core.models.slots import Slot
from mp_core.ops.elementwise import concatenated

__all__ = ["GatedEmbeddings", "GatedEncoder", "GatedSettings", "Layout", "RootMeanSquare", "TokenTypes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layers of an architecture's blocks, and their order."""

    joined: bool = False  # Whether one matrix computes queries, keys and values, in this order.
    # Whether one matrix computes both halves of a gated perceptron: gate, then up projection.
    joined_halves: bool = False
    up_first: bool = False  # Whether the joint matrix has the up projection first.
    # Whether blocks are pre-norm: ``x + layer(norm(x))``. Otherwise they are post-norm: ``norm(x + layer(x))``.
    normed_inputs: bool = True
    normed_outputs: bool = False  # Whether a pre-norm block also normalizes the outputs: ``x + norm(layer(norm(x)))``.
    normed_heads: bool = False  # Whether query and key of each head are normalized.
    normed_values: bool = False  # Whether the value of each head is divided by its root mean square.
    # Whether the embeddings are normalized. Then the first block does not normalize its attention input again.
    normed_embeddings: bool = False
    root_mean_square: bool = True  # Whether norms are root-mean-square norms; otherwise layer norms.
    norm_offset: float = 0.0  # What is added to the stored factors of root-mean-square norms.
    scaled_embeddings: bool = False  # Whether the embeddings are multiplied by ``sqrt(hidden_size)``.
    # Whether perceptrons are gated: ``output(act(gate(x)) * up(x))``. Otherwise ``output(act(intermediate(x)))``.
    gated: bool = True
    # Whether attention has ALiBi: a multiple of the distance, with a slope for each head, is subtracted from scores.
    slopes: bool = False
    own_biases: bool = False  # Whether each block has its own table of position biases, instead of one shared table.
    # The names of layers in a block whose outputs exceed the range of float16 in published weights.
    overflowing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedSettings(Settings):
    """The settings of a network of gated blocks."""

    type_vocab_size: Count
    layout: Layout
    num_key_value_heads: int  # The number of key and value heads; neighbouring query heads share one.
    head_dim: int  # The head size.
    # `norm_bias`, `qkv_bias`, `output_bias`, `gate_bias`, `down_bias`: Whether there is a bias: in norms; in the
    # projections to query, key and value; after attention; in the first and in the last product of the perceptron.
    norm_bias: bool
    qkv_bias: bool
    output_bias: bool
    gate_bias: bool
    down_bias: bool
    is_causal: bool  # Whether attention is causal.
    # For each block, the largest distance of tokens that attend to each other; None: no limit.
    reaches: tuple[int | None, ...]
    ropes: tuple[Rope | None, ...]  # The rotary positions of each block; None: it has none.
    score_scale: float | None  # The factor of the attention scores; None: ``1 / sqrt(head_dim)``.
    softcap: float | None  # If c is given, scores become ``c * tanh(scores / c)``.
    routing: Routing | None  # The blocks with mixtures of experts, if there are any.

    @property
    def head_size(self) -> int:
        return self.head_dim

    @property
    def is_relative(self) -> bool:
        return True

    @property
    def rows_of_token(self) -> tuple[int, ...]:
        """The numbers of rows per token in the norms of heads."""
        return (self.num_attention_heads, self.num_key_value_heads) if self.layout.normed_heads else ()

    @property
    def overflowing(self) -> tuple[str, ...]:
        return self.layout.overflowing

    def heads_of(self, index: int) -> tuple[int, int]:
        """Return the number of key and value heads of a block, and the head size."""
        return self.num_key_value_heads, self.head_dim


class RootMeanSquare(Part):
    """``x / sqrt(mean(x**2) + epsilon) * (scale + offset)`` along the last axis, rounded once to the compute dtype."""

    tensors = (("weight", "scale"),)
    settings: GatedSettings
    _options = ("settings", "width")

    def __init__(self, settings: GatedSettings, width: int, **kwargs: Any) -> None:
        super().__init__(settings, **kwargs)
        self.width = width

    def build(self, input_shape: Shape) -> None:
        self.scale = self.add_weight((self.width,), "zeros", autocast=False, name="scale")

    def call(self, hidden: Array) -> Array:
        """Return the normalized vectors."""
        offset = self.settings.layout.norm_offset
        wide = dtypes.result_type(hidden.dtype, F32)
        factors = self.scale.derived(("factors", wide), lambda stored: ops.cast(stored, wide) + wide.type(offset))
        normed = ops.rms_norm(hidden, factors, epsilon=self.settings.layer_norm_eps)
        return normed if normed.dtype is self._compute else ops.cast(normed, self._compute)


class GatedPart(Part):
    """A part of a network of gated blocks; it creates norms of the kind that the layout gives."""

    settings: GatedSettings

    def norm_of(self, name: str, width: int | None = None) -> Any:
        """Create a norm of vectors of length `width`, by default `hidden_size`."""
        if not self.settings.layout.root_mean_square:
            return self.normalization(name, self.settings.norm_bias)
        width = self.settings.hidden_size if width is None else width
        return self.part(RootMeanSquare, self.settings, width, shape=(None, None, width), name=name)


class TokenTypes(TypedPart):
    """The embeddings of token types."""

    def build(self, input_shape: Shape) -> None:
        self.table = self.add_weight((self.types, self.settings.hidden_size), "zeros", name="table")

    def slots(self) -> list[Slot]:
        """Return the slot of the table; files store all `type_vocab_size` rows."""
        return [Slot(str(self.path), "weight", self.table, self.settings.type_vocab_size)]

    def call(self, types: Array) -> Array:
        """Return the vector of each type."""
        rows = self.table.derived(("rows", self._compute), lambda stored: ops.cast(stored, self._compute))
        found: Array = ops.take_rows(rows, types, self._compute)
        return found


class GatedEmbeddings(Embeddings, GatedPart):
    """Word embeddings plus embeddings of token types, if there are any, scaled and normalized as the layout says."""

    settings: GatedSettings

    def build(self, input_shape: Shape) -> None:
        s = self.settings
        self.word = self.vocabulary("word")
        self.token_type = None
        if s.type_vocab_size:
            types = min(self.types, s.type_vocab_size)
            self.token_type = self.part(TokenTypes, s, types, shape=input_shape, name="token_type")
        self.norm: Any = self.norm_of("norm") if s.layout.normed_embeddings else None

    def places(self, ids: Array, offsets: Array, types: Array | None = None) -> Array:
        """Return the types of the tokens of ragged texts; this network has no table of positions."""
        return np.zeros(len(ids), np.int32) if types is None or self.token_type is None else types.astype(np.int32)

    def call(self, ids: Array, types: Array | None = None, places: Array | None = None) -> Array:
        """Return the vectors of tokens, shape ``(*ids.shape, width)``; `places` are the types from :meth:`places`."""
        s, words = self.settings, self.word(ids)
        if s.layout.scaled_embeddings:
            words = ops.multiply(words, s.hidden_size**0.5)
        if self.token_type is None:
            return dropped(words if self.norm is None else self.norm(words), "embeddings")
        kinds = types if places is None else places
        added = self.token_type(np.zeros((1,) * ids.ndim, np.int32) if kinds is None else kinds)
        added = np.broadcast_to(ops.cast(added, words.dtype), words.shape)
        outputs: Array = self.norm(words, residual=added) if self.norm is not None else ops.add(words, added)
        return dropped(outputs, "embeddings")


class NumberedPart(GatedPart):
    """A part of one block, with the number of that block."""

    _options = ("settings", "index")

    def __init__(self, settings: GatedSettings, index: int, **kwargs: Any) -> None:
        super().__init__(settings, **kwargs)
        self.index = index


class RotaryAttention(NumberedPart):
    """Full, causal or sliding-window self-attention, with or without rotary positions."""

    def build(self, input_shape: Shape) -> None:
        """Create the projections and, if the layout has them, the norms of heads."""
        s, width = self.settings, self.settings.hidden_size
        shared, size = s.heads_of(self.index)
        queries, keys = s.num_attention_heads * size, shared * size
        if s.layout.joined:
            self.qkv = self.dense("qkv", queries + 2 * keys, width, bias=s.qkv_bias)
        else:
            units = {"query": queries, "key": keys, "value": keys}
            parts = [self.dense(name, own, width, bias=s.qkv_bias) for name, own in units.items()]
            self.query, self.key, self.value = parts
        if s.layout.normed_heads:
            self.query_norm, self.key_norm = (self.norm_of(f"{name}_norm", size) for name in ("query", "key"))
        self.attention_output = self.dense("attention_output", width, queries, bias=s.output_bias)

    def call(
        self,
        hidden: Array,
        keep: Array | None = None,
        bias: Array | None = None,
        offsets: Array | None = None,
        past: Past | None = None,
    ) -> Array:
        """Return the output vectors, in the shape of `hidden`.

        For `keep`, `bias` and `offsets` see :func:`attend`. With `past`, sequences continue those of earlier calls.
        """
        s = self.settings
        query, key, value = self._projections(hidden, keep, offsets, past)
        if past is None:
            how = (s.reaches[self.index], s.is_causal, s.score_scale, s.softcap)
            context = attend(query, key, value, keep, bias, offsets, *how)
        else:
            found = past.attended(
                self.index, query, key, value, offsets, s.score_scale, s.reaches[self.index], s.softcap
            )
            context = found.reshape(*hidden.shape[:-1], math.prod(query.shape[-2:]))
        outputs: Array = self.attention_output(context)
        return outputs

    def _projections(
        self, hidden: Array, keep: Array | None, offsets: Array | None, past: Past | None
    ) -> tuple[Array, Array, Array]:
        """Return queries, keys and values; queries and keys are rotated by their positions."""
        s, rows = self.settings, hidden.shape[:-1]
        heads, (shared, size) = s.num_attention_heads, s.heads_of(self.index)
        if s.layout.joined:
            joined = self.qkv(hidden).reshape(*rows, heads + 2 * shared, size)
            both = self._rotated(joined[..., : heads + shared, :], keep, offsets, past)
            return both[..., :heads, :], both[..., heads:, :], joined[..., heads + shared :, :]
        parts = side_by_side((self.query, self.key, self.value), hidden)
        query, key, value = (
            part.reshape(*rows, n, size) for part, n in zip(parts, (heads, shared, shared), strict=True)
        )
        if s.layout.normed_heads:
            query, key = self.query_norm(query), self.key_norm(key)
        if s.layout.normed_values:
            value = ops.rms_norm(value, epsilon=s.layer_norm_eps)
        return self._rotated(query, keep, offsets, past), self._rotated(key, keep, offsets, past), value

    def _rotated(self, x: Array, keep: Array | None, offsets: Array | None, past: Past | None) -> Array:
        rope, sizes = self.settings.ropes[self.index], (x.shape[-1], self.settings.max_length)
        if rope is None:
            return x
        if offsets is not None:
            lengths = None if past is None else past.pages.past
            return ops.ragged_rotary(x, angles(rope, *sizes), offsets, rope.few, lengths)
        short = angles(short_of(rope), *sizes)
        if rope.long is None or x.shape[1] <= rope.few:
            return ops.rotary(x, short)
        long = angles(rope.long, *sizes)
        if keep is None:
            return ops.rotary(x, long)
        if is_recorded(keep):
            raise UnseenError("rotary positions depend on the lengths of texts: padded ones with a mask have no plan")
        lengths = keep.sum(axis=-1).reshape(-1)
        rotated = [ops.rotary(x[i : i + 1], short if length <= rope.few else long) for i, length in enumerate(lengths)]
        return concatenated(*rotated, axis=0)


class GatedBlock(NumberedPart):
    """Attention and a perceptron, gated or not, with the norms that the layout gives."""

    def build(self, input_shape: Shape) -> None:
        s, width, inner = self.settings, self.settings.hidden_size, self.settings.intermediate_size
        layout = s.layout
        normed = layout.normed_inputs and layout.normed_embeddings and not self.index  # then the embeddings did it
        self.attention_norm: Any = None if normed else self.norm_of("attention_norm")
        self.attention = self.part(RotaryAttention, s, self.index, shape=input_shape, name="attention")
        self.intermediate_norm: Any = self.norm_of("intermediate_norm") if layout.normed_inputs else None
        self.after_attention_norm = self.norm_of("after_attention_norm") if layout.normed_outputs else None
        ends = layout.normed_outputs or not layout.normed_inputs
        self.output_norm: Any = self.norm_of("output_norm") if ends else None
        self.position_bias = self.part(PositionBias, s, name="position_bias") if layout.own_biases else None
        self.experts: Any = None
        if s.routing is not None and s.routing.has(self.index):
            self.experts = self.part(Experts, s, s.routing, shape=input_shape, name="experts")
            return
        if not layout.gated:
            self.intermediate = self.dense("intermediate", inner, width, s.hidden_act, s.gate_bias)
        elif layout.joined_halves:
            self.intermediate = self.dense("intermediate", 2 * inner, width, bias=s.gate_bias)
        else:
            self.gate, self.up = (self.dense(name, inner, width, bias=s.gate_bias) for name in ("gate", "up"))
        self.output = self.dense("output", width, inner, bias=s.down_bias)

    def call(
        self,
        hidden: Array,
        keep: Array | None = None,
        bias: Array | None = None,
        offsets: Array | None = None,
        past: Past | None = None,
    ) -> Array:
        """Return the output vectors, in the shape of `hidden`; the arguments are those of :class:`RotaryAttention`."""
        if not self.settings.layout.normed_inputs:
            attended = dropped(self.attention(hidden, keep=keep, bias=bias, offsets=offsets), "attention")
            hidden = self.attention_norm(attended, residual=hidden)
            outputs: Array = self.output_norm(dropped(self._perceptron(hidden), "output"), residual=hidden)
            return outputs
        if self.position_bias is not None:
            bias = self.position_bias(length=self.settings.max_length if offsets is not None else hidden.shape[1])
        normed = hidden if self.attention_norm is None else self.attention_norm(hidden)
        attended = dropped(self.attention(normed, keep=keep, bias=bias, offsets=offsets, past=past), "attention")
        if self.after_attention_norm is not None:
            attended = self.after_attention_norm(attended)
        hidden = ops.add(hidden, attended)
        added = dropped(self._perceptron(self.intermediate_norm(hidden)), "output")
        return ops.add(hidden, added if self.output_norm is None else self.output_norm(added))

    def _perceptron(self, hidden: Array) -> Array:
        layout, half = self.settings.layout, self.settings.intermediate_size
        if self.experts is not None:
            mixed: Array = self.experts(hidden)
            return mixed
        if not layout.gated:
            plain: Array = self.output(self.intermediate(hidden))
            return plain
        if layout.joined_halves:
            both = self.intermediate(hidden)
            gate, up = both[..., :half], both[..., half:]
            gate, up = (up, gate) if layout.up_first else (gate, up)
        else:
            gate, up = side_by_side((self.gate, self.up), hidden)
        if self.output.exceeds_float16 and gate.dtype == np.float16:
            gate, up = ops.cast(gate, F32), ops.cast(up, F32)
        outputs: Array = self.output(ops.gate(gate, up, self.settings.hidden_act))
        return outputs


@lru_cache(maxsize=8)
def _slopes(heads: int, length: int) -> Array:
    """Return the ALiBi biases for :func:`by_distance`: distance times a negative slope for each head.

    O. Press, N. A. Smith, M. Lewis, "Train Short, Test Long: Attention with Linear Biases Enables Input Length
    Extrapolation", ICLR 2022: the slope is ``2 ** -(8 * i / heads)`` for head i = 1, 2, ... of a power of two. For
    other numbers of heads: the slopes of the next lower power of two, then every second slope of twice that power.
    """
    whole = 2 ** (heads.bit_length() - 1)
    powers = [8 * (i + 1) / whole for i in range(whole)] + [4 * (i + 1) / whole for i in range(0, 2 * whole, 2)]
    factors = -(2.0 ** -np.array(powers[:heads]))
    values: Array = (factors.astype(F32)[:, np.newaxis] * np.abs(np.arange(length - 1, -length, -1))).astype(F32)
    values.flags.writeable = False  # so that plans share it
    return values


class GatedEncoder(Encoder, GatedPart):
    """A stack of gated blocks; in a pre-norm network, followed by a norm."""

    settings: GatedSettings
    block_kind: ClassVar[type[GatedBlock]] = GatedBlock

    def build(self, input_shape: Shape) -> None:
        s = self.settings
        self.blocks = [
            self.part(self.block_kind, s, index, shape=input_shape, name=f"layer_{index}")
            for index in range(s.num_hidden_layers)
        ]
        shared = s.position_buckets and not s.layout.own_biases
        self.position_bias = self.part(PositionBias, s, name="position_bias") if shared else None
        self.norm = self.norm_of("norm") if s.layout.normed_inputs else None

    def call(self, hidden: Array, keep: Array | None = None, offsets: Array | None = None) -> Array:
        if self.settings.layout.normed_inputs:
            hidden = ops.cast(hidden, dtypes.result_type(hidden.dtype, F32))
        length = self.settings.max_length if offsets is not None else hidden.shape[1]
        bias = None if self.position_bias is None else self.position_bias(length=length)
        if self.settings.layout.slopes:
            bias = by_distance(constant(_slopes(self.settings.num_attention_heads, length)))
        return self.through(self.blocks, hidden, self.norm, keep=keep, bias=bias, offsets=offsets)

    def continued(self, hidden: Array, offsets: Array, past: Past) -> Array:
        """Return the vectors of the last tokens of sequences, given the keys and values of the tokens before them.

        The network has rotary positions or none, and no biases.
        """
        if self.settings.layout.normed_inputs:
            hidden = ops.cast(hidden, dtypes.result_type(hidden.dtype, F32))
        return self.through(self.blocks, hidden, self.norm, offsets=offsets, past=past)
