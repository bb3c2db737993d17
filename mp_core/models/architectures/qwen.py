"""Decoders that embed texts: Qwen3 [1]_, Qwen2, Llama and Mistral; and bidirectional ones: EuroBERT, NVIDIA's Llamas.

.. [1] Y. Zhang et al., "Qwen3 Embedding: Advancing Text Embedding and Reranking Through Foundation Models", 2025,
   arXiv:2506.05176.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mp_core.models.architectures.gated import FIXED, FULL, SLIDING, GatedArchitecture
from mp_core.models.gated_blocks import Layout

__all__ = ["EUROBERT", "LLAMA", "LLAMA_BOTH_WAYS", "MISTRAL", "QWEN2", "QWEN3", "TENSORS"]

TENSORS = {
    "embeddings/word": "embed_tokens",
    "encoder/layer_{}/attention_norm": "layers.{}.input_layernorm",
    "encoder/layer_{}/attention/query": "layers.{}.self_attn.q_proj",
    "encoder/layer_{}/attention/key": "layers.{}.self_attn.k_proj",
    "encoder/layer_{}/attention/value": "layers.{}.self_attn.v_proj",
    "encoder/layer_{}/attention/attention_output": "layers.{}.self_attn.o_proj",
    "encoder/layer_{}/intermediate_norm": "layers.{}.post_attention_layernorm",
    "encoder/layer_{}/gate": "layers.{}.mlp.gate_proj",
    "encoder/layer_{}/up": "layers.{}.mlp.up_proj",
    "encoder/layer_{}/output": "layers.{}.mlp.down_proj",
    "encoder/norm": "norm",
}
_HEAD_NORMS = {
    "encoder/layer_{}/attention/query_norm": "layers.{}.self_attn.q_norm",
    "encoder/layer_{}/attention/key_norm": "layers.{}.self_attn.k_norm",
}
_DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 22016,
    "max_position_embeddings": 32768,
    "hidden_act": "silu",
    "layer_norm_eps": 1e-6,
    "attention_bias": False,
}
_BIASES = {"norm_bias": False, "gate_bias": False, "down_bias": False}


def _late_sliding(config: Mapping[str, Any], blocks: int, path: Any) -> list[str]:
    """Return the kind of each block: sliding from block ``max_window_layers`` on if sliding windows are enabled."""
    is_used = config.get("use_sliding_window") is True and config.get("sliding_window", 4096) is not None
    first = config.get("max_window_layers", 28) if is_used else blocks
    return [SLIDING if isinstance(first, int) and index >= first else FULL for index in range(blocks)]


QWEN3 = GatedArchitecture(
    model_types=("qwen3",),
    prefix="model.",
    tensors=TENSORS | _HEAD_NORMS,
    entries={"layer_norm_eps": "rms_norm_eps", "qkv_bias": "attention_bias", "output_bias": "attention_bias"},
    defaults=_DEFAULTS | {"qkv_bias": False, "output_bias": False},
    fixed=FIXED | _BIASES | {"type_vocab_size": 0, "layout": Layout(normed_heads=True)},
    allowed={"is_causal": (True, False)},
    kinds=_late_sliding,
    kinds_of=(FULL, SLIDING),
    is_causal=True,
    head_dim=128,
)
QWEN2 = replace(
    QWEN3,
    model_types=("qwen2",),
    tensors=TENSORS,
    entries={"layer_norm_eps": "rms_norm_eps"},
    defaults=_DEFAULTS,
    fixed=FIXED | _BIASES | {"type_vocab_size": 0, "layout": Layout(), "qkv_bias": True, "output_bias": False},
    head_dim=None,
)
LLAMA = replace(
    QWEN3,
    model_types=("llama",),
    tensors=TENSORS,
    entries=dict(QWEN3.entries) | {"gate_bias": "mlp_bias", "down_bias": "mlp_bias"},
    defaults=_DEFAULTS
    | {"vocab_size": 32000, "intermediate_size": 11008, "max_position_embeddings": 2048}
    | dict.fromkeys(("qkv_bias", "output_bias", "gate_bias", "down_bias"), False),
    fixed=FIXED | {"norm_bias": False, "type_vocab_size": 0, "layout": Layout()},
    kinds=lambda config, blocks, path: [FULL] * blocks,
    kinds_of=(FULL,),
    head_dim=None,
)
EUROBERT = replace(
    LLAMA,
    model_types=("eurobert",),
    allowed={"is_causal": (False,)},
    defaults=dict(LLAMA.defaults)
    | {
        "vocab_size": 128256,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": None,
        "intermediate_size": 3072,
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
    },
    is_causal=False,
)
LLAMA_BOTH_WAYS = replace(LLAMA, model_types=("llama_bidirec",), allowed={}, is_causal=False)
MISTRAL = replace(
    QWEN2,
    model_types=("mistral",),
    defaults=_DEFAULTS
    | {
        "vocab_size": 32000,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
    fixed=dict(QWEN2.fixed) | {"qkv_bias": False},
    kinds=lambda config, blocks, path: [FULL if config.get("sliding_window", 4096) is None else SLIDING] * blocks,
)
