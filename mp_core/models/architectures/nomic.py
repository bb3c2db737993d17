"""NomicBERT [1]_ and GTE [2]_: BERT with rotary positions and gated perceptrons.

GTE's original folders, which bring their own code, have the ``model_type`` ``new``. mp_core does not run that code.

.. [1] Z. Nussbaum, J. X. Morris, B. Duderstadt, A. Mulyar, "Nomic Embed: Training a Reproducible Long Context Text
   Embedder", 2024, arXiv:2402.01613.
.. [2] X. Zhang et al., "mGTE: Generalized Long-Context Text Representation and Reranking Models for Multilingual Text
   Retrieval", 2024, arXiv:2407.19669.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.models.architectures.bert import DEFAULTS
from mp_core.models.architectures.gated import BIASED, FIXED, FULL, POST_NORM, UNBIASED, GatedArchitecture
from mp_core.models.architectures.table import Tensors
from mp_core.models.experts import Routing
from mp_core.models.settings import KINDS, Settings, unexpected
from mp_core.models.slots import Tensor

__all__ = ["GTE", "GTE_OWN", "NOMIC_BERT", "NOMIC_EXPERTS"]

_OLD_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
}
"""Setting -> its key in checkpoints older than transformers' own class."""
_OLD_CHOICES: dict[str, tuple[Any, ...]] = {
    "activation_function": ("swiglu",),
    "rotary_emb_fraction": (1.0, 1),
    "rotary_scaling_factor": (None,),
    "moe_every_n_layers": (0, -1, None),
    "rotary_emb_scale_base": (None,),
    **dict.fromkeys(("prenorm", "parallel_block", "causal", "rotary_emb_interleaved", "use_rms_norm"), (False,)),
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), (False,)),
}
"""Entry of these older checkpoints -> its allowed values: those of the published models."""
_CHOSEN_BY_EXPERTS = "activation_function", "moe_every_n_layers", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"
"""The entries of :data:`_OLD_CHOICES` that have other values in networks with mixtures of experts."""

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
    fixed=UNBIASED | {"norm_bias": True, "layout": replace(POST_NORM, joined=True)},
    allowed=_OLD_CHOICES,
    thetas={FULL: ("rotary_emb_base", 1000.0)},
)
_ROUTING = {"num_experts": 8, "moe_top_k": 2, "moe_every_n_layers": 2}
"""Entry for the choice of experts -> its default, as in nomic-embed-text-v2-moe."""
_EXPERT = "encoder/layer_{}/experts", "encoder.layers.{}.mlp.experts"


class ExpertArchitecture(GatedArchitecture):
    """NomicBERT with mixtures of experts in some blocks, as in folders that bring their own code."""

    __slots__ = ()

    def read(self, config: Mapping[str, Any], path: Any) -> Settings:
        found: Any = GatedArchitecture.read(self, config, path)
        numbers = {entry: config.get(entry, default) for entry, default in _ROUTING.items()}
        for entry, value in numbers.items():
            fits, expected = KINDS[int]
            if not fits(value):
                raise unexpected(path, entry, value, expected)
        routing = Routing(*numbers.values())
        if routing.every == 1:  # then the network's own code would build no mixture at all
            raise unexpected(path, "moe_every_n_layers", 1, "an int above 1")
        if routing.chosen > routing.experts:
            raise unexpected(path, "moe_top_k", routing.chosen, f"an int from 1 to num_experts, {routing.experts}")
        settings: Settings = replace(found, routing=routing)
        return settings

    def names(self, settings: Settings) -> dict[str, str]:
        routing: Routing = settings.routing  # type: ignore[attr-defined]
        names = GatedArchitecture.names(self, settings)
        for block in filter(routing.has, range(settings.num_hidden_layers)):
            path, name = (start.format(block) for start in _EXPERT)
            for expert in range(routing.experts):
                names |= {f"{path}/{part}_{expert}": f"{name}.{expert}.{part}" for part in ("inner", "outer")}
        return names

    def shapes(self, settings: Settings, config: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        routing: Routing = settings.routing  # type: ignore[attr-defined]
        found = GatedArchitecture.shapes(self, settings, config)
        if settings.num_hidden_layers == 1:
            return found
        sizes = {"num_experts": routing.experts, self.entry("hidden_size"): settings.hidden_size}
        return found | {"encoder/layer_1/experts/router": sizes}


_STACKED = re.compile(r"(.*\bmlp\.experts)\.mlp\.(w1|w2)")


def _split_experts(tensors: Tensors, settings: Settings, path: Path) -> Tensors:
    """Return the tensors with one matrix (outputs, inputs) per expert; raise ValueError if rows cannot be divided."""
    experts: int = settings.routing.experts  # type: ignore[attr-defined]
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stacked = _STACKED.fullmatch(name)
        if stacked is None:
            found[name] = tensor
            continue
        rows = dequantize(tensor) if isinstance(tensor, QuantizedArray) else np.asarray(tensor)
        if rows.ndim != 2 or len(rows) % experts:
            raise ValueError(f"{path}: tensor {name} has shape {rows.shape}; expected rows of num_experts={experts}")
        start, which = stacked.groups()
        for expert, own in enumerate(rows.reshape(experts, -1, rows.shape[1])):
            part, matrix = ("inner", own) if which == "w1" else ("outer", own.T)
            found[f"{start}.{expert}.{part}.weight"] = matrix
    return found


NOMIC_EXPERTS = ExpertArchitecture(
    model_types=("nomic_bert with experts",),
    prefix=NOMIC_BERT.prefix,
    tensors={path: name for path, name in NOMIC_BERT.tensors.items() if path[-3:] not in ("ate", "/up")}
    | {
        "encoder/layer_{}/intermediate": "encoder.layers.{}.mlp.fc1",
        _EXPERT[0]: _EXPERT[1],
        "encoder/layer_{}/experts/router": "encoder.layers.{}.mlp.router.layer",
    },
    entries=_OLD_NAMES
    | {
        "hidden_act": "activation_function",
        "qkv_bias": "qkv_proj_bias",
        "output_bias": "qkv_proj_bias",
        "gate_bias": "mlp_fc1_bias",
        "down_bias": "mlp_fc2_bias",
    },
    aliases=tuple(_OLD_NAMES),
    defaults=dict(NOMIC_BERT.defaults)
    | {"hidden_act": "gelu", "type_vocab_size": 1, "vocab_size": 250048, "layer_norm_eps": 1e-5}
    | dict.fromkeys(("qkv_bias", "output_bias", "gate_bias", "down_bias"), True),
    fixed=FIXED | {"norm_bias": True, "layout": replace(POST_NORM, joined=True, gated=False)},
    allowed={name: allowed for name, allowed in _OLD_CHOICES.items() if name not in _CHOSEN_BY_EXPERTS}
    | {
        "moe_normalize_expert_weights": (False, None),
        "expert_choice_router": (False,),
        "num_shared_experts": (0,),
        "ffn_div": (1,),
    },
    thetas={FULL: ("rotary_emb_base", 10000.0)},
    adapt=_split_experts,
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
    fixed=BIASED | {"gate_bias": False, "layout": replace(POST_NORM, joined=True, joined_halves=True, up_first=True)},
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
