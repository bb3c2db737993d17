"""Jina's networks: version 2, a BERT with ALiBi [1]_, and version 3, a BERT with rotary positions [2]_.

.. [1] M. Günther et al., "Jina Embeddings 2: 8192-Token General-Purpose Text Embeddings for Long Documents", 2023,
   arXiv:2310.19923.
.. [2] S. Sturua et al., "jina-embeddings-v3: Multilingual Embeddings With Task LoRA", 2024, arXiv:2409.10173.
"""

from dataclasses import replace

from mp_core.models.architectures.bert import DEFAULTS, TENSORS
from mp_core.models.architectures.gated import BIASED, FULL, POST_NORM, GatedArchitecture

__all__ = ["JINA_V2", "JINA_V3", "JINA_V3_OWN"]

JINA_V2 = GatedArchitecture(
    model_types=("bert with alibi",),
    prefix="bert.",
    tensors={
        **{path: name for path, name in TENSORS.items() if "attention" in path},
        "embeddings/word": TENSORS["embeddings/word"],
        "embeddings/token_type": TENSORS["embeddings/token_type"],
        "embeddings/norm": TENSORS["embeddings/norm"],
        "encoder/layer_{}/intermediate": "encoder.layer.{}.mlp.gated_layers",
        "encoder/layer_{}/output": "encoder.layer.{}.mlp.wo",
        "encoder/layer_{}/output_norm": "encoder.layer.{}.mlp.layernorm",
    },
    defaults=DEFAULTS,
    fixed=BIASED | {"gate_bias": False, "layout": replace(POST_NORM, joined_halves=True, slopes=True)},
    allowed={
        "position_embedding_type": ("alibi",),
        "feed_forward_type": ("geglu",),
        "hidden_act": ("gelu",),
        "is_decoder": (False,),
    },
    thetas={},
)
"""These folders have the ``model_type`` ``bert``; ``position_embedding_type`` distinguishes them from BERT."""

JINA_V3 = GatedArchitecture(
    model_types=("jina_embeddings_v3",),
    prefix="roberta.",
    tensors={
        "embeddings/word": "embeddings.word_embeddings",
        "embeddings/token_type": "embeddings.token_type_embeddings",
        "embeddings/norm": "emb_ln",
        "encoder/layer_{}/attention/qkv": "encoder.layers.{}.mixer.Wqkv",
        "encoder/layer_{}/attention/attention_output": "encoder.layers.{}.mixer.out_proj",
        "encoder/layer_{}/attention_norm": "encoder.layers.{}.norm1",
        "encoder/layer_{}/intermediate": "encoder.layers.{}.mlp.fc1",
        "encoder/layer_{}/output": "encoder.layers.{}.mlp.fc2",
        "encoder/layer_{}/output_norm": "encoder.layers.{}.norm2",
    },
    defaults=DEFAULTS
    | {
        "vocab_size": 250002,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "max_position_embeddings": 8194,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    },
    fixed=BIASED | {"layout": replace(POST_NORM, joined=True, gated=False)},
    renamed={r"\.parametrizations\.weight\.original": ".weight"},  # weights that have adapters
    thetas={FULL: ("rope_theta", 20_000.0)},
)
JINA_V3_OWN = replace(
    JINA_V3,
    model_types=("xlm-roberta with rotary",),
    defaults=dict(JINA_V3.defaults) | {"layer_norm_eps": 1e-12, "vocab_size": 30522},
    allowed={"position_embedding_type": ("rotary",), "hidden_act": ("gelu",)},
    thetas={FULL: ("rotary_emb_base", 10_000.0)},
)
"""The published folder of version 3, with adapters by task. Its ``model_type`` is ``xlm-roberta``."""
