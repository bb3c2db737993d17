"""The encoders of T5 [1]_, mT5 and UMT5 (sentence-t5, GTR): attention scores have a bias for the distance of tokens.

.. [1] C. Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", JMLR 2020.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mp_core.models.architectures.gated import UNBIASED, GatedArchitecture
from mp_core.models.gated_blocks import Layout
from mp_core.models.settings import Settings, unexpected

__all__ = ["MT5", "T5", "UMT5"]


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Architecture(GatedArchitecture):
    """An encoder of T5 as ``transformers`` writes it."""

    # The default of ``feed_forward_proj``: the name of an activation, with the prefix ``gated-`` for gated ones.
    perceptron: str = "relu"

    def read(self, config: Mapping[str, Any], path: Any) -> Settings:
        projection = config.get("feed_forward_proj", self.perceptron)
        if not isinstance(projection, str):
            raise unexpected(
                path, "feed_forward_proj", projection, "the name of an activation, maybe with 'gated-' before it"
            )
        activation = "gelu_new" if projection == "gated-gelu" else projection.removeprefix("gated-")
        found: Any = GatedArchitecture.read(self, {**config, "feed_forward_proj": activation}, path)
        layout = replace(found.layout, gated=projection.startswith("gated-"))
        settings: Settings = replace(found, layout=layout, score_scale=1.0)
        return settings


_LAYOUT = Layout(overflowing=("output",))
T5 = T5Architecture(
    model_types=("t5",),
    prefix="transformer.",
    tensors={
        "embeddings/word": "shared",
        "encoder/position_bias": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "encoder/layer_{}/attention_norm": "encoder.block.{}.layer.0.layer_norm",
        "encoder/layer_{}/attention/query": "encoder.block.{}.layer.0.SelfAttention.q",
        "encoder/layer_{}/attention/key": "encoder.block.{}.layer.0.SelfAttention.k",
        "encoder/layer_{}/attention/value": "encoder.block.{}.layer.0.SelfAttention.v",
        "encoder/layer_{}/attention/attention_output": "encoder.block.{}.layer.0.SelfAttention.o",
        "encoder/layer_{}/intermediate_norm": "encoder.block.{}.layer.1.layer_norm",
        "encoder/layer_{}/intermediate": "encoder.block.{}.layer.1.DenseReluDense.wi",
        "encoder/layer_{}/gate": "encoder.block.{}.layer.1.DenseReluDense.wi_0",
        "encoder/layer_{}/up": "encoder.block.{}.layer.1.DenseReluDense.wi_1",
        "encoder/layer_{}/output": "encoder.block.{}.layer.1.DenseReluDense.wo",
        "encoder/norm": "encoder.final_layer_norm",
    },
    tied={"encoder.embed_tokens.weight": "shared.weight"},
    entries={
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "head_dim": "d_kv",
        "intermediate_size": "d_ff",
        "hidden_act": "feed_forward_proj",
        "layer_norm_eps": "layer_norm_epsilon",
    },
    aliases=("hidden_size", "num_hidden_layers", "num_attention_heads"),
    defaults={
        "vocab_size": 32128,
        "hidden_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "max_position_embeddings": 2**12,  # transformers has no limit: it does not read n_positions
        "hidden_act": "relu",
        "layer_norm_eps": 1e-6,
    },
    fixed=UNBIASED | {"type_vocab_size": 0, "layout": _LAYOUT, "position_buckets": 32},
    allowed={
        "relative_attention_num_buckets": (32,),
        "relative_attention_max_distance": (128,),
        "is_decoder": (False,),
    },
    thetas={},
    head_dim=64,
)
MT5 = replace(
    T5,
    model_types=("mt5",),
    defaults=dict(T5.defaults)
    | {"vocab_size": 250112, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 6},
    perceptron="gated-gelu",
)
UMT5 = replace(
    MT5,
    model_types=("umt5",),
    tensors={path: name for path, name in T5.tensors.items() if path != "encoder/position_bias"}
    | {"encoder/layer_{}/position_bias": "encoder.block.{}.layer.0.SelfAttention.relative_attention_bias"},
    fixed=dict(MT5.fixed) | {"layout": replace(_LAYOUT, own_biases=True)},
)
