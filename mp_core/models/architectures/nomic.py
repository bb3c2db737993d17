"""NomicBERT [1]_ and GTE [2]_: BERT with rotary positions and gates.

GTE's own folders, with code that is not needed here, have the ``model_type`` ``new``.

.. [1] Z. Nussbaum, J. X. Morris, B. Duderstadt, A. Mulyar, "Nomic Embed: Training a Reproducible Long Context Text
   Embedder", 2024, arXiv:2402.01613.
.. [2] X. Zhang et al., "mGTE: Generalized Long-Context Text Representation and Reranking Models for Multilingual Text
   Retrieval", 2024, arXiv:2407.19669.
"""

from dataclasses import replace
from typing import Any

from mp_core.models.architectures.bert import DEFAULTS
from mp_core.models.architectures.gated import FIXED, FULL, GatedArchitecture
from mp_core.models.gated import Layout

__all__ = ["GTE", "GTE_OWN", "NOMIC_BERT"]

_OLD_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
}
"""Setting -> what the folders of before transformers had the network call it."""
_OLD_CHOICES: dict[str, tuple[Any, ...]] = {
    "activation_function": ("swiglu",),
    "rotary_emb_fraction": (1.0, 1),
    "rotary_scaling_factor": (None,),
    "moe_every_n_layers": (0, -1, None),
    "rotary_emb_scale_base": (None,),
    **dict.fromkeys(("prenorm", "parallel_block", "causal", "rotary_emb_interleaved", "use_rms_norm"), (False,)),
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), (False,)),
}
"""Entry of these folders -> the values that it may have: those of the published models."""

NOMIC_BERT = GatedArchitecture(
    model_types=("nomic_bert",),
    prefix="nomic_bert.",
    tensors={
        "embeddings/word": "embeddings.word_embeddings",
        "embeddings/token_type": "embeddings.token_type_embeddings",
        "embeddings/norm": "emb_ln",
        "encoder/layer_{}/attention/qkv": "encoder.layers.{}.attn.Wqkv",
        "encoder/layer_{}/attention/attention_output": "encoder.layers.{}.attn.out_proj",
        "encoder/layer_{}/attention_norm": "encoder.layers.{}.norm1",
        "encoder/layer_{}/gate": "encoder.layers.{}.mlp.fc12",
        "encoder/layer_{}/up": "encoder.layers.{}.mlp.fc11",
        "encoder/layer_{}/output": "encoder.layers.{}.mlp.fc2",
        "encoder/layer_{}/output_norm": "encoder.layers.{}.norm2",
    },
    entries=_OLD_NAMES,
    aliases=tuple(_OLD_NAMES),
    defaults=DEFAULTS | {"vocab_size": 30528, "max_position_embeddings": 2048, "hidden_act": "silu"},
    fixed=FIXED
    | dict.fromkeys(("qkv_bias", "output_bias", "gate_bias", "down_bias"), False)
    | {
        "norm_bias": True,
        "layout": Layout(joined=True, normed_inputs=False, normed_embeddings=True, root_mean_square=False),
    },
    allowed=_OLD_CHOICES,
    thetas={FULL: ("rotary_emb_base", 1000.0)},
)
GTE = GatedArchitecture(
    model_types=("gte",),
    prefix="gte.",
    tensors={
        "embeddings/word": "embeddings.word_embeddings",
        "embeddings/token_type": "embeddings.token_type_embeddings",
        "embeddings/norm": "embeddings.LayerNorm",
        "encoder/layer_{}/attention/qkv": "encoder.layer.{}.attention.qkv_proj",
        "encoder/layer_{}/attention/attention_output": "encoder.layer.{}.attention.o_proj",
        "encoder/layer_{}/attention_norm": "encoder.layer.{}.attn_ln",
        "encoder/layer_{}/intermediate": "encoder.layer.{}.mlp.up_gate_proj",
        "encoder/layer_{}/output": "encoder.layer.{}.mlp.down_proj",
        "encoder/layer_{}/output_norm": "encoder.layer.{}.mlp_ln",
    },
    defaults=DEFAULTS | {"vocab_size": 250048, "max_position_embeddings": 8192, "type_vocab_size": 1},
    fixed=FIXED
    | {
        "norm_bias": True,
        "qkv_bias": True,
        "output_bias": True,
        "gate_bias": False,
        "down_bias": True,
        "layout": Layout(
            joined=True,
            joined_halves=True,
            up_first=True,
            normed_inputs=False,
            normed_embeddings=True,
            root_mean_square=False,
        ),
    },
    thetas={FULL: ("rope_theta", 160_000.0)},
)
GTE_OWN = replace(
    GTE,
    model_types=("new",),
    prefix="new.",
    defaults=dict(GTE.defaults) | {"vocab_size": 30528, "max_position_embeddings": 2048},
    allowed={
        "position_embedding_type": ("rope",),
        "layer_norm_type": ("layer_norm",),
        "pack_qkv": (True,),
        "logn_attention_scale": (False,),
    },
    thetas={FULL: ("rope_theta", 10_000.0)},
)
