"""From the tensors of a checkpoint to the weights of a model."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mp_core import dtypes
from mp_core.arrays import Array
from mp_core.checkpoint import open_tensors
from mp_core.layers import Dense, Embedding, Layer, LayerNormalization
from mp_core.models.blocks import PositionBias, Positions
from mp_core.models.model import Model
from mp_core.quantization import QuantizedArray, dequantize

__all__ = ["Weights", "fill", "layers_of", "names_of"]


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of a checkpoint, checked one by one as they are taken.

    Attributes
    ----------
    path : Path
        The file, for messages.
    tensors : mapping of str to ndarray or QuantizedArray
    prefix : str
        How the names of the network's tensors begin.
    names : mapping of str to str
        What `transformers` calls a tensor today -> its name in the file, prefixes included.
    """

    path: Path
    tensors: Mapping[str, Array | QuantizedArray]
    prefix: str
    names: Mapping[str, str]

    @classmethod
    def open(cls, folder: Path, model: Model) -> "Weights":
        """Map ``model.safetensors``, or the shards of its index."""
        index, path = folder / "model.safetensors.index.json", folder / "model.safetensors"
        path = index if index.exists() else path
        tensors = open_tensors(path)
        architecture, blocks = model.architecture, model.settings.num_hidden_layers
        entry = architecture.entries.get("num_hidden_layers", "num_hidden_layers")
        prefix = architecture.prefix if any(name.startswith(architecture.prefix) for name in tensors) else ""
        for name in tensors:
            number = architecture.block_of(name.removeprefix(prefix))
            if number is not None and number >= blocks:
                raise ValueError(f"{path}: tensor {name} is left over; expected {entry}={blocks}")
        return cls(path, tensors, prefix, {_today(name): name for name in tensors})

    def name(self, name: str) -> str:
        """Return the name of a tensor of the network in the file."""
        return self.names.get(self.prefix + name, self.prefix + name)

    def take(self, name: str, *shape: int) -> Array:
        """Return a floating-point tensor of exactly this shape; codes as the float32 numbers that they stand for."""
        name = self.name(name)
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


def names_of(model: Model) -> dict[str, str]:
    """Return the path of each layer with weights of its own -> how its tensors' names begin, without the prefix."""
    tensor = model.architecture.tensor
    return {str(layer.path): tensor(str(layer.path)) for layer in layers_of(model) if layer.own_variables()}


def layers_of(model: Model) -> list[Layer]:
    """Return a model and all layers in it."""
    return [layer for layer in model.flatten() if isinstance(layer, Layer)]


def fill(model: Model, weights: Weights) -> None:
    """Give every layer of a model that has just been built its tensors, without a copy where they can be kept."""
    tensor = model.architecture.tensor

    def take(path: str, *shape: int) -> Array:
        return weights.take(f"{tensor(path)}.weight", *shape)

    for layer in layers_of(model):
        if type(layer) in _FILLERS:
            _FILLERS[type(layer)](layer, tensor(str(layer.path)), weights)
        elif isinstance(layer, Positions | PositionBias):
            layer.load(take)


def _dense(layer: Dense, name: str, weights: Weights) -> None:
    kernel = weights.take(f"{name}.weight", layer.units, layer.depth).T
    biases = [] if layer.bias is None else [weights.take(f"{name}.bias", layer.units)]
    layer.set_weights([kernel, *biases], copy=False)


def _embedding(layer: Embedding, name: str, weights: Weights) -> None:
    layer.set_weights([weights.take(f"{name}.weight", layer.input_dim, layer.output_dim)], copy=False)


def _normalization(layer: LayerNormalization, name: str, weights: Weights) -> None:
    parts = [("weight", layer.gamma), ("bias", layer.beta)]
    layer.set_weights([weights.take(f"{name}.{part}", *v.shape) for part, v in parts if v is not None], copy=False)


_FILLERS: dict[type[Layer], Callable[[Any, str, Weights], None]] = {
    Dense: _dense,
    Embedding: _embedding,
    LayerNormalization: _normalization,
}


def _today(name: str) -> str:
    """Return a tensor's name as `transformers` writes it today."""
    return re.sub(r"LayerNorm\.(gamma|beta)$", lambda old: f"LayerNorm.{_PARTS[old[1]]}", name)


_PARTS = {"gamma": "weight", "beta": "bias"}
