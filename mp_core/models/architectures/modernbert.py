"""ModernBERT [1]_: rotary positions, alternating sliding-window and full attention, gated perceptrons.

.. [1] B. Warner et al., "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder for Fast, Memory Efficient,
   and Long Context Finetuning and Inference", 2024, arXiv:2412.13663.
"""

from collections.abc import Mapping
from typing import Any

from mp_core.models.architectures.gated import FIXED, FULL, SLIDING, GatedArchitecture
from mp_core.models.gated_blocks import Layout
from mp_core.models.settings import unexpected

__all__ = ["MODERNBERT"]


def _kinds(config: Mapping[str, Any], blocks: int, path: Any) -> list[str]:
    """Return the kind of attention of each block: by default every third one is full."""
    every = config.get("global_attn_every_n_layers", 3)
    if type(every) is not int or every < 1:
        raise unexpected(path, "global_attn_every_n_layers", every, "a positive int")
    return [SLIDING if index % every else FULL for index in range(blocks)]


MODERNBERT = GatedArchitecture(
    model_types=("modernbert",),
    prefix="model.",
    tensors={
        "embeddings/word": "embeddings.tok_embeddings",
        "embeddings/norm": "embeddings.norm",
        "encoder/layer_{}/attention_norm": "layers.{}.attn_norm",
        "encoder/layer_{}/attention/qkv": "layers.{}.attn.Wqkv",
        "encoder/layer_{}/attention/attention_output": "layers.{}.attn.Wo",
        "encoder/layer_{}/intermediate_norm": "layers.{}.mlp_norm",
        "encoder/layer_{}/intermediate": "layers.{}.mlp.Wi",
        "encoder/layer_{}/output": "layers.{}.mlp.Wo",
        "encoder/norm": "final_norm",
    },
    entries={
        "hidden_act": "hidden_activation",
        "layer_norm_eps": "norm_eps",
        "qkv_bias": "attention_bias",
        "output_bias": "attention_bias",
        "gate_bias": "mlp_bias",
        "down_bias": "mlp_bias",
    },
    defaults={
        "vocab_size": 50368,
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
        "max_position_embeddings": 8192,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        **dict.fromkeys(("norm_bias", "qkv_bias", "output_bias", "gate_bias", "down_bias"), False),
    },
    fixed=FIXED
    | {
        "type_vocab_size": 0,
        "layout": Layout(joined=True, joined_halves=True, normed_embeddings=True, root_mean_square=False),
    },
    allowed={"rope_scaling": (None,), "head_dim": (None,), "is_decoder": (False,)},
    kinds=_kinds,
    kinds_of=(FULL, SLIDING),
    window=("local_attention", 128),
    thetas={FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)},
)
