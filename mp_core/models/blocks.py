"""The parts of a transformer: embeddings, attention, blocks of attention and perceptron, and a stack of blocks."""

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
    "attend",
    "by_distance",
    "dropped",
    "dropping",
    "padding",
]

Shape = tuple[int | None, ...]

_FARTHEST = 128  # tokens: all pairs that are at least so far apart share a bucket


dropping: ContextVar[Mapping[str, Callable[..., Any]] | None] = ContextVar("mp_core.models.dropping", default=None)
"""In training: the dropout of ``"embeddings"``, of ``"attention"`` and of ``"output"``, where there is one; and what
returns the arguments of attention that drop its ``"weights"``."""


def dropped(hidden: Array, place: str) -> Array:
    """Return vectors after the dropout of a place: as they are outside of training."""
    drops = dropping.get()
    if drops is None or place not in drops:
        return hidden
    outputs: Array = drops[place](hidden)
    return outputs


class Padding(NamedTuple):
    """How ragged texts become texts that are padded to one length, and ragged ones again.

    Attributes
    ----------
    tokens : ndarray of int32, shape (n, length)
        Which token of the ragged texts lies at a place of the padded ones; 0 where there is padding.
    places : ndarray of int32, shape (tokens,)
        At which place, counted over all padded texts, a token lies.
    keep : ndarray of bool, shape (n, length)
        Where there is no padding.
    """

    tokens: Array
    places: Array
    keep: Array


padding: ContextVar[Padding | None] = ContextVar("mp_core.models.padding", default=None)
"""In training: how the texts of a batch are padded, for networks whose steps depend on the lengths of texts."""


class Part(Layer):
    """A layer of a network. It casts no inputs, and gives its own policy to the layers in it."""

    _options: tuple[str, ...] = ("settings",)
    tensors: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Of each tensor of its own how the name ends in files, and the attribute that is its variable."""

    def __init__(self, settings: Settings, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.settings = settings

    def slots(self) -> list[Slot]:
        """Return the tensors of its own: those of the layers in it are theirs."""
        return [Slot(str(self.path), part, getattr(self, name)) for part, name in self.tensors]

    def part(self, kind: Callable[..., Any], *args: Any, shape: Shape = (None, None), **kwargs: Any) -> Any:
        """Return a built layer below this one."""
        layer = kind(*args, dtype=self.dtype_policy, **kwargs)
        if kwargs.get("name") in self.settings.overflowing:
            layer.exceeds_float16 = True
        layer.build(shape)
        return layer

    def dense(self, name: str, units: int, inputs: int, activation: str | None = None, bias: bool = True) -> Dense:
        """Return a Dense layer of zeros."""
        shape = None, None, inputs
        layer: Dense = self.part(Dense, units, activation, bias, shape=shape, kernel_initializer="zeros", name=name)
        return layer

    def vocabulary(self, name: str) -> Embedding:
        """Return the table of the vocabulary, of zeros. Delayed float8 scaling does not reach it: it is floats then."""
        rows, width = self.settings.vocab_size, self.settings.embedding_width
        layer = Embedding(rows, width, embeddings_initializer="zeros", name=name, dtype=self.dtype_policy)
        try:
            layer.build()
        except NotImplementedError:
            layer.dtype_policy = unquantized(policy_at(self.dtype_policy, f"{self.path}/{name}"))
            layer.build()
        return layer

    def normalization(self, name: str, bias: bool = True, width: int | None = None) -> LayerNormalization:
        """Return a normalization of vectors of this length, by default of that of the network's."""
        shape, epsilon = (None, None, width or self.settings.hidden_size), self.settings.layer_norm_eps
        layer: LayerNormalization = self.part(LayerNormalization, epsilon=epsilon, center=bias, shape=shape, name=name)
        return layer


@dataclass(frozen=True, slots=True)
class _Sums(Slot):
    """The table of positions, plus those of types and tasks: the variable holds their sum for each type and position.

    It is computed in float32 whatever the file has, so that it is rounded once.
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
        """Give the layer the sums."""
        self.variable.assign(self._sums(weights))

    def written(self, weights: "Weights") -> dict[str, Tensor | None]:
        """Return nothing if the table is still the sum of those of the file, which are kept in this case."""
        table = self.variable.numpy()
        if ops.cast(self._sums(weights), table.dtype).tobytes() == table.tobytes():
            return {}
        if len(table) > 1:
            raise ValueError(f"{self.path} was changed; files hold positions and types apart, not their sums")
        tensors: dict[str, Tensor | None] = {weights.name(self.path, "weight"): table[0]}
        for path in (_TYPES, _TASKS):
            if (beside := weights.tensor(path, "weight")) is not None:
                tensors[weights.name(path, "weight")] = np.zeros(beside.shape, table.dtype)
        return tensors


_TYPES, _TASKS = "embeddings/token_type", "embeddings/task"
"""The paths of the tables whose vectors are added to those of positions."""


class Positions(Part):
    """What is added to the vectors of tokens for their positions and types.

    Parameters
    ----------
    settings : Settings
    types : int
        How many types of tokens are kept: 1 where all texts are single.
    **kwargs
        Those of :class:`Layer`.

    Attributes
    ----------
    table : AutoCastVariable, shape (types, positions, width)
        The sum for a type and a position.
    """

    _options = ("settings", "types")

    def __init__(self, settings: Settings, types: int = 1, **kwargs: Any) -> None:
        super().__init__(settings, **kwargs)
        self.types = types

    def build(self, input_shape: Shape) -> None:
        """Create the table."""
        shape = self.types, self.settings.max_position_embeddings, self.settings.embedding_width
        self.table = self.add_weight(shape, "zeros", name="table")

    def slots(self) -> list[Slot]:
        """Return the sums."""
        return [_Sums(str(self.path), "weight", self.table, types=self.settings.type_vocab_size)]

    def places(self, ids: Array, offsets: Array, types: Array | None = None) -> Array:
        """Return the rows of the table, all types one below the other, that belong to the tokens of ragged texts.

        Parameters
        ----------
        ids, types : ndarray of int, shape (tokens,)
        offsets : ndarray of int, shape (n + 1,)
            Where each text begins, and the last one ends.

        Returns
        -------
        ndarray of int32, shape (tokens,)
        """
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
        """Return what is added to the vectors of tokens, broadcastable to shape (n, length, width).

        With `places`, of :meth:`places`, the shape is that of `places` with an axis of vectors.
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


class Embeddings(Part):
    """The vectors of tokens, plus those of their positions and types, normalized.

    Parameters
    ----------
    settings, types, **kwargs
        Those of :class:`Positions`.
    """

    _options = ("settings", "types")

    def __init__(self, settings: Settings, types: int = 1, **kwargs: Any) -> None:
        super().__init__(settings, **kwargs)
        self.types = types

    def build(self, input_shape: Shape) -> None:
        """Create the layers."""
        s = self.settings
        self.word = self.vocabulary("word")
        self.position = self.part(Positions, s, types=self.types, name="position")
        self.norm = self.normalization("norm", width=s.embedding_width)

    def places(self, ids: Array, offsets: Array, types: Array | None = None) -> Array:
        """Return what :meth:`call` needs to know of the tokens of ragged texts: :meth:`Positions.places`."""
        found: Array = self.position.places(ids, offsets, types)
        return found

    def call(self, ids: Array, types: Array | None = None, places: Array | None = None) -> Array:
        """Return the vectors of tokens, with the axes of `ids` and one more; `places` as in :class:`Positions`."""
        words = self.word(ids)
        added = ops.cast(self.position(ids, types=types, places=places), words.dtype)
        outputs: Array = self.norm(words, residual=np.broadcast_to(added, words.shape))
        return dropped(outputs, "embeddings")


def attend(
    query: Array, key: Array, value: Array, keep: Array | None = None, bias: Array | None = None,
    offsets: Array | None = None, reach: int | None = None, is_causal: bool = False, scale: float | None = None,
    softcap: float | None = None,
) -> Array:  # fmt: skip
    """Return ``softmax(scale * query @ key' + bias) @ value`` of all heads, side by side.

    Parameters
    ----------
    query : ndarray, shape (n, length, heads, size) or, ragged, (tokens, heads, size)
    key, value : ndarray
        Of the same shape; or with fewer heads, of which neighbouring heads of queries share one.
    keep : ndarray of bool, optional
        Broadcastable to (n, heads, length, length): True where a token (third axis) may attend to another (fourth).
    bias : ndarray of float32, optional
        Broadcastable to the same shape: what is added to the scaled scores.
    offsets : ndarray of int32, shape (n + 1,), optional
        Of ragged texts: where each begins, and the last one ends.
    reach : int, optional
        How many tokens away a token attends to others. Default: to all.
    is_causal : bool
        Whether a token attends to those before it and itself only.
    scale : float, optional
        Default: ``1 / sqrt(size)``.
    softcap : float, optional
        That of :func:`mp_core.ops.dot_product_attention`.

    Returns
    -------
    ndarray, shape (n, length, heads * size) or (tokens, heads * size)
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
    """Attention of the tokens of a text to each other."""

    def build(self, input_shape: Shape) -> None:
        """Create the projections."""
        width = self.settings.hidden_size
        names = ("query", "key", "value", "attention_output")
        self.query, self.key, self.value, self.attention_output = (self.dense(name, width, width) for name in names)

    def call(
        self, hidden: Array, keep: Array | None = None, bias: Array | None = None, offsets: Array | None = None
    ) -> Array:
        """Return as many vectors as there are in `hidden`; `keep`, `bias` and `offsets` are those of :func:`attend`."""
        shape = *hidden.shape[:-1], self.settings.num_attention_heads, self.settings.head_size
        parts = side_by_side((self.query, self.key, self.value), hidden)
        query, key, value = (part.reshape(shape) for part in parts)
        outputs: Array = self.attention_output(attend(query, key, value, keep, bias, offsets))
        return outputs


class Block(Part):
    """Attention and a two-layer perceptron; what each adds to its input is normalized."""

    attention_kind: type[Part] = Attention

    def build(self, input_shape: Shape) -> None:
        """Create the layers."""
        width, inner = self.settings.hidden_size, self.settings.intermediate_size
        self.attention = self.part(self.attention_kind, self.settings, shape=input_shape, name="attention")
        self.attention_norm = self.normalization("attention_norm")
        self.intermediate = self.dense("intermediate", inner, width, self.settings.hidden_act)
        self.output = self.dense("output", width, inner)
        self.output_norm = self.normalization("output_norm")

    def call(
        self, hidden: Array, keep: Array | None = None, bias: Array | None = None, offsets: Array | None = None
    ) -> Array:
        """Return as many vectors as there are in `hidden`; `keep`, `bias` and `offsets` are those of :func:`attend`."""
        attended = dropped(self.attention(hidden, keep=keep, bias=bias, offsets=offsets), "attention")
        hidden = self.attention_norm(attended, residual=hidden)
        added = dropped(self.output(self.intermediate(hidden)), "output")
        outputs: Array = self.output_norm(added, residual=hidden)
        return outputs


class PositionBias(Part):
    """What is added to the scores of attention for the distance between two tokens.

    Attributes
    ----------
    table : AutoCastVariable, shape (buckets, heads)
    """

    tensors = (("weight", "table"),)

    def build(self, input_shape: Shape) -> None:
        """Create the table."""
        shape = self.settings.position_buckets, self.settings.num_attention_heads
        self.table = self.add_weight(shape, "zeros", name="table")

    def call(self, length: int) -> Array:
        """Return the biases of all pairs of so many positions, shape (1, heads, length, length).

        They are of float32, and of float64 in a network that computes in float64.
        """
        half = self.settings.position_buckets // 2  # buckets for earlier positions, and as many for later ones
        exact = half // 2
        distance = np.arange(length - 1, -length, -1)
        apart = np.abs(distance)
        far = np.log(np.maximum(apart, 1).astype(F32) / F32.type(exact)) / F32.type(math.log(_FARTHEST / exact))
        bucket = np.minimum(exact + (far * F32.type(half - exact)).astype(np.int64), half - 1)
        bucket = np.where(apart < exact, apart, bucket) + half * (distance < 0)
        rows = ops.take_rows(self.table.read_value(), bucket, dtypes.result_type(self._compute, F32))
        return by_distance(rows.transpose().reshape(-1).reshape(-1, len(bucket)))  # one copy


def by_distance(values: Array) -> Array:
    """Return a bias of attention that depends on the distance of two tokens only, as a view.

    Parameters
    ----------
    values : ndarray of float, shape (heads, 2 * length - 1)
        For the distances of a query from a key ``length - 1, ..., -(length - 1)``.

    Returns
    -------
    ndarray of the type of `values`, shape (1, heads, length, length)
    """
    windows = sliding_window_view(values, (values.shape[1] + 1) // 2, axis=1)
    return windows[np.newaxis, :, ::-1]


class Encoder(Part):
    """Blocks, each of which gets the outputs of the one before.

    Attributes
    ----------
    layer_weights : tuple of float or None
        Of the vectors before the first block and those behind each one, if the sum of all is wanted instead of the last
        ones.
    pads : bool
        Whether a plan of ragged texts needs a :data:`padding`.
    """

    layer_weights: tuple[float, ...] | None = None
    pads: ClassVar[bool] = False

    def build(self, input_shape: Shape) -> None:
        """Create the blocks."""
        s = self.settings
        self.position_bias = self.part(PositionBias, s, name="position_bias") if s.position_buckets else None
        self.blocks = [
            self.part(Block, s, shape=input_shape, name=f"layer_{index}") for index in range(s.num_hidden_layers)
        ]

    def call(self, hidden: Array, keep: Array | None = None, offsets: Array | None = None) -> Array:
        """Return the vectors of the last block; `keep` and `offsets` are those of :func:`attend`."""
        bias = None
        if self.position_bias is not None:
            bias = self.position_bias(length=self.settings.max_length if offsets is not None else hidden.shape[1])
        return self.through(self.blocks, hidden, keep=keep, bias=bias, offsets=offsets)

    def through(self, blocks: Iterable[Part], hidden: Array, norm: Any = None, **arguments: Any) -> Array:
        """Return the vectors of the last of blocks, behind a norm if there is one; or with `layer_weights` their sum.

        Parameters
        ----------
        blocks : iterable of Part
        hidden : ndarray
            What the first one gets.
        norm : Layer, optional
        **arguments
            Those of the blocks.
        """
        weights, layers = self.layer_weights, [hidden]
        for block in blocks:
            hidden = block(hidden, **arguments)
            layers = layers if weights is None else [*layers, hidden]
        outputs: Array = hidden if norm is None else norm(hidden)
        return outputs if weights is None else _mixed(weights, [*layers[:-1], outputs])


def _mixed(weights: Sequence[float], layers: Sequence[Array]) -> Array:
    """Return the sum of the vectors of layers with these weights, of which one at least is not 0, in float32."""
    terms = [
        ops.multiply(ops.cast(layer, dtypes.result_type(layer.dtype, F32)), weight)
        for weight, layer in zip(weights, layers, strict=True)
        if weight
    ]
    return reduce(ops.add, terms)
