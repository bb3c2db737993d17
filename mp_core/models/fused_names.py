"""Matrices that files have as one, apart, by the names that the architectures know.

XLM-RoBERTa as Jina's code for FlashAttention writes it (jina-reranker-v2) has one matrix for three, and other names;
Nomic's mixtures of experts have one for all experts.
"""

import re
from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np

from mp_core.quantization import QuantizedArray, dequantize

__all__ = ["apart", "experts_apart", "is_fused"]

_NAMES = (
    (r"^((?:roberta\.)?)emb_ln\.", r"\1embeddings.LayerNorm."),
    (r"\bencoder\.layers\.(\d+)\.mixer\.out_proj\.", r"encoder.layer.\1.attention.output.dense."),
    (r"\bencoder\.layers\.(\d+)\.norm1\.", r"encoder.layer.\1.attention.output.LayerNorm."),
    (r"\bencoder\.layers\.(\d+)\.mlp\.fc1\.", r"encoder.layer.\1.intermediate.dense."),
    (r"\bencoder\.layers\.(\d+)\.mlp\.fc2\.", r"encoder.layer.\1.output.dense."),
    (r"\bencoder\.layers\.(\d+)\.norm2\.", r"encoder.layer.\1.output.LayerNorm."),
)
"""Pattern of a name in such files -> the name that transformers gives the tensor."""
_FUSED = re.compile(r"(.*\b)?encoder\.layers\.(\d+)\.mixer\.Wqkv\.(weight|bias)")


def is_fused(tensors: Mapping[str, Any]) -> bool:
    """Whether tensors have such names."""
    return any(_FUSED.fullmatch(name) for name in tensors)


def apart(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors by the names of transformers, and queries, keys and values apart."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        fused = _FUSED.fullmatch(name)
        if fused is None:
            found[reduce(lambda said, pair: re.sub(pair[0], pair[1], said), _NAMES, name)] = tensor
            continue
        start, block, kind = fused.groups()
        rows = dequantize(tensor) if isinstance(tensor, QuantizedArray) else np.asarray(tensor)
        for part, own in zip(
            ("query", "key", "value"), np.array_split(rows, 3) if rows.ndim else [rows] * 3, strict=True
        ):
            found[f"{start or ''}encoder.layer.{block}.attention.self.{part}.{kind}"] = own
    return found


_STACKED = re.compile(r"(.*\bmlp\.experts)\.mlp\.(w1|w2)")


def experts_apart(tensors: Mapping[str, Any], experts: int, path: Any) -> dict[str, Any]:
    """Return the tensors with the matrices of each expert apart, as those of products of rows with their transposes.

    Raises
    ------
    ValueError
        A matrix has not as many rows for each expert.
    """
    found: dict[str, Any] = {}
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
