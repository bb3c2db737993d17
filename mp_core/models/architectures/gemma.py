"""Gemma; Gemma 2 [2]_, 3 [1]_ and EmbeddingGemma: norms before and after each layer, near attention in some blocks.

.. [1] Gemma Team, "Gemma 3 Technical Report", 2025, arXiv:2503.19786.
.. [2] Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size", 2024, arXiv:2408.00118.
"""

from collections.abc import Mapping
from typing import Any

from mp_core.models.architectures.gated import FULL, NEAR, GatedArchitecture
from mp_core.models.architectures.qwen import QWEN2, QWEN3
from mp_core.models.gated import Layout
from mp_core.models.settings import Settings, unexpected

__all__ = ["GEMMA", "GEMMA2", "GEMMA3"]

_NORMED_OUTPUTS = {
    "encoder/layer_{}/after_attention_norm": "layers.{}.post_attention_layernorm",
    "encoder/layer_{}/intermediate_norm": "layers.{}.pre_feedforward_layernorm",
    "encoder/layer_{}/output_norm": "layers.{}.post_feedforward_layernorm",
}


def _kinds(config: Mapping[str, Any], blocks: int, path: Any) -> list[str]:
    """Return the kind of attention of each block: every sixth one is far."""
    every = config.get("_sliding_window_pattern", config.get("sliding_window_pattern", 6))
    if type(every) is not int or every < 1:
        raise unexpected(path, "sliding_window_pattern", every, "a positive int")
    return [NEAR if (index + 1) % every else FULL for index in range(blocks)]


GEMMA3 = GatedArchitecture(
    model_types=("gemma3_text",),
    prefix="model.",
    tensors=dict(QWEN3.tensors) | _NORMED_OUTPUTS,
    entries=dict(QWEN3.entries) | {"hidden_act": "hidden_activation"},
    defaults=dict(QWEN3.defaults)
    | {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 9216,
        "max_position_embeddings": 131072,
        "hidden_act": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
    },
    fixed=dict(QWEN3.fixed)
    | {"layout": Layout(normed_heads=True, normed_outputs=True, norm_offset=1.0, scaled_embeddings=True)},
    allowed={
        "is_causal": (True,),
        "attn_logit_softcapping": (None,),
        "use_bidirectional_attention": (False, True, None),
    },
    kinds=_kinds,
    kinds_of=(FULL, NEAR),
    is_causal=True,
    thetas={FULL: ("rope_theta", 1_000_000.0), NEAR: ("rope_local_base_freq", 10_000.0)},
    head_dim=256,
    score_entry="query_pre_attn_scalar",
)


class GemmaArchitecture(GatedArchitecture):
    """Gemma of the first generation as ``transformers`` writes it."""

    __slots__ = ()

    def read(self, config: Mapping[str, Any], path: Any) -> Settings:
        """Return the settings of a ``config.json``; ``gelu`` of its first files means the approximation by tanh."""
        meant = {"hidden_act": "gelu_pytorch_tanh"} if config.get("hidden_act") == "gelu" else {}
        return GatedArchitecture.read(self, {**config, **meant}, path)


GEMMA = GemmaArchitecture(
    model_types=("gemma",),
    prefix="model.",
    tensors=QWEN2.tensors,
    entries=QWEN3.entries,
    defaults=dict(QWEN3.defaults)
    | {
        "vocab_size": 256000,
        "hidden_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "intermediate_size": 24576,
        "max_position_embeddings": 8192,
        "hidden_act": "gelu_pytorch_tanh",
    },
    fixed=dict(QWEN3.fixed) | {"layout": Layout(norm_offset=1.0, scaled_embeddings=True)},
    allowed={"is_causal": (True,), "use_bidirectional_attention": (False, True, None)},
    is_causal=True,
    head_dim=256,
)
GEMMA2 = GatedArchitecture(
    model_types=("gemma2",),
    prefix="model.",
    tensors=dict(QWEN2.tensors) | _NORMED_OUTPUTS,
    entries=GEMMA3.entries,
    defaults=dict(GEMMA3.defaults)
    | {"vocab_size": 256000, "max_position_embeddings": 8192, "attn_logit_softcapping": 50.0},
    fixed=dict(QWEN3.fixed) | {"layout": Layout(normed_outputs=True, norm_offset=1.0, scaled_embeddings=True)},
    allowed={"is_causal": (True,), "use_bidirectional_attention": (False, None)},
    kinds=lambda config, blocks, path: [FULL if index % 2 else NEAR for index in range(blocks)],
    kinds_of=(FULL, NEAR),
    is_causal=True,
    head_dim=256,
    score_entry="query_pre_attn_scalar",
    softcap_entry="attn_logit_softcapping",
)
