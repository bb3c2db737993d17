"""BERT with embeddings shorter than the hidden vectors: ELECTRA [1]_, and ALBERT [2]_, which repeats one block.

.. [1] K. Clark, M.-T. Luong, Q. V. Le, C. D. Manning, "ELECTRA: Pre-training Text Encoders as Discriminators Rather
   Than Generators", ICLR 2020.
.. [2] Z. Lan et al., "ALBERT: A Lite BERT for Self-supervised Learning of Language Representations", ICLR 2020.
"""

from dataclasses import dataclass

from mp_core.arrays import Array
from mp_core.models.architectures.bert import BERT
from mp_core.models.architectures.table import Architecture
from mp_core.models.blocks import Block, Embeddings, Encoder, Shape
from mp_core.models.settings import Settings

__all__ = ["ALBERT", "ELECTRA"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowSettings(Settings):
    """The settings of a network with short embeddings."""

    embedding_size: int  # The length of a word embedding.

    @property
    def embedding_width(self) -> int:
        """The length of the embeddings before the projection to `hidden_size`."""
        return self.embedding_size


class NarrowEmbeddings(Embeddings):
    """BERT's embeddings, and a projection to `hidden_size` if their length differs, or `always`."""

    settings: NarrowSettings
    always = False

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        width, narrow = self.settings.hidden_size, self.settings.embedding_size
        self.project = self.dense("project", width, narrow) if self.always or width != narrow else None

    def call(self, ids: Array, types: Array | None = None, places: Array | None = None) -> Array:
        narrow = super().call(ids, types, places)
        return narrow if self.project is None else self.project(narrow)


class AlbertEmbeddings(NarrowEmbeddings):
    """ALBERT's embeddings, which always have the projection."""

    always = True


class AlbertEncoder(Encoder):
    """One block, applied `num_hidden_layers` times."""

    def build(self, input_shape: Shape) -> None:
        self.block = self.part(Block, self.settings, shape=input_shape, name="layer_0")

    def call(self, hidden: Array, keep: Array | None = None, offsets: Array | None = None) -> Array:
        return self.through([self.block] * self.settings.num_hidden_layers, hidden, keep=keep, offsets=offsets)


_OWN = {"embedding_size": 128, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}

ELECTRA = Architecture(
    model_types=("electra",),
    prefix="electra.",
    tensors=dict(BERT.tensors) | {"embeddings/project": "embeddings_project"},
    defaults=dict(BERT.defaults) | _OWN,
    fixed=BERT.fixed,
    allowed=BERT.allowed,
    settings=NarrowSettings,
    embeddings=NarrowEmbeddings,
)
_BLOCK = "encoder.albert_layer_groups.0.albert_layers.0."
ALBERT = Architecture(
    model_types=("albert",),
    prefix="albert.",
    tensors={path: name for path, name in BERT.tensors.items() if path.startswith("embeddings/")}
    | {
        "embeddings/project": "encoder.embedding_hidden_mapping_in",
        "encoder/layer_0/attention/query": f"{_BLOCK}attention.query",
        "encoder/layer_0/attention/key": f"{_BLOCK}attention.key",
        "encoder/layer_0/attention/value": f"{_BLOCK}attention.value",
        "encoder/layer_0/attention/attention_output": f"{_BLOCK}attention.dense",
        "encoder/layer_0/attention_norm": f"{_BLOCK}attention.LayerNorm",
        "encoder/layer_0/intermediate": f"{_BLOCK}ffn",
        "encoder/layer_0/output": f"{_BLOCK}ffn_output",
        "encoder/layer_0/output_norm": f"{_BLOCK}full_layer_layer_norm",
    },
    defaults=dict(BERT.defaults)
    | {
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
    },
    fixed=BERT.fixed,
    allowed=dict(BERT.allowed) | {"num_hidden_groups": (1,), "inner_group_num": (1,)},
    settings=NarrowSettings,
    embeddings=AlbertEmbeddings,
    encoder=AlbertEncoder,
)
