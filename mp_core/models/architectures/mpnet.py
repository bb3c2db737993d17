"""MPNet [1]_: positions as in RoBERTa, no token types, and one table of position biases for all blocks.

.. [1] K. Song, X. Tan, T. Qin, J. Lu, T.-Y. Liu, "MPNet: Masked and Permuted Pre-training for Language Understanding",
   NeurIPS 2020.
"""

from mp_core.models.architectures.bert import DEFAULTS
from mp_core.models.architectures.table import Architecture

__all__ = ["MPNET"]

MPNET = Architecture(
    model_types=("mpnet",),
    prefix="mpnet.",
    tensors={
        "embeddings/word": "embeddings.word_embeddings",
        "embeddings/position": "embeddings.position_embeddings",
        "embeddings/norm": "embeddings.LayerNorm",
        "encoder/position_bias": "encoder.relative_attention_bias",
        "encoder/layer_{}/attention/query": "encoder.layer.{}.attention.attn.q",
        "encoder/layer_{}/attention/key": "encoder.layer.{}.attention.attn.k",
        "encoder/layer_{}/attention/value": "encoder.layer.{}.attention.attn.v",
        "encoder/layer_{}/attention/attention_output": "encoder.layer.{}.attention.attn.o",
        "encoder/layer_{}/attention_norm": "encoder.layer.{}.attention.LayerNorm",
        "encoder/layer_{}/intermediate": "encoder.layer.{}.intermediate.dense",
        "encoder/layer_{}/output": "encoder.layer.{}.output.dense",
        "encoder/layer_{}/output_norm": "encoder.layer.{}.output.LayerNorm",
    },
    defaults=DEFAULTS | {"vocab_size": 30527},
    fixed={"type_vocab_size": 0, "padding_idx": 1, "position_buckets": 32},
    allowed={"relative_attention_num_buckets": (32,), "pruned_heads": ({}, None)},  # transformers always uses 32
    most_positions=2**12,  # in training each head has a bias gradient for all pairs of positions: 64 MB
)
