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
from mp_core.checkpoint.folder import missing
from mp_core.checkpoint.header import refuse_other
from mp_core.checkpoint.output import naming
from mp_core.quantization import QuantizedArray, dequantize

__all__ = ["ACTIVATIONS", "Settings", "Weights", "choices", "read_list", "read_object", "read_settings", "read_text"]

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "relu": "relu",
    "relu6": "relu6",
    "silu": "silu",
    "swish": "silu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "linear": "linear",
}
"""Name of an activation in ``config.json`` -> its name here."""

# What mp_core computes: config.json may say these, and means the first where it says nothing.
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "model_type": ("bert",),
    "hidden_act": tuple(ACTIVATIONS),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
}
_KINDS: dict[type, tuple[Callable[[Any], bool], str]] = {
    int: (lambda value: 0 < value < 2**31, "a positive int below 2^31"),
    float: (lambda value: 0 < value < math.inf, "a positive, finite float"),
    str: (lambda _: True, "a str"),
}


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
    config = read_object(path)
    for name, allowed in _ALLOWED.items():
        if config.setdefault(name, allowed[0]) not in allowed:
            raise ValueError(f"{path}: {name} is {config[name]!r}; expected {choices(allowed)}")
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


def read_text(path: Path) -> str:
    """Return what a file holds; errors say what it is, or what is there if it is not."""
    if not path.exists():
        raise missing(path)
    with naming(path):
        content = path.read_bytes()
    refuse_other(content, path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    content: dict[str, Any] = _read_json(path, dict)
    return content


def read_list(path: Path) -> list[Any]:
    """Return the JSON array in a file."""
    content: list[Any] = _read_json(path, list)
    return content


def _read_json(path: Path, kind: type) -> Any:
    text = read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, kind):
        raise ValueError(f"{path} holds a JSON {type(content).__name__}; expected a {kind.__name__}")
    return content


def choices(allowed: Any) -> str:
    """Return what may be there as a part of a sentence."""
    return " or ".join(map(repr, allowed))
