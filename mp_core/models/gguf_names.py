"""Convert tensors of GGUF files to the names and the layout of transformers."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.quantization import QuantizedArray
from mp_core.files.checkpoint.gguf_file import SCHEMES, GgufTensor, open_gguf
from mp_core.files.checkpoint.loading import most_and_others
from mp_core.models.architectures.table import Architecture
from mp_core.models.settings import Settings, choices

__all__ = ["GgufTensors", "gguf_tensors"]

_BLOCK = "encoder/layer_{}"
_BOTH = {
    "embeddings/word": "token_embd",
    f"{_BLOCK}/attention/query": "blk.{}.attn_q",
    f"{_BLOCK}/attention/key": "blk.{}.attn_k",
    f"{_BLOCK}/attention/value": "blk.{}.attn_v",
    f"{_BLOCK}/attention/attention_output": "blk.{}.attn_output",
    f"{_BLOCK}/output": "blk.{}.ffn_down",
}
_BERT = _BOTH | {
    "embeddings/position": "position_embd",
    "embeddings/token_type": "token_types",
    "embeddings/norm": "token_embd_norm",
    f"{_BLOCK}/attention/qkv": "blk.{}.attn_qkv",
    f"{_BLOCK}/attention_norm": "blk.{}.attn_output_norm",
    f"{_BLOCK}/intermediate": "blk.{}.ffn_up",
    f"{_BLOCK}/gate": "blk.{}.ffn_gate",
    f"{_BLOCK}/up": "blk.{}.ffn_up",
    f"{_BLOCK}/output_norm": "blk.{}.layer_output_norm",
}
_DECODER = _BOTH | {
    f"{_BLOCK}/attention_norm": "blk.{}.attn_norm",
    f"{_BLOCK}/attention/query_norm": "blk.{}.attn_q_norm",
    f"{_BLOCK}/attention/key_norm": "blk.{}.attn_k_norm",
    f"{_BLOCK}/intermediate_norm": "blk.{}.ffn_norm",
    f"{_BLOCK}/gate": "blk.{}.ffn_gate",
    f"{_BLOCK}/up": "blk.{}.ffn_up",
    f"{_BLOCK}/attention/qkv": "blk.{}.attn_qkv",
    f"{_BLOCK}/intermediate": "blk.{}.ffn_up",
    "encoder/norm": "output_norm",
}
_NORMED_OUTPUTS = _DECODER | {
    f"{_BLOCK}/after_attention_norm": "blk.{}.post_attention_norm",
    f"{_BLOCK}/output_norm": "blk.{}.post_ffw_norm",
}

Change = Callable[[Array, str, Settings], Array]
"""(numbers of the file, path of the layer, settings) -> the numbers in the layout of transformers."""


def _in_halves(x: Array, path: str, settings: Settings) -> Array:
    """Reorder query and key rows for rotary positions: from neighbouring pairs to pairs across the halves of a head."""
    if not path.endswith(("/query", "/key")):
        return x
    heads = len(x) // settings.head_size
    pairs = x.reshape(heads, -1, 2, *x.shape[1:])
    return pairs.swapaxes(1, 2).reshape(x.shape)


def _less_one(x: Array, path: str, settings: Settings) -> Array:
    """Subtract from the factors of norms the 1 that the network adds itself."""
    return x - np.float32(1) if path.endswith("norm") else x


def _after_padding(x: Array, path: str, settings: Settings) -> Array:
    """Put unused zero rows before the position table, up to the row of the first position."""
    unused = settings.max_position_embeddings - len(x)
    if path != "embeddings/position" or settings.padding_idx is None or unused != settings.padding_idx + 1:
        return x
    return np.concatenate([np.zeros((unused, x.shape[1]), x.dtype), x])


_KINDS: dict[str, tuple[str, Mapping[str, str], Change | None]] = {
    "bert": ("bert", _BERT, None),
    "roberta": ("bert", _BERT, _after_padding),
    "xlm-roberta": ("bert", _BERT, _after_padding),
    "nomic_bert": ("nomic-bert", _BERT, None),
    "qwen2": ("qwen2", _DECODER, None),
    "qwen3": ("qwen3", _DECODER, None),
    "phi3": ("phi3", _DECODER, None),
    "llama": ("llama", _DECODER, _in_halves),
    "mistral": ("llama", _DECODER, _in_halves),
    "gemma": ("gemma", _DECODER, _less_one),
    "gemma2": ("gemma2", _NORMED_OUTPUTS, _less_one),
    "gemma3_text": ("gemma3", _NORMED_OUTPUTS, _less_one),
}
"""``model_type`` -> (name of the network in GGUF files, path of a layer -> start of its tensor names, conversion)."""
_KEPT = "/query", "/key", "norm", "embeddings/position"
"""The ends of the paths of tensors that a conversion may change."""
_OF_ROPES = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
"""Tensors that are settings: divisors of the rotary angles, which ``config.json`` has too."""


class GgufTensors(Mapping[str, Array | QuantizedArray]):
    """Tensors under their names in transformers, decoded from the file when they are read; the last one is kept.

    Matrices of the kinds in :data:`SCHEMES` stay codes. To keep the decoded numbers of all tensors would take several
    times the memory of the file.
    """

    def __init__(self, found: Mapping[str, tuple[GgufTensor, str]], settings: Settings, change: Change | None) -> None:
        self._found, self._settings, self._change = found, settings, change
        self._last: tuple[str, Array | QuantizedArray] | None = None

    def __getitem__(self, name: str) -> Array | QuantizedArray:
        if self._last is None or self._last[0] != name:
            self._last = name, self._decoded(name)
        return self._last[1]

    def _decoded(self, name: str) -> Array | QuantizedArray:
        tensor, path = self._found[name]
        change = self._change if path.endswith(_KEPT) else None
        codes = tensor.codes() if change in (None, _in_halves) else None
        if codes is None:
            numbers = tensor.numbers()
            return numbers if change is None else change(numbers, path, self._settings)
        if change is None:
            return codes
        values, scale = (change(part, path, self._settings) for part in (codes.values, codes.scale))
        zero = None if codes.zero_point is None else change(codes.zero_point, path, self._settings)
        return QuantizedArray(values, scale, zero, codes.axis, codes.group_size, codes.dtype, codes.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def gguf_tensors(
    path: Path, kind: str, architecture: Architecture, settings: Settings
) -> tuple[GgufTensors, tuple[str | None, dict[str, str]]]:
    """Return the tensors of a network's GGUF file, and the policies under which they are stored.

    `kind` is the ``model_type`` in ``config.json``. Raise OSError if the file cannot be read, and ValueError if it is
    damaged, belongs to another network, or has a tensor that the network does not have.
    """
    if kind not in _KINDS:
        raise ValueError(
            f"{path}: mp_core does not know the tensors of {kind!r} in GGUF files; expected {choices(_KINDS)}"
        )
    expected, names, change = _KINDS[kind]
    tensors, metadata = open_gguf(path)
    network: Any = metadata.get("general.architecture")
    if network != expected:
        raise ValueError(f"{path}: general.architecture is {network!r}; expected {expected!r}, for model_type {kind!r}")
    of_names = {"output.weight": ("lm_head.weight", "head")}
    for layer, name in architecture.names(settings).items():
        number = layer.partition("layer_")[2].partition("/")[0]
        pattern = names.get(layer.replace(f"layer_{number}/", "layer_{}/") if number else layer)
        if pattern is not None:
            of_names |= {f"{pattern.format(number)}.{part}": (f"{name}.{part}", layer) for part in ("weight", "bias")}
    found = {}
    for name, tensor in tensors.items():
        if name in of_names:
            today, layer = of_names[name]
            found[today] = tensor, layer
        elif name not in _OF_ROPES:
            raise ValueError(f"{path}: tensor {name} is left over; expected tensors of {kind!r}")
    policies = {
        name: f"{SCHEMES[tensor.kind.name]}_from_float32"
        for name, (tensor, _) in found.items()
        if tensor.kind.name in SCHEMES
    }
    return GgufTensors(found, settings, change), most_and_others(policies)
