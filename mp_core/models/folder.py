"""Read and check the files of a model folder: every error names the file, what it holds and what is expected."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from mp_core import dtypes
from mp_core.checkpoint import open_tensors
from mp_core.quantization import QuantizedArray, dequantize

__all__ = ["POOLINGS", "Settings", "Weights", "read_pooling", "read_settings", "read_tokenizer"]

# What mp_core computes: config.json may say these, and means the first where it says nothing.
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "model_type": ("bert",),
    "hidden_act": ("gelu", "relu", "silu"),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
}
_KINDS: dict[type, tuple[Callable[[Any], bool], str]] = {
    int: (lambda value: 0 < value < 2**31, "a positive int below 2^31"),
    float: (lambda value: 0 < value < math.inf, "a positive, finite float"),
    str: (lambda _: True, "a str"),
}
_MODULES = ("Transformer", "Pooling", "Normalize")

POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
"""Switch in ``1_Pooling/config.json`` -> name of the pooling."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``config.json`` says about a BERT network."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float
    hidden_act: str

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of a checkpoint, checked one by one as they are taken."""

    path: Path
    tensors: Mapping[str, np.ndarray[Any, Any] | QuantizedArray]
    prefix: str

    @classmethod
    def open(cls, folder: Path, num_layers: int) -> "Weights":
        """Map ``model.safetensors``, or the shards of its index, which has this many layers.

        The names may all begin with ``bert.``.
        """
        index, path = folder / "model.safetensors.index.json", folder / "model.safetensors"
        path = index if index.exists() else path
        tensors = open_tensors(path)
        prefix = "bert." if any(name.startswith("bert.") for name in tensors) else ""
        for name in tensors:
            layer = re.match(rf"{prefix}encoder\.layer\.(\d+)\.", name)
            if layer and int(layer[1]) >= num_layers:
                raise ValueError(f"{path}: tensor {name} is left over; expected num_hidden_layers={num_layers}")
        return cls(path, tensors, prefix)

    def take(self, name: str, *shape: int) -> np.ndarray[Any, Any]:
        """Return a floating-point tensor of exactly this shape; codes as the float32 numbers that they stand for."""
        name = self.prefix + name
        if name not in self.tensors:
            raise ValueError(f"{self.path}: tensor {name} is missing; expected shape {shape}")
        tensor = self.tensors[name]
        if tensor.shape != shape:
            raise ValueError(f"{self.path}: tensor {name} has shape {tensor.shape}; expected {shape}")
        if isinstance(tensor, QuantizedArray):
            return dequantize(tensor)
        if not dtypes.is_float(tensor.dtype):
            raise ValueError(f"{self.path}: tensor {name} has dtype {tensor.dtype}; expected a floating-point type")
        return tensor


def read_settings(folder: Path) -> Settings:
    """Read ``config.json``; refuse a network that is not a BERT encoder."""
    path = folder / "config.json"
    config = _read_object(path)
    for name, allowed in _ALLOWED.items():
        if config.setdefault(name, allowed[0]) not in allowed:
            raise ValueError(f"{path}: {name} is {config[name]!r}; expected {_choices(allowed)}")
    kinds = get_type_hints(Settings)
    for name, kind in kinds.items():
        value: Any = config.get(name)
        fits, expected = _KINDS[kind]
        if type(value) is not kind or not fits(value):  # a bool is not an int here
            raise ValueError(f"{path}: {name} is {value!r}; expected {expected}")
    settings = Settings(**{name: config[name] for name in kinds})
    if settings.hidden_size % settings.num_attention_heads:
        raise ValueError(
            f"{path}: hidden_size is {settings.hidden_size}; "
            f"expected a multiple of num_attention_heads, {settings.num_attention_heads}"
        )
    return settings


def read_pooling(folder: Path, settings: Settings) -> str:
    """Read which one of :data:`POOLINGS` follows the network, and that nothing but normalization follows that."""
    modules_path = folder / "modules.json"
    if modules_path.exists():
        for module in _read_json(modules_path, list):
            if not isinstance(module, dict):
                raise ValueError(f"{modules_path} lists {module!r}; expected JSON objects only")
            kind = str(module.get("type", "")).rpartition(".")[2]
            if kind not in _MODULES:
                raise ValueError(f"{modules_path}: module {kind!r} is unknown; expected {_choices(_MODULES)}")
    path = folder / "1_Pooling" / "config.json"
    config = _read_object(path)
    width = config.get("word_embedding_dimension", settings.hidden_size)
    if width != settings.hidden_size:
        raise ValueError(f"{path}: word_embedding_dimension is {width!r}; expected hidden_size, {settings.hidden_size}")
    switches = {key: value for key, value in config.items() if key.startswith("pooling_mode")}
    for key, value in switches.items():
        if not isinstance(value, bool):
            raise ValueError(f"{path}: {key} is {value!r}; expected true or false")
    chosen = [key for key, value in switches.items() if value]
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise ValueError(f"{path}: the pooling is {' + '.join(chosen) or 'none'}; expected {_choices(POOLINGS)}")
    return POOLINGS[chosen[0]]


def read_tokenizer(folder: Path, settings: Settings) -> Any:
    """Return the folder's ``tokenizers.Tokenizer``, which cuts at the least limit stated there and does not pad."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError("a sentence encoder needs the package tokenizers: pip install tokenizers") from error
    path = folder / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises this very class
        raise ValueError(f"{path} is not a valid tokenizer: {error}") from error
    if tokenizer.get_vocab_size() > settings.vocab_size:
        raise ValueError(
            f"{path} has {tokenizer.get_vocab_size()} tokens; expected at most vocab_size, {settings.vocab_size}"
        )
    tokenizer.no_padding()
    tokenizer.enable_truncation(_max_length(folder, settings))
    return tokenizer


def _max_length(folder: Path, settings: Settings) -> int:
    """Return the tokens that a text may have: the least limit that the folder states."""
    limits: list[float] = [settings.max_position_embeddings]
    for name, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        path = folder / name
        limit = _read_object(path).get(key) if path.exists() else None
        if limit is None:
            continue
        if not (isinstance(limit, int | float) and limit >= 2 and limit % 1 == 0):
            raise ValueError(f"{path}: {key} is {limit!r}; expected an integer of at least 2")
        limits.append(limit)
    return int(min(limits))


def _read_object(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = _read_json(path, dict)
    return content


def _read_json(path: Path, kind: type) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, kind):
        raise ValueError(f"{path} holds a JSON {type(content).__name__}; expected a {kind.__name__}")
    return content


def _choices(allowed: Any) -> str:
    return " or ".join(map(repr, allowed))
