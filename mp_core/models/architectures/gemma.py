"""Gemma, Gemma 2 [2]_, Gemma 3 [1]_, EmbeddingGemma and EmbeddingGemma 2.

Gemma 2 and later normalize inputs and outputs of each layer, and mix sliding-window and full attention.

.. [1] Gemma Team, "Gemma 3 Technical Report", 2025, arXiv:2503.19786.
.. [2] Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size", 2024, arXiv:2408.00118.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mp_core.models.architectures.gated import FULL, SLIDING, GatedArchitecture
from mp_core.models.architectures.qwen import QWEN2, QWEN3
from mp_core.models.embedding_gemma import EmbeddingGemmaEncoder, EmbeddingGemmaSettings
from mp_core.models.gated_blocks import GatedSettings, Layout
from mp_core.models.settings import KINDS, MOST_BLOCKS, Settings, choices, unexpected
from mp_core.utilities.numerals import integer_of

__all__ = ["EMBEDDING_GEMMA2", "GEMMA", "GEMMA2", "GEMMA3"]

_NORMED_OUTPUTS = {
    "encoder/layer_{}/after_attention_norm": "layers.{}.post_attention_layernorm",
    "encoder/layer_{}/intermediate_norm": "layers.{}.pre_feedforward_layernorm",
    "encoder/layer_{}/output_norm": "layers.{}.post_feedforward_layernorm",
}


_OVERFLOWING = ("attention_output", "after_attention_norm", "output", "output_norm")
"""Layers whose outputs can exceed float16: they compute the terms of the residual sum, with very large norm factors."""


def _kinds(config: Mapping[str, Any], blocks: int, path: Any) -> list[str]:
    """Return the kind of attention of each block: by default every sixth one is full."""
    every = config.get("_sliding_window_pattern", config.get("sliding_window_pattern", 6))
    if type(every) is not int or every < 1:
        raise unexpected(path, "sliding_window_pattern", every, "a positive int")
    return [SLIDING if (index + 1) % every else FULL for index in range(blocks)]


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
    | {
        "layout": Layout(
            normed_heads=True, normed_outputs=True, overflowing=_OVERFLOWING, norm_offset=1.0, scaled_embeddings=True
        )
    },
    allowed={
        "is_causal": (True,),
        "attn_logit_softcapping": (None,),
        "use_bidirectional_attention": (False, True, None),
    },
    kinds=_kinds,
    kinds_of=(FULL, SLIDING),
    is_causal=True,
    thetas={FULL: ("rope_theta", 1_000_000.0), SLIDING: ("rope_local_base_freq", 10_000.0)},
    head_dim=256,
    score_entry="query_pre_attn_scalar",
)


class GemmaArchitecture(GatedArchitecture):
    """Gemma of the first generation as ``transformers`` writes it."""

    __slots__ = ()

    def read(self, config: Mapping[str, Any], path: Any) -> Settings:
        """Return the settings of a ``config.json``; the first files call the tanh approximation ``gelu``."""
        renamed = {"hidden_act": "gelu_pytorch_tanh"} if config.get("hidden_act") == "gelu" else {}
        return GatedArchitecture.read(self, {**config, **renamed}, path)


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
    fixed=dict(QWEN3.fixed)
    | {"layout": Layout(normed_outputs=True, overflowing=_OVERFLOWING, norm_offset=1.0, scaled_embeddings=True)},
    allowed={"is_causal": (True,), "use_bidirectional_attention": (False, None)},
    kinds=lambda config, blocks, path: [FULL if index % 2 else SLIDING for index in range(blocks)],
    kinds_of=(FULL, SLIDING),
    is_causal=True,
    head_dim=256,
    score_entry="query_pre_attn_scalar",
    softcap_entry="attn_logit_softcapping",
)


class EmbeddingGemmaArchitecture(GatedArchitecture):
    """The text part of EmbeddingGemma 2, as ``transformers`` writes it."""

    __slots__ = ()

    def read(self, config: Mapping[str, Any], path: Any) -> Settings:
        """Return the settings of a ``config.json``, which may nest them in the object ``text_config``."""
        section = config.get("text_config") if config.get("model_type") == "embedding_gemma2" else config
        if not isinstance(section, Mapping):
            raise unexpected(path, "text_config", section, "an object")
        listed = section.get("layer_types")
        if isinstance(listed, list) and listed:  # the last block has full attention, regardless of the file
            section = {**section, "layer_types": [*listed[:-1], FULL]}
        found: Any = GatedArchitecture.read(self, section, path)
        if any(rope is not None and rope.factors for rope in found.ropes):
            raise unexpected(path, "the rope_type", "longrope", "another one where heads have several lengths")
        settings: Settings = replace(found, heads=_heads(section, found, path), score_scale=1.0)
        return settings

    def _axes(self, settings: Settings) -> dict[str, tuple[str, ...]]:
        signals = {"encoder/layer_{}/signal_output": ("hidden_size", "signal_size")}
        last = {"encoder/projection": ("output_size", "hidden_size")}
        return GatedArchitecture._axes(self, settings) | signals | last

    def _kinds(self, config: Mapping[str, Any], blocks: int, path: Any) -> list[str]:
        return [*GatedArchitecture._kinds(self, config, blocks, path)[:-1], FULL]

    def _reaches(self, config: Mapping[str, Any], is_causal: bool, path: Any) -> dict[str, int | None]:
        """Return how many tokens away attention reaches. Here the file gives this reach, not the window's width."""
        before = GatedArchitecture._reaches(self, config, True, path)[SLIDING] or 0
        return {FULL: None, SLIDING: before + 1}


def _heads(config: Mapping[str, Any], found: GatedSettings, path: Any) -> tuple[tuple[int, int], ...]:
    """Return for each block the number of key and value heads, and the head size."""
    far = {"head_dim": config.get("global_head_dim", 512), "num_key_value_heads": config.get(_GLOBAL_HEADS, 1)}
    usual = {"head_dim": found.head_dim, "num_key_value_heads": found.num_key_value_heads}
    default = {i: far for i, reach in enumerate(found.reaches) if reach is None}
    given = config.get("per_layer_config", default)
    blocks = range(found.num_hidden_layers)
    listed = {_number(i): own for i, own in given.items()} if isinstance(given, dict) else {None: given}
    if not all(i in blocks and isinstance(own, dict) and own.keys() <= usual.keys() for i, own in listed.items()):
        expected = f"an object of numbers of blocks, each with {choices(usual)}"
        raise unexpected(path, "per_layer_config", given, expected)
    heads = []
    for i in blocks:
        own = usual | listed.get(i, {})
        shared, size = own["num_key_value_heads"], own["head_dim"]
        if not KINDS[int][0](size) or size % 2:
            raise unexpected(path, f"the head_dim of block {i}", size, "a positive, even int")
        if not KINDS[int][0](shared) or found.num_attention_heads % shared:
            expected = f"a divisor of num_attention_heads, {found.num_attention_heads}"
            raise unexpected(path, f"the num_key_value_heads of block {i}", shared, expected)
        heads.append((shared, size))
    return tuple(heads)


def _number(name: Any) -> Any:
    """Return the number of a block from its JSON key, a string that may have leading zeros; else the key itself."""
    number = integer_of(name, 0, MOST_BLOCKS) if isinstance(name, str) else None
    return name if number is None else number


_GLOBAL_HEADS = "num_global_key_value_heads"
_SIGNALS = {
    "encoder/layer_{}/signal_gate": "layers.{}.ple_block.per_layer_input_gate",
    "encoder/layer_{}/signal_output": "layers.{}.ple_block.per_layer_projection",
    "encoder/layer_{}/signal_norm": "layers.{}.ple_block.post_per_layer_input_norm",
    "encoder/layer_{}/factor": "layers.{}.layer_scalar",
    "encoder/signals": "ple.per_layer_model_projection",
    "encoder/signals_norm": "ple.per_layer_projection_norm",
    "encoder/projection": "embedding_projection",
}
EMBEDDING_GEMMA2 = EmbeddingGemmaArchitecture(
    model_types=("embedding_gemma2_text", "embedding_gemma2"),
    prefix="language_model.",
    tensors=dict(GEMMA3.tensors) | _SIGNALS,
    entries=dict(GEMMA3.entries) | {"signal_size": "hidden_size_per_layer_input", "output_size": "embedding_dim"},
    defaults=dict(GEMMA3.defaults)
    | {
        "vocab_size": 262144,
        "hidden_size": 512,
        "num_hidden_layers": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 2048,
        "max_position_embeddings": 262144,
        "signal_size": 512,
        "output_size": 768,
    },
    fixed=dict(GEMMA3.fixed)
    | {
        "layout": Layout(
            normed_heads=True,
            normed_values=True,
            normed_outputs=True,
            scaled_embeddings=True,
            overflowing=(*_OVERFLOWING, "signal_gate", "signal_output", "signal_norm"),
        ),
        "heads": (),
    },
    renamed={r"\.layer_scalar$": ".layer_scalar.weight"},
    settings=EmbeddingGemmaSettings,
    encoder=EmbeddingGemmaEncoder,
    kinds=_kinds,
    kinds_of=(FULL, SLIDING),
    window=("sliding_window", 512),
    thetas=GEMMA3.thetas,
    head_dim=256,
)
