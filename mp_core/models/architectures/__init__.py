"""The network architectures of mp_core: one table for each."""

from collections.abc import Mapping
from typing import Any

from mp_core.models.architectures.bert import BERT, ERNIE
from mp_core.models.architectures.deberta import DEBERTA
from mp_core.models.architectures.distilbert import DISTILBERT
from mp_core.models.architectures.gemma import EMBEDDING_GEMMA2, GEMMA, GEMMA2, GEMMA3
from mp_core.models.architectures.jina import JINA_V2, JINA_V3, JINA_V3_OWN
from mp_core.models.architectures.modernbert import MODERNBERT
from mp_core.models.architectures.mpnet import MPNET
from mp_core.models.architectures.narrow import ALBERT, ELECTRA
from mp_core.models.architectures.nomic import GTE, GTE_OWN, NOMIC_BERT, NOMIC_EXPERTS
from mp_core.models.architectures.phi import PHI3
from mp_core.models.architectures.qwen import EUROBERT, LLAMA, LLAMA_BOTH_WAYS, MISTRAL, QWEN2, QWEN3
from mp_core.models.architectures.roberta import ROBERTA, XLM_ROBERTA
from mp_core.models.architectures.static import STATIC, STATIC_WEIGHTS
from mp_core.models.architectures.t5 import MT5, T5, UMT5
from mp_core.models.architectures.table import Architecture
from mp_core.models.settings import choices, unexpected

__all__ = ["ARCHITECTURES", "Architecture", "architecture_of"]

_TABLES: tuple[Architecture, ...] = (
    BERT, ERNIE, ROBERTA, XLM_ROBERTA, DISTILBERT, MPNET, ELECTRA, ALBERT, DEBERTA, MODERNBERT, NOMIC_BERT,
    NOMIC_EXPERTS, GTE, GTE_OWN, EUROBERT, JINA_V2, JINA_V3, JINA_V3_OWN, T5, MT5, UMT5, QWEN3, QWEN2, LLAMA,
    LLAMA_BOTH_WAYS, MISTRAL, PHI3, GEMMA, GEMMA2, GEMMA3, EMBEDDING_GEMMA2, STATIC,
)  # fmt: skip

ARCHITECTURES: dict[str, Architecture] = {name: table for table in _TABLES for name in table.model_types}
"""``model_type`` in ``config.json`` -> its architecture."""
_JINAS: dict[tuple[Any, Any], Architecture] = {("bert", "alibi"): JINA_V2, ("xlm-roberta", "rotary"): JINA_V3_OWN}
"""(``model_type``, ``position_embedding_type``) -> Jina's networks, which reuse the ``model_type`` of others."""


def architecture_of(config: Mapping[str, Any], path: Any) -> Architecture:
    """Return the architecture of a ``config.json``; raise ValueError, which names `path`, if mp_core lacks it."""
    if "model_type" not in config:
        raise ValueError(f"{path}: model_type is absent; expected {choices(ARCHITECTURES)}")
    kind = config["model_type"]
    positions = config.get("position_embedding_type")
    if isinstance(kind, str) and isinstance(positions, str) and (kind, positions) in _JINAS:
        return _JINAS[kind, positions]
    if kind in STATIC_WEIGHTS.model_types:
        return STATIC_WEIGHTS
    every = config.get("moe_every_n_layers")
    if kind == "nomic_bert" and type(every) is int and every > 0:
        return NOMIC_EXPERTS
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise unexpected(path, "model_type", kind, choices(ARCHITECTURES))
    return ARCHITECTURES[kind]
