"""DeBERTa-v3 [1]_: attention scores also depend on the content of a token together with its distance from another.

    score(i, j) = (query_i . key_j + query_i . key(distance) + key_j . query(distance)) / sqrt(3 * head_size)

The number of distances depends on the length of a text, so ragged texts have no plan: each text runs through the
operations on its own. A plan, or a gradient, of padded texts is for one length. Training pads ragged texts after the
embeddings.

.. [1] P. He, J. Gao, W. Chen, "DeBERTaV3: Improving DeBERTa using ELECTRA-Style Pre-Training with Gradient-Disentangled
   Embedding Sharing", ICLR 2023.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.arrays.recorded import UnseenError, is_recorded
from mp_core.layers.side_by_side import side_by_side
from mp_core.models.architectures.bert import BERT
from mp_core.models.architectures.table import Architecture
from mp_core.models.blocks import Attention, Block, Embeddings, Encoder, Part, Shape, dropped, padding
from mp_core.models.settings import KINDS, Settings, unexpected
from mp_core.ops.elementwise import concatenated
from mp_core.ops.lookup import take_rows

__all__ = ["DEBERTA"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DebertaSettings(Settings):
    """The settings of a DeBERTa network."""

    span: int  # The number of distances in each direction that have an embedding.
    # Distances are put into logarithmic buckets; distances of at least `farthest` share the last one. 0: no buckets.
    farthest: int


class WordEmbeddings(Embeddings):
    """Normalized word embeddings."""

    def build(self, input_shape: Shape) -> None:
        self.word = self.vocabulary("word")
        self.norm = self.normalization("norm")

    def places(self, ids: Array, offsets: Array, types: Array | None = None) -> Array:
        """Return `ids`: this network adds no positions and no types."""
        return ids

    def call(self, ids: Array, types: Array | None = None, places: Array | None = None) -> Array:
        """Return the vectors of tokens, shape ``(*ids.shape, width)``; `types` and `places` are not used."""
        outputs: Array = self.norm(self.word(ids))
        return dropped(outputs, "embeddings")


class DistanceEmbeddings(Part):
    """The embeddings of distances: `table` has the shape (2 * span, width)."""

    tensors = (("weight", "table"),)
    settings: DebertaSettings

    def build(self, input_shape: Shape) -> None:
        self.table = self.add_weight((2 * self.settings.span, self.settings.hidden_size), "zeros", name="table")

    def call(self, hidden: Array) -> Array:
        """Return the table in the compute dtype; it does not depend on `hidden`."""
        rows: Array = self.table.derived(("rows", self._compute), lambda stored: ops.cast(stored, self._compute))
        return rows


@lru_cache(maxsize=8)
def _places(span: int, farthest: int, length: int) -> Array:
    """Return the table row for the distance of each query (axis 0) from each key (axis 1), shape (length, length)."""
    distance = np.arange(length)[:, np.newaxis] - np.arange(length)
    if farthest:
        half = span // 2
        apart = np.maximum(np.abs(distance), half).astype(F32)
        far = np.log(apart / F32.type(half)) / np.log(F32.type((farthest - 1) / half)) * F32.type(half - 1)
        bucket = (np.ceil(far) + half) * np.sign(distance)
        distance = np.where(np.abs(distance) <= half, distance, bucket.astype(np.int64))
    places: Array = np.clip(distance + span, 0, 2 * span - 1)
    return places


class Distances(NamedTuple):
    """The distances between the tokens of a text."""

    used: slice  # The table rows of all these distances.
    # `from_queries`, `from_keys`: shape (length, length): Flat index of the product of token i (axis 0) with the
    # distance to token j (axis 1), in the matrix of the products of all tokens with all used rows.
    from_queries: Array
    from_keys: Array


@lru_cache(maxsize=8)
def _distances(span: int, farthest: int, length: int) -> Distances:
    places = _places(span, farthest, length)
    used = slice(int(places.min()), int(places.max()) + 1)
    begins = np.arange(length)[:, np.newaxis] * (used.stop - used.start) - used.start
    found = [(begins + each).astype(np.int32) for each in (places, places.T)]
    for indices in found:
        indices.setflags(write=False)
    return Distances(used, *found)


class DisentangledAttention(Attention):
    """Self-attention with additional scores from the distances between tokens."""

    settings: DebertaSettings

    def call(
        self, hidden: Array, keep: Array | None = None, bias: Array | None = None, offsets: Array | None = None
    ) -> Array:
        """Return the output vectors of padded texts, in the shape of `hidden`; `bias` holds the distance embeddings."""
        if offsets is not None or bias is None:
            raise UnseenError("attention to distances depends on the lengths of texts: ragged ones have no plan")
        s, size = self.settings, self.settings.head_size
        heads = s.num_attention_heads, size
        parts = side_by_side((self.query, self.key, self.value), hidden)
        query, key, value = (part.reshape(*hidden.shape[:-1], *heads) for part in parts)
        distances, scale = _distances(s.span, s.farthest, hidden.shape[1]), 1 / math.sqrt(3 * size)
        vectors = dropped(bias[distances.used], "embeddings")
        queries, keys = (layer(vectors).reshape(-1, *heads) for layer in (self.query, self.key))
        context = []
        for text in range(len(hidden)):  # one text at a time: the scores of a whole batch would need much memory
            rows = slice(text, text + 1)
            of_keys = _distant(key[text], queries, distances.from_keys).transpose(0, 2, 1)
            added = _distant(query[text], keys, distances.from_queries) + of_keys
            own = None if keep is None else keep[rows]
            context.append(ops.dot_product_attention(
                query[rows], key[rows], value[rows], added[np.newaxis] * F32.type(scale), own, scale))  # fmt: skip
        outputs: Array = self.attention_output(concatenated(*context, axis=0).reshape(hidden.shape))
        return outputs


def _distant(rows: Array, distances: Array, indices: Array) -> Array:
    """Return vectors times distance embeddings, shape (heads, length, length); `indices` is from :class:`Distances`."""
    products = ops.matmul(rows.transpose(1, 0, 2), distances.transpose(1, 2, 0), out_dtype=F32)
    heads, length, count = products.shape
    if not is_recorded(products):
        found: Array = products.reshape(heads, length * count)[:, indices]
        return found
    table = products.transpose(1, 2, 0).reshape(-1).reshape(length * count, heads)  # the first reshape copies
    return take_rows(table, indices, table.dtype).transpose(2, 0, 1)  # a row holds one number for each head


class DebertaBlock(Block):
    """BERT's block with disentangled attention."""

    attention_kind = DisentangledAttention


class DebertaEncoder(Encoder):
    """Blocks that share one normalized table of distance embeddings."""

    pads = True
    settings: DebertaSettings

    def build(self, input_shape: Shape) -> None:
        """Create the distance embeddings, their norm and the blocks."""
        s = self.settings
        self.distances = self.part(DistanceEmbeddings, s, shape=input_shape, name="distances")
        self.norm = self.normalization("norm")
        self.blocks = [
            self.part(DebertaBlock, s, shape=input_shape, name=f"layer_{index}") for index in range(s.num_hidden_layers)
        ]

    def call(self, hidden: Array, keep: Array | None = None, offsets: Array | None = None) -> Array:
        how = None if offsets is None else padding.get()
        if how is not None:
            hidden, keep, offsets = take_rows(hidden, how.tokens, hidden.dtype), how.keep[:, None, None, :], None
        distances = self.norm(self.distances(hidden))
        hidden = self.through(self.blocks, hidden, keep=keep, bias=distances, offsets=offsets)
        return hidden if how is None else take_rows(hidden.reshape(-1, hidden.shape[-1]), how.places, hidden.dtype)


_NEEDED: dict[str, tuple[Any, ...]] = {
    "relative_attention": (True,),
    "share_att_key": (True,),
    "position_biased_input": (False,),
    "norm_rel_ebd": ("layer_norm",),
    "pos_att_type": (["p2c", "c2p"], ["c2p", "p2c"], "p2c|c2p", "c2p|p2c"),
}
"""Entry of ``config.json`` that distinguishes version 3 from earlier ones -> the values of version 3."""


class DebertaArchitecture(Architecture):
    """DeBERTa as ``transformers`` writes it."""

    def read(self, config: Mapping[str, Any], path: Any) -> Settings:
        for entry, allowed in _NEEDED.items():
            if config.get(entry) not in allowed:
                raise unexpected(path, entry, config.get(entry), f"{allowed[0]!r}, as in DeBERTa-v3")
        found: Any = super().read(config, path)
        buckets, farthest = config.get("position_buckets", -1), config.get("max_relative_positions", -1)
        for entry, value in (("position_buckets", buckets), ("max_relative_positions", farthest)):
            fits, expected = KINDS[int]
            if value != -1 and not fits(value):
                raise unexpected(path, entry, value, f"-1 or {expected}")
        farthest = found.max_position_embeddings if farthest == -1 else farthest
        if buckets != -1 and not 2 <= buckets // 2 < farthest - 1:
            raise unexpected(path, "position_buckets", buckets, f"-1 or an int from 4 to {2 * farthest - 3}")
        settings: DebertaSettings = replace(
            found, span=farthest if buckets == -1 else buckets, farthest=0 if buckets == -1 else farthest
        )
        return settings


DEBERTA = DebertaArchitecture(
    model_types=("deberta-v2",),
    prefix="deberta.",
    tensors={
        path: name.replace("self.query", "self.query_proj").replace("self.key", "self.key_proj")
        .replace("self.value", "self.value_proj")
        for path, name in BERT.tensors.items()
        if path not in ("embeddings/position", "embeddings/token_type")
    }
    | {"encoder/distances": "encoder.rel_embeddings", "encoder/norm": "encoder.LayerNorm"},
    defaults=dict(BERT.defaults)
    | {
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "layer_norm_eps": 1e-7,
    },
    fixed={"type_vocab_size": 0, "padding_idx": None, "position_buckets": 0, "span": 0, "farthest": 0},
    allowed={"type_vocab_size": (0,), "conv_kernel_size": (0,)},
    settings=DebertaSettings,
    embeddings=WordEmbeddings,
    encoder=DebertaEncoder,
)  # fmt: skip
