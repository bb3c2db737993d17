"""The JSON files of a model's folder, derived from the metadata of a GGUF file.

A GGUF file is opened as if it were a folder: ``model.gguf/config.json`` stands for what its metadata say about the
network, and so on for the other files of :data:`_FILES`. Keys and their meanings are those of ``llama-arch.cpp``,
``llama-model.cpp`` and ``convert_hf_to_gguf.py`` of llama.cpp.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mp_core.files.checkpoint.gguf_file import GgufTensor, Skipped, open_gguf
from mp_core.models.gguf_tokenizer import ARRAYS, WORDS, ends_of, named_tokens, tokenizer_of
from mp_core.models.settings import choices, unexpected

__all__ = ["derived", "is_derived"]

_ENTRIES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "sliding_window_pattern",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
}
"""Key without the name of the network -> entry of ``config.json``."""
_NEEDED = tuple(_ENTRIES)[:5]
_READ = (
    "vocab_size", "rope.dimension_count", "attention.value_length", "pooling_type", "attention.causal",
    "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.finetuned",
)  # fmt: skip
"""Other keys that are read or checked below, or that repeat what the tensors say."""
_MODEL_TYPES = {"gemma3": "gemma3_text"} | {
    name: name for name in ("gemma", "gemma2", "llama", "phi3", "qwen2", "qwen3")
}
"""Name of a network in GGUF files -> ``model_type``."""
_OF_27_BILLION = {"gemma2": 46, "gemma3": 62}
"""Gemma 2 and 3 with so many blocks scale scores by hidden_size / heads, others by the length of a head."""
_POOLINGS = {1: "mean", 2: "cls", 3: "lasttoken"}


def is_derived(path: Path) -> bool:
    """Return whether :func:`derived` returns an object for a path."""
    return _parts(path)[1] in _FILES


def derived(path: Path) -> dict[str, Any] | None:
    """Return the object of a JSON file for which a GGUF file stands, such as ``model.gguf/config.json``; else None.

    Raise OSError if the GGUF file cannot be read, and ValueError if it is damaged or describes a network or a tokenizer
    that mp_core does not have.
    """
    file, name = _parts(path)
    return _FILES[name](file) if name in _FILES else None


def _parts(path: Path) -> tuple[Path, str]:
    """Return the GGUF file above a path and the rest of the path, "" if no folder above it is such a file."""
    file = next((place for place in path.parents[:2] if place.suffix == ".gguf" and not place.is_dir()), path)
    return file, "" if file is path else path.relative_to(file).as_posix()


def _config(file: Path) -> dict[str, Any]:
    tensors, said = open_gguf(file)
    network, own = _own(file, said)
    config = {entry: own[key] for key, entry in _ENTRIES.items() if key in own}
    for key in _NEEDED:
        if type(own.get(key)) is not int:
            raise unexpected(file, f"{network}.{key}", own.get(key), "an integer")
    words = tensors.get("token_embd.weight")
    if words is None or len(words.shape) != 2:
        raise ValueError(f"{file}: tensor token_embd.weight is missing, or has not two axes")
    heads, size = config["num_attention_heads"], config.get("head_dim", own["embedding_length"])
    size = size if "head_dim" in config else size // max(heads, 1)
    rotated = own.get("rope.dimension_count", size)
    if rotated != size:
        raise unexpected(file, f"{network}.rope.dimension_count", rotated, f"{size}, the length of a head")
    if network in _OF_27_BILLION:
        wide = config["num_hidden_layers"] == _OF_27_BILLION[network]
        config["query_pre_attn_scalar"] = config["hidden_size"] // max(heads, 1) if wide else size
    return config | {
        "model_type": "mistral" if network == "llama" and "sliding_window" in config else _MODEL_TYPES[network],
        "architectures": ["ForCausalLM"],
        "vocab_size": words.shape[0],
        "num_key_value_heads": config.get("num_key_value_heads", heads),
        "rms_norm_eps": float(str(np.float32(config.get("rms_norm_eps", 1e-6)))),  # 1e-5 is not a float32
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_scaling": _scaling(file, network, own, tensors),
    }


def _own(file: Path, said: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the network and its keys; refuse a network or a setting that mp_core does not know."""
    network = said.get("general.architecture")
    if network not in _MODEL_TYPES:
        raise unexpected(file, "general.architecture", network, choices(_MODEL_TYPES))
    own = {key.removeprefix(f"{network}."): value for key, value in said.items() if key.startswith(f"{network}.")}
    for key, value in own.items():
        if isinstance(value, Skipped) and key in (*_ENTRIES, *_READ):
            raise unexpected(file, f"{network}.{key}", "an array", "one number for all blocks")
        if key not in _ENTRIES and key not in _READ and value not in (0, False, ""):
            raise ValueError(f"{file}: {network}.{key} is unknown; it might change what the network computes")
    return network, own


def _scaling(file: Path, network: str, own: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> Any:
    """Return ``rope_scaling`` of ``config.json``, from keys or from tensors with a divisor of each angle."""
    length = own["context_length"]
    original = own.get("rope.scaling.original_context_length", length)
    listed = [tensors.get(f"rope_{name}.weight") for name in ("freqs", "factors_short", "factors_long")]
    if any(listed):
        freqs, short, long = (None if each is None else each.numbers().astype(float).tolist() for each in listed)
        factor = own.get("rope.scaling.attn_factor", 1.0 if freqs else 0.0)
        lists = {"short_factor": short or freqs, "long_factor": long or freqs, "attention_factor": float(factor)}
        return {"rope_type": "longrope", "original_max_position_embeddings": length if freqs else original} | lists
    kind = own.get("rope.scaling.type", "none")
    if kind == "none" or (kind == "linear" and own.get("rope.scaling.factor", 1.0) == 1.0):
        return None
    found = {"rope_type": kind, "factor": own.get("rope.scaling.factor")}
    if kind == "yarn":
        found["original_max_position_embeddings"] = original
        names = {"attn_factor": "attention_factor", "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
        found |= {name: own[f"rope.scaling.{key}"] for key, name in names.items() if f"rope.scaling.{key}" in own}
    elif kind != "linear":
        raise unexpected(file, f"{network}.rope.scaling.type", kind, "'none', 'linear' or 'yarn'")
    return found


def _pooling(file: Path) -> dict[str, Any]:
    _, said = open_gguf(file)
    network, own = _own(file, said)
    kind = own.get("pooling_type")
    if kind not in _POOLINGS:
        expected = f"{choices(_POOLINGS)}; a model that generates texts has none: open it as a Generator"
        raise unexpected(file, f"{network}.pooling_type", kind, expected)
    return {"pooling_mode": _POOLINGS[kind]}


def _tokenizer(file: Path) -> dict[str, Any]:
    return tokenizer_of(file, open_gguf(file, ARRAYS)[1])


def _tokenizer_config(file: Path) -> dict[str, Any]:
    said = open_gguf(file, WORDS)[1]
    templates = {"chat_template": said["tokenizer.chat_template"]} if "tokenizer.chat_template" in said else {}
    return {"tokenizer_class": "TokenizersBackend"} | named_tokens(file, said) | templates


def _generation_config(file: Path) -> dict[str, Any]:
    return {"eos_token_id": ends_of(file, open_gguf(file, WORDS)[1])}


_FILES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "config.json": _config,
    "1_Pooling/config.json": _pooling,
    "tokenizer.json": _tokenizer,
    "tokenizer_config.json": _tokenizer_config,
    "generation_config.json": _generation_config,
}
"""Path below a GGUF file -> the function that derives its object."""
