"""DistilBERT [1]_: BERT without token types, with other names of tensors.

.. [1] V. Sanh, L. Debut, J. Chaumond, T. Wolf, "DistilBERT, a distilled version of BERT: smaller, faster, cheaper and
   lighter", arXiv:1910.01108, 2019.
"""

from mp_core.models.architectures.bert import DEFAULTS
from mp_core.models.architectures.table import Architecture

__all__ = ["DISTILBERT"]

DISTILBERT = Architecture(
    model_types=("distilbert",),
    prefix="distilbert.",
    tensors={
        "embeddings/word": "embeddings.word_embeddings",
        "embeddings/position": "embeddings.position_embeddings",
        "embeddings/norm": "embeddings.LayerNorm",
        "encoder/layer_{}/attention/query": "transformer.layer.{}.attention.q_lin",
        "encoder/layer_{}/attention/key": "transformer.layer.{}.attention.k_lin",
        "encoder/layer_{}/attention/value": "transformer.layer.{}.attention.v_lin",
        "encoder/layer_{}/attention/attention_output": "transformer.layer.{}.attention.out_lin",
        "encoder/layer_{}/attention_norm": "transformer.layer.{}.sa_layer_norm",
        "encoder/layer_{}/intermediate": "transformer.layer.{}.ffn.lin1",
        "encoder/layer_{}/output": "transformer.layer.{}.ffn.lin2",
        "encoder/layer_{}/output_norm": "transformer.layer.{}.output_layer_norm",
    },
    entries={
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
    },
    aliases=("hidden_size", "num_hidden_layers", "num_attention_heads"),
    defaults=DEFAULTS | {"num_hidden_layers": 6},
    fixed={"layer_norm_eps": 1e-12, "type_vocab_size": 0, "padding_idx": None, "position_buckets": 0},
    allowed={
        "sinusoidal_pos_embds": (False, True),  # in both cases the file contains the position table
        "pruned_heads": ({}, None),
    },
)
