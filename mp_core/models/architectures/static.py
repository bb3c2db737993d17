"""Static embeddings [1]_: a fixed vector for each token, independent of context; a text is the mean of its tokens.

Static weights of sparse encoders have one number instead of a vector for each token.

.. [1] S. Tulkens, T. van Dongen, "Model2Vec: Fast State-of-the-Art Static Embeddings", 2024,
   https://github.com/MinishLab/model2vec.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array, dtypes
from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.files.zip import EXPANSION
from mp_core.models.architectures.table import Architecture, Tensors
from mp_core.models.blocks import Embeddings, Encoder, Shape

__all__ = ["STATIC", "STATIC_WEIGHTS", "one_table"]


class StaticEmbeddings(Embeddings):
    """Word embeddings without positions, types or norms."""

    def build(self, input_shape: Shape) -> None:
        self.word = self.vocabulary("word")

    def places(self, ids: Array, offsets: Array, types: Array | None = None) -> Array:
        """Return `ids`: this network adds no positions and no types."""
        return ids

    def call(self, ids: Array, types: Array | None = None, places: Array | None = None) -> Array:
        """Return the vectors of tokens, shape ``(*ids.shape, width)``; `types` and `places` are not used."""
        outputs: Array = self.word(ids)
        return outputs


class StaticWeights(StaticEmbeddings):
    """One number for each token, in float32 under every policy: `table` has the shape (vocabulary,)."""

    tensors = (("weight", "table"),)

    def build(self, input_shape: Shape) -> None:
        self.table = self.add_weight((self.settings.vocab_size,), "zeros", autocast=False, name="table")

    def call(self, ids: Array, types: Array | None = None, places: Array | None = None) -> Array:
        """Return the number of each token, shape ``(*ids.shape, 1)``."""
        rows: Array = ops.take_rows(self.table.read_value()[:, np.newaxis], ids, F32)
        return rows


class NoBlocks(Encoder):
    """An encoder without blocks."""

    def build(self, input_shape: Shape) -> None:
        """Create nothing."""

    def call(self, hidden: Array, keep: Array | None = None, offsets: Array | None = None) -> Array:
        """Return `hidden`."""
        return hidden


def one_table(tensors: Tensors, path: Path) -> Tensors:
    """Return the tensors of static embeddings as one table with a row for each token.

    Files of model2vec may store shared vectors once: row i of the result is ``embeddings[mapping[i]] * weights[i]``.
    """
    names = tensors.keys()
    if not {"embeddings"} < names <= {"embeddings", "mapping", "weights"}:
        return tensors
    table = tensors["embeddings"]
    rows = dequantize(table) if isinstance(table, QuantizedArray) else table
    mapping, weights = (np.asarray(tensors.get(name, ())) for name in ("mapping", "weights"))
    if rows.ndim == 2 and "mapping" in names:
        held = sum(x.nbytes for x in tensors.values())
        most = max(_FEW, EXPANSION * held)
        if mapping.ndim == 1 and mapping.size * rows.shape[1] * rows.itemsize > most:
            expansion = f"{mapping.size} rows of {rows.shape[1]} numbers"
            raise ValueError(
                f"{path}: tensor mapping makes {expansion} of {held} bytes; expected at most {most} bytes of rows"
            )
        is_row = mapping.ndim == 1 and mapping.dtype.kind in "iu"
        if not (is_row and (not mapping.size or 0 <= mapping.min() <= mapping.max() < len(rows))):
            raise ValueError(f"{path}: tensor mapping is {_shown(mapping)}; expected a row below {len(rows)} per token")
        rows = rows[mapping]
    if rows.ndim == 2 and "weights" in names:
        if weights.shape != rows.shape[:1] or not dtypes.is_float(weights.dtype):
            expected = f"{len(rows)} floating-point numbers"
            raise ValueError(f"{path}: tensor weights is {_shown(weights)}; expected {expected}")
        rows = ops.cast(rows, F32) * ops.cast(weights, F32)[:, np.newaxis]
    return {"embeddings": rows}


def _shown(x: Array) -> str:
    return f"{x.dtype} of shape {x.shape}" + (f", {x.min()} to {x.max()}" if x.size and x.dtype.kind in "iu" else "")


_FEW = 1 << 24  # bytes: a table of this size is allowed for any size of the file

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
    renamed={"^(embeddings|weight)$": "embedding.weight"},  # names of model2vec, and of sparse encoders
    adapt=lambda tensors, settings, path: one_table(tensors, path),
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
"""No ``config.json`` names this architecture: the class ``SparseStaticEmbedding`` of a module selects it."""
