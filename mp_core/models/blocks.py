"""The parts of a transformer: embeddings, attention, blocks, and the encoder that stacks blocks."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mp_core import ops
from mp_core.arrays import F32, Array, dtypes
from mp_core.layers import Dense, Embedding, Layer, LayerNormalization
from mp_core.layers.side_by_side import side_by_side
from mp_core.models.settings import Settings
from mp_core.models.slots import Slot, Tensor
from mp_core.policies.dtype_policies.map import policy_at, unquantized

if TYPE_CHECKING:
    from mp_core.models.weights import Weights

__all__ = [
    "Attention",
    "Block",
    "Embeddings",
    "Encoder",
    "Padding",
    "Part",
    "PositionBias",
    "Positions",
    "TypedPart",
    "attend",
    "by_distance",
    "dropped",
    "dropping",
    "padding",
]

Shape = tuple[int | None, ...]

_FARTHEST = 128  # distances of at least so many tokens share a bucket


dropping: ContextVar[Mapping[str, Callable[..., Any]] | None] = ContextVar("mp_core.models.dropping", default=None)
"""In training: place (``"embeddings"``, ``"attention"``, ``"output"`` or ``"head"``) -> its dropout function. The entry
``"weights"`` returns the arguments with which attention drops its own weights."""


def dropped(hidden: Array, place: str) -> Array:
    """Apply the dropout of a place; outside of training, return `hidden`."""
    drops = dropping.get()
    if drops is None or place not in drops:
        return hidden
    outputs: Array = drops[place](hidden)
    return outputs


class Padding(NamedTuple):
    """Index arrays that convert ragged texts to padded ones and back."""

    tokens: Array  # shape (n, length): Padded position -> index of the ragged token; 0 at padding.
    places: Array  # shape (tokens,): Ragged token -> its flat index among all padded positions.
    keep: Array  # shape (n, length): False at padding.


padding: ContextVar[Padding | None] = ContextVar("mp_core.models.padding", default=None)
"""In training: the padding of a batch, for networks whose computation depends on the lengths of texts."""


class Part(Layer):
    """Base of the layers of a network: it does not cast inputs, and passes its policy to the layers inside."""

    _options: tuple[str, ...] = ("settings",)
    tensors: ClassVar[tuple[tuple[str, str], ...]] = ()
    """(suffix of the tensor's name in files, attribute with its variable), for each tensor of this part itself."""

    def __init__(self, settings: Settings, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.settings = settings

    def slots(self) -> list[Slot]:
        """Return the slots of this part's own tensors, without those of the layers inside."""
        return [Slot(str(self.path), part, getattr(self, name)) for part, name in self.tensors]

    def part(self, kind: Callable[..., Any], *args: Any, shape: Shape = (None, None), **kwargs: Any) -> Any:
        """Create and build a layer inside this part."""
        layer = kind(*args, dtype=self.dtype_policy, **kwargs)
        if kwargs.get("name") in self.settings.overflowing:
            layer.exceeds_float16 = True
        layer.build(shape)
        return layer

    def dense(self, name: str, units: int, inputs: int, activation: str | None = None, bias: bool = True) -> Dense:
        """Create a Dense layer with zero weights."""
        shape = None, None, inputs
        layer: Dense = self.part(Dense, units, activation, bias, shape=shape, kernel_initializer="zeros", name=name)
        return layer

    def vocabulary(self, name: str) -> Embedding:
        """Create the word embedding table, of zeros. Under delayed float8 scaling, which it lacks, it stays floats."""
        rows, width = self.settings.vocab_size, self.settings.embedding_width
        layer = Embedding(rows, width, embeddings_initializer="zeros", name=name, dtype=self.dtype_policy)
        try:
            layer.build()
        except NotImplementedError:
            layer.dtype_policy = unquantized(policy_at(self.dtype_policy, f"{self.path}/{name}"))
            layer.build()
        return layer

    def normalization(self, name: str, bias: bool = True, width: int | None = None) -> LayerNormalization:
        """Create a layer normalization of vectors of length `width`, by default `hidden_size`."""
        shape, epsilon = (None, None, width or self.settings.hidden_size), self.settings.layer_norm_eps
        layer: LayerNormalization = self.part(LayerNormalization, epsilon=epsilon, center=bias, shape=shape, name=name)
        return layer


class TypedPart(Part):
    """A part with tables of token types; `types` is the number of types to keep, 1 if no text is part of a pair."""

    _options = ("settings", "types")

    def __init__(self, settings: Settings, types: int = 1, **kwargs: Any) -> None:
        super().__init__(settings, **kwargs)
        self.types = types


@dataclass(frozen=True, slots=True)
class _PositionSums(Slot):
    """The slot of ``variable[type, position] = positions[position] + types[type] + tasks[0]``.

    The sum is computed in float32 for every dtype of the file, so that it is rounded once.
    """

    types: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the table of positions."""
        return self.variable.shape[1:]

    def _sums(self, weights: "Weights") -> Array:
        width = self.shape[1]
        sums = ops.cast(weights.take(self.path, "weight", *self.shape), F32)[np.newaxis]
        if self.types:
            table = weights.take(_TYPES, "weight", self.types, width)
            sums = sums + table[: len(self.variable), np.newaxis]
        if (tasks := weights.tensor(_TASKS, "weight")) is not None:
            sums = sums + weights.take(_TASKS, "weight", tasks.shape[0], width)[0]
        return sums

    def read(self, weights: "Weights") -> None:
        """Assign the sums to the variable."""
        self.variable.assign(self._sums(weights))

    def to_save(self, weights: "Weights") -> dict[str, Tensor | None]:
        """Return the tables as tensors; nothing if the sums are unchanged, since then the file's tensors stay valid.

        With several types, changed sums raise ValueError: the separate tables cannot be recovered.
        """
        table = self.variable.numpy()
        if ops.cast(self._sums(weights), table.dtype).tobytes() == table.tobytes():
            return {}
        if len(table) > 1:
            raise ValueError(
                f"{self.path} was changed; files store positions and types separately, and their sums cannot be split: "
                "restore the sums before you save"
            )
        tensors: dict[str, Tensor | None] = {weights.name(self.path, "weight"): table[0]}
        for path in (_TYPES, _TASKS):
            if (stored := weights.tensor(path, "weight")) is not None:
                tensors[weights.name(path, "weight")] = np.zeros(stored.shape, table.dtype)
        return tensors


_TYPES, _TASKS = "embeddings/token_type", "embeddings/task"
"""The paths of the tables that are added to the position table."""


class Positions(TypedPart):
    """The embeddings of positions and types, stored as sums: ``table[type, position]`` has the length `width`."""

    def build(self, input_shape: Shape) -> None:
        shape = self.types, self.settings.max_position_embeddings, self.settings.embedding_width
        self.table = self.add_weight(shape, "zeros", name="table")

    def slots(self) -> list[Slot]:
        """Return the slot of the sums."""
        return [_PositionSums(str(self.path), "weight", self.table, types=self.settings.type_vocab_size)]

    def places(self, ids: Array, offsets: Array, types: Array | None = None) -> Array:
        """Return for each ragged token its row in the table, reshaped to (types * positions, width)."""
        places = np.arange(len(ids), dtype=np.int32)
        if len(offsets) == 2 and types is None and self.settings.padding_idx is None:
            return places
        begins = np.repeat(offsets[:-1], np.diff(offsets))
        places -= begins
        padding = self.settings.padding_idx
        if padding is not None:
            real = ids != padding
            counted = np.concatenate([[0], np.cumsum(real)])
            places = (counted[1:] - counted[begins]) * real + padding
        if types is not None:
            places = places + types * self.settings.max_position_embeddings
        result: Array = places.astype(np.int32, copy=False)
        return result

    def call(self, ids: Array, types: Array | None = None, places: Array | None = None) -> Array:
        """Return the embeddings of positions and types, broadcastable to shape (n, length, width).

        With `places`, a result of :meth:`places`, the shape is ``(*places.shape, width)``.
        """
        rows = self.table.derived(("rows", self._compute), lambda stored: ops.cast(stored, self._compute))
        if places is not None:
            looked_up: Array = ops.take_rows(rows.reshape(-1, rows.shape[-1]), places, self._compute)
            return looked_up
        padding = self.settings.padding_idx
        if padding is None and types is None:
            return rows[0, : ids.shape[1]]
        places = np.arange(ids.shape[1], dtype=np.int32) if padding is None else ops.token_places(ids, padding)
        if types is not None:
            places = places + types * self.settings.max_position_embeddings
        added: Array = ops.take_rows(rows.reshape(-1, rows.shape[-1]), places, self._compute)
        return added


class Embeddings(TypedPart):
    """Word embeddings plus embeddings of positions and types, normalized."""

    def build(self, input_shape: Shape) -> None:
        s = self.settings
        self.word = self.vocabulary("word")
        self.position = self.part(Positions, s, types=self.types, name="position")
        self.norm = self.normalization("norm", width=s.embedding_width)

    def places(self, ids: Array, offsets: Array, types: Array | None = None) -> Array:
        """Return the argument `places` of :meth:`call` for ragged texts: :meth:`Positions.places`."""
        found: Array = self.position.places(ids, offsets, types)
        return found

    def call(self, ids: Array, types: Array | None = None, places: Array | None = None) -> Array:
        """Return the vectors of tokens, shape ``(*ids.shape, width)``; `places` as in :class:`Positions`."""
        words = self.word(ids)
        added = ops.cast(self.position(ids, types=types, places=places), words.dtype)
        outputs: Array = self.norm(words, residual=np.broadcast_to(added, words.shape))
        return dropped(outputs, "embeddings")


def attend(
    query: Array, key: Array, value: Array, keep: Array | None = None, bias: Array | None = None,
    offsets: Array | None = None, reach: int | None = None, is_causal: bool = False, scale: float | None = None,
    softcap: float | None = None,
) -> Array:  # fmt: skip
    """Return ``softmax(scale * query @ key' + bias) @ value`` of each head, concatenated along the last axis.

    `query` has the shape (n, length, heads, size), or (tokens, heads, size) for ragged texts, where text i has the
    tokens ``offsets[i]:offsets[i + 1]``. Key and value may have fewer heads: then neighbouring query heads share one.
    `keep` (True where a query, third axis, may attend to a key, fourth axis) and the float32 `bias` are broadcastable
    to (n, heads, length, length). Tokens attend to each other up to the distance `reach`; with `is_causal` not to later
    ones. `scale` defaults to ``1 / sqrt(size)``, and `softcap` is that of :func:`mp_core.ops.dot_product_attention`.
    """
    context: Array
    if offsets is None:
        context = ops.dot_product_attention(query, key, value, bias, keep, scale, is_causal, reach, softcap)
    else:
        drops = dropping.get()
        dropout = {} if drops is None or "weights" not in drops else drops["weights"]()
        how = (offsets, bias, scale, reach, is_causal)
        context = ops.ragged_attention(query, key, value, *how, softcap=softcap, **dropout)
    *rows, heads, size = query.shape
    return context.reshape(*rows, heads * size)


class Attention(Part):
    """Multi-head self-attention."""

    def build(self, input_shape: Shape) -> None:
        width = self.settings.hidden_size
        names = ("query", "key", "value", "attention_output")
        self.query, self.key, self.value, self.attention_output = (self.dense(name, width, width) for name in names)

    def call(
        self, hidden: Array, keep: Array | None = None, bias: Array | None = None, offsets: Array | None = None
    ) -> Array:
        """Return the output vectors, in the shape of `hidden`; for `keep`, `bias`, `offsets` see :func:`attend`."""
        shape = *hidden.shape[:-1], self.settings.num_attention_heads, self.settings.head_size
        parts = side_by_side((self.query, self.key, self.value), hidden)
        query, key, value = (part.reshape(shape) for part in parts)
        outputs: Array = self.attention_output(attend(query, key, value, keep, bias, offsets))
        return outputs


class Block(Part):
    """Attention and a two-layer perceptron, each with a residual sum that is normalized."""

    attention_kind: type[Part] = Attention

    def build(self, input_shape: Shape) -> None:
        width, inner = self.settings.hidden_size, self.settings.intermediate_size
        self.attention = self.part(self.attention_kind, self.settings, shape=input_shape, name="attention")
        self.attention_norm = self.normalization("attention_norm")
        self.intermediate = self.dense("intermediate", inner, width, self.settings.hidden_act)
        self.output = self.dense("output", width, inner)
        self.output_norm = self.normalization("output_norm")

    def call(
        self, hidden: Array, keep: Array | None = None, bias: Array | None = None, offsets: Array | None = None
    ) -> Array:
        """Return the output vectors, in the shape of `hidden`; for `keep`, `bias`, `offsets` see :func:`attend`."""
        attended = dropped(self.attention(hidden, keep=keep, bias=bias, offsets=offsets), "attention")
        hidden = self.attention_norm(attended, residual=hidden)
        added = dropped(self.output(self.intermediate(hidden)), "output")
        outputs: Array = self.output_norm(added, residual=hidden)
        return outputs


class PositionBias(Part):
    """A learned bias of attention scores for each bucket of distances, as in T5; `table` has shape (buckets, heads)."""

    tensors = (("weight", "table"),)

    def build(self, input_shape: Shape) -> None:
        shape = self.settings.position_buckets, self.settings.num_attention_heads
        self.table = self.add_weight(shape, "zeros", name="table")

    def call(self, length: int) -> Array:
        """Return the biases, shape (1, heads, length, length), float32 unless the network computes in float64."""
        half = self.settings.position_buckets // 2  # half of the buckets are for earlier keys, half for later ones
        exact = half // 2
        distance = np.arange(length - 1, -length, -1)
        apart = np.abs(distance)
        far = np.log(np.maximum(apart, 1).astype(F32) / F32.type(exact)) / F32.type(math.log(_FARTHEST / exact))
        bucket = np.minimum(exact + (far * F32.type(half - exact)).astype(np.int64), half - 1)
        bucket = np.where(apart < exact, apart, bucket) + half * (distance < 0)
        rows = ops.take_rows(self.table.read_value(), bucket, dtypes.result_type(self._compute, F32))
        return by_distance(rows.transpose().reshape(-1).reshape(-1, len(bucket)))  # one copy


def by_distance(values: Array) -> Array:
    """Return a bias of attention that depends only on the distance of two tokens, shape (1, heads, length, length).

    It is a view of `values`, shape (heads, 2 * length - 1): the bias for ``query - key`` of
    ``length - 1, ..., 1 - length``.
    """
    windows = sliding_window_view(values, (values.shape[1] + 1) // 2, axis=1)
    return windows[np.newaxis, :, ::-1]


class Encoder(Part):
    """A stack of blocks."""

    # If set, the output is the sum, with these weights, of the embeddings and the outputs of all blocks, instead of the
    # output of the last block.
    layer_weights: tuple[float, ...] | None = None
    pads: ClassVar[bool] = False  # Whether plans of ragged texts need a `padding`.

    def build(self, input_shape: Shape) -> None:
        s = self.settings
        self.position_bias = self.part(PositionBias, s, name="position_bias") if s.position_buckets else None
        self.blocks = [
            self.part(Block, s, shape=input_shape, name=f"layer_{index}") for index in range(s.num_hidden_layers)
        ]

    def call(self, hidden: Array, keep: Array | None = None, offsets: Array | None = None) -> Array:
        """Return the output of the last block; `keep` and `offsets` are those of :func:`attend`."""
        bias = None
        if self.position_bias is not None:
            bias = self.position_bias(length=self.settings.max_length if offsets is not None else hidden.shape[1])
        return self.through(self.blocks, hidden, keep=keep, bias=bias, offsets=offsets)

    def through(self, blocks: Iterable[Part], hidden: Array, norm: Any = None, **arguments: Any) -> Array:
        """Apply blocks and a final norm to `hidden`; with `layer_weights`, return the weighted sum of all outputs."""
        weights, layers = self.layer_weights, [hidden]
        for block in blocks:
            hidden = block(hidden, **arguments)
            layers = layers if weights is None else [*layers, hidden]
        outputs: Array = hidden if norm is None else norm(hidden)
        return outputs if weights is None else _mixed(weights, [*layers[:-1], outputs])


def _mixed(weights: Sequence[float], layers: Sequence[Array]) -> Array:
    """Return the weighted sum of the outputs of layers in float32; at least one weight must not be 0."""
    terms = [
        ops.multiply(ops.cast(layer, dtypes.result_type(layer.dtype, F32)), weight)
        for weight, layer in zip(weights, layers, strict=True)
        if weight
    ]
    return reduce(ops.add, terms)
