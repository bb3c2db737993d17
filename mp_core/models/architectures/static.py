"""Static embeddings [1]_: a vector for each token, whatever stands beside it; a text is the mean of its tokens.

Static weights of sparse encoders are one number for each token.

.. [1] S. Tulkens, T. van Dongen, "Model2Vec: Fast State-of-the-Art Static Embeddings", 2024,
   https://github.com/MinishLab/model2vec.
"""

from dataclasses import replace

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.models.architectures.table import Architecture
from mp_core.models.blocks import Embeddings, Encoder, Shape

__all__ = ["STATIC", "STATIC_WEIGHTS", "StaticWeights"]


class StaticEmbeddings(Embeddings):
    """The vectors of tokens and nothing else."""

    def build(self, input_shape: Shape) -> None:
        """Create the table."""
        self.word = self.vocabulary("word")

    def places(self, ids: Array, offsets: Array, types: Array | None = None) -> Array:
        """Return the tokens themselves: there are neither positions nor types."""
        return ids

    def call(self, ids: Array, types: Array | None = None, places: Array | None = None) -> Array:
        """Return the vectors of tokens, with the axes of `ids` and one more, whatever their types and places."""
        outputs: Array = self.word(ids)
        return outputs


class StaticWeights(StaticEmbeddings):
    """One number for each token, in float32 under every policy.

    Attributes
    ----------
    table : AutoCastVariable, shape (vocabulary,)
    """

    def build(self, input_shape: Shape) -> None:
        """Create the table."""
        self.table = self.add_weight((self.settings.vocab_size,), "zeros", autocast=False, name="table")

    def call(self, ids: Array, types: Array | None = None, places: Array | None = None) -> Array:
        """Return the number of each token, with the axes of `ids` and one more of length 1."""
        rows: Array = ops.take_rows(self.table.read_value()[:, np.newaxis], ids, F32)
        return rows


class NoBlocks(Encoder):
    """No block at all."""

    def build(self, input_shape: Shape) -> None:
        """Create nothing."""

    def call(self, hidden: Array, keep: Array | None = None, offsets: Array | None = None) -> Array:
        """Return the vectors as they are."""
        return hidden


STATIC = Architecture(
    model_types=("model2vec",),
    prefix="",
    tensors={"embeddings/word": "embedding"},
    entries={"hidden_size": "hidden_dim"},
    defaults={"vocab_size": None, "hidden_size": None},
    fixed={
        "num_hidden_layers": 0,
        "num_attention_heads": 1,
        "intermediate_size": 0,
        "max_position_embeddings": 2**20,
        "hidden_act": "linear",
        "layer_norm_eps": 0.0,
        "type_vocab_size": 0,
        "padding_idx": None,
        "position_buckets": 0,
    },
    embeddings=StaticEmbeddings,
    encoder=NoBlocks,
)
STATIC_WEIGHTS = replace(
    STATIC,
    model_types=("static weights",),
    tensors={"embeddings": "embedding"},
    fixed=dict(STATIC.fixed) | {"hidden_size": 1},
    embeddings=StaticWeights,
)
"""The only one that no ``config.json`` names: the class of a module says that a folder holds such weights."""
