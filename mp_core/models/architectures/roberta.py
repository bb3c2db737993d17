"""RoBERTa [1]_, XLM-RoBERTa [2]_ and CamemBERT: BERT whose positions start at ``padding_idx + 1``.

.. [1] Y. Liu et al., "RoBERTa: A Robustly Optimized BERT Pretraining Approach", arXiv:1907.11692, 2019.
.. [2] A. Conneau et al., "Unsupervised Cross-lingual Representation Learning at Scale", ACL 2020.
"""

import re
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np

from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.models.architectures.bert import ALLOWED, DEFAULTS, TENSORS
from mp_core.models.architectures.table import Architecture, Tensors
from mp_core.models.settings import Settings
from mp_core.models.slots import Tensor

__all__ = ["ROBERTA", "XLM_ROBERTA"]

ROBERTA = Architecture(
    model_types=("roberta",),
    prefix="roberta.",
    tensors=TENSORS,
    entries={"padding_idx": "pad_token_id"},
    defaults=DEFAULTS | {"padding_idx": 1, "vocab_size": 50265},
    fixed={"position_buckets": 0},
    allowed=ALLOWED,
)
_NAMES = (
    (r"^((?:roberta\.)?)emb_ln\.", r"\1embeddings.LayerNorm."),
    (r"\bencoder\.layers\.(\d+)\.mixer\.out_proj\.", r"encoder.layer.\1.attention.output.dense."),
    (r"\bencoder\.layers\.(\d+)\.norm1\.", r"encoder.layer.\1.attention.output.LayerNorm."),
    (r"\bencoder\.layers\.(\d+)\.mlp\.fc1\.", r"encoder.layer.\1.intermediate.dense."),
    (r"\bencoder\.layers\.(\d+)\.mlp\.fc2\.", r"encoder.layer.\1.output.dense."),
    (r"\bencoder\.layers\.(\d+)\.norm2\.", r"encoder.layer.\1.output.LayerNorm."),
)
"""Pattern of a tensor name in Jina's files for FlashAttention -> its name in transformers."""
_FUSED = re.compile(r"(.*\b)?encoder\.layers\.(\d+)\.mixer\.Wqkv\.(weight|bias)")


def _split_fused(tensors: Tensors, settings: Settings, path: Path) -> Tensors:
    """Return the tensors under their names in transformers, with query, key and value separated.

    Jina's code for FlashAttention (jina-reranker-v2) writes one joint matrix, and uses other names.
    """
    if not any(_FUSED.fullmatch(name) for name in tensors):
        return tensors
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        fused = _FUSED.fullmatch(name)
        if fused is None:
            found[reduce(lambda text, pair: re.sub(pair[0], pair[1], text), _NAMES, name)] = tensor
            continue
        start, block, kind = fused.groups()
        rows = dequantize(tensor) if isinstance(tensor, QuantizedArray) else np.asarray(tensor)
        for part, own in zip(
            ("query", "key", "value"), np.array_split(rows, 3) if rows.ndim else [rows] * 3, strict=True
        ):
            found[f"{start or ''}encoder.layer.{block}.attention.self.{part}.{kind}"] = own
    return found


XLM_ROBERTA = replace(
    ROBERTA, model_types=("xlm-roberta", "camembert"), defaults=DEFAULTS | {"padding_idx": 1}, adapt=_split_fused
)
