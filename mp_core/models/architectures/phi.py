"""Phi-3 [1]_: joint matrices for query, key and value and for gate and up projection, and LongRoPE.

.. [1] M. Abdin et al., "Phi-3 Technical Report: A Highly Capable Language Model Locally on Your Phone", 2024,
   arXiv:2404.14219.
"""

from collections.abc import Mapping
from typing import Any

from mp_core.models.architectures.gated import FULL, SLIDING, UNBIASED, GatedArchitecture
from mp_core.models.architectures.qwen import LLAMA, TENSORS
from mp_core.models.gated_blocks import Layout
from mp_core.models.settings import Settings

__all__ = ["PHI3"]

_OLD = {"su": "longrope", "yarn": "longrope"}
"""The type of rotary scaling in files of 2024 -> its current name."""


class Phi3Architecture(GatedArchitecture):
    """Phi-3 as ``transformers`` writes it."""

    __slots__ = ()

    def read(self, config: Mapping[str, Any], path: Any) -> Settings:
        current = {"original_max_position_embeddings": 4096, **config}
        for entry in ("rope_scaling", "rope_parameters"):
            scaling = current.get(entry)
            if isinstance(scaling, dict):
                kinds = {name: scaling[name] for name in ("type", "rope_type") if isinstance(scaling.get(name), str)}
                current[entry] = scaling | {name: _OLD.get(kind, kind) for name, kind in kinds.items()}
        return GatedArchitecture.read(self, current, path)


_APART = ("attention/query", "attention/key", "attention/value", "gate", "up")
PHI3 = Phi3Architecture(
    model_types=("phi3",),
    prefix="model.",
    tensors={path: name for path, name in TENSORS.items() if not path.endswith(_APART)}
    | {
        "encoder/layer_{}/attention/qkv": "layers.{}.self_attn.qkv_proj",
        "encoder/layer_{}/intermediate": "layers.{}.mlp.gate_up_proj",
    },
    entries={"layer_norm_eps": "rms_norm_eps"},
    defaults=dict(LLAMA.defaults)
    | {
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_key_value_heads": None,
        "max_position_embeddings": 4096,
        "layer_norm_eps": 1e-5,
    },
    fixed=UNBIASED | {"type_vocab_size": 0, "layout": Layout(joined=True, joined_halves=True)},
    allowed={"is_causal": (True, False), "partial_rotary_factor": (1.0, 1, None)},
    kinds=lambda config, blocks, path: [FULL if config.get("sliding_window") is None else SLIDING] * blocks,
    kinds_of=(FULL, SLIDING),
    is_causal=True,
)
