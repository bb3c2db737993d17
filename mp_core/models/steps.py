"""The modules after the pooling in a folder of sentence-transformers, such as ``Dense`` and ``Normalize``.

They are small compared to the network, and are computed in float32 under every policy.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array, dtypes
from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.models.files import tensors_in
from mp_core.models.folder import read_object, read_optional
from mp_core.models.pooling import unit
from mp_core.models.settings import KINDS, Settings, choices, unexpected
from mp_core.ops import PackedMatrix, pack

__all__ = [
    "KINDS_OF_STEPS",
    "Step",
    "apply_steps",
    "apply_steps_in_training",
    "checked_tensors",
    "product",
    "read_layer_weights",
    "read_steps",
]

_SENTENCE = ("module_input_name", "module_output_name")
_ACTIVATIONS: dict[str, Any] = {
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.SiLU": "silu",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.linear.Identity": None,
}
"""Name of a torch class -> the activation's name in mp_core."""


@dataclass(frozen=True, slots=True)
class Step:
    """One module after the pooling."""

    kind: str  # The name of its class.
    # A function of the vectors of texts, float32 of shape (n, width). It can be pickled, since encoders can.
    run: Callable[[Array], Array]
    width: int  # The length of the resulting vectors.


def read_steps(
    folders: Sequence[tuple[str, Path]], width: int, of: tuple[str | None, ...] = (None, "sentence_embedding")
) -> tuple[Step, ...]:
    """Read the modules after the pooling, given as (kind, folder); `width` is the length of the pooled vectors.

    `of` are the allowed names of a module's inputs and outputs in its file. Raise OSError or ValueError, which names
    the file, if one is missing or not as expected.
    """
    steps: list[Step] = []
    for kind, folder in folders:
        path = folder / "config.json"
        config = read_optional(path)
        for entry in _SENTENCE:
            if config.get(entry) not in of:
                raise unexpected(path, entry, config.get(entry), choices(of))
        step = Step(kind, *_READERS[kind](path, config, width))
        width = step.width
        steps.append(step)
    return tuple(steps)


def read_layer_weights(folder: Path, settings: Settings, config: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Return the weights of the embeddings and of each block's outputs, scaled to the sum 1.

    `folder` is that of the module ``WeightedLayerPooling``. Return None if ``output_hidden_states`` is not true in
    `config`: then sentence-transformers ignores the module.
    """
    path, width = folder / "config.json", ("embedding_dimension", "word_embedding_dimension")
    options = read_object(path)
    _check_entries(path, options, (*width, "layer_start", "num_hidden_layers"))
    for entry in width:
        if entry in options:
            _check_width(path, options, entry, settings.hidden_size)
    blocks, first = settings.num_hidden_layers, options.get("layer_start", 4)
    given = options.get("num_hidden_layers", 12)
    if given != blocks:
        raise unexpected(path, "num_hidden_layers", given, f"{blocks}, as of the network")
    if type(first) is not int or not 0 <= first <= blocks:
        raise unexpected(path, "layer_start", first, f"an int from 0 to {blocks}")
    (weights,) = _tensors(path, {"layer_weights": (blocks + 1 - first,)})
    total = float(weights.sum(dtype=np.float64))
    if not math.isfinite(total) or not total:
        raise unexpected(path, "the sum of layer_weights", total, "a finite number other than 0")
    mixed = (0.0,) * first + tuple(float(weight) / total for weight in weights)
    return mixed if config.get("output_hidden_states") is True else None


def apply_steps(steps: Sequence[Step], vectors: Array, normalize: bool | None) -> Array:
    """Apply steps to vectors; a final ``Normalize`` is skipped unless `normalize` is None."""
    last = len(steps) - 1
    for place, step in enumerate(steps):
        if step.kind != "Normalize" or place != last or normalize is None:
            vectors = step.run(vectors)
    return vectors


def apply_steps_in_training(steps: Sequence[Step], vectors: Array) -> Array:
    """Apply steps to vectors by operations that have gradients."""
    for step in steps:
        vectors = ops.normalize(vectors) if step.kind == "Normalize" else step.run(vectors)
    return vectors


Read = tuple[Callable[[Array], Array], int]


def _normalize(path: Path, config: Mapping[str, Any], width: int) -> Read:
    _check_entries(path, config, ())
    return unit, width


def _dropout(path: Path, config: Mapping[str, Any], width: int) -> Read:
    _check_entries(path, config, ("dropout",))
    return _same, width


def _layer_norm(path: Path, config: Mapping[str, Any], width: int) -> Read:
    _check_entries(path, config, ("dimension",))
    _check_width(path, config, "dimension", width)
    gamma, beta = _tensors(path, {"norm.weight": (width,), "norm.bias": (width,)})
    return partial(ops.layer_norm, gamma=gamma, beta=beta, epsilon=1e-5), width


def _dense(path: Path, config: Mapping[str, Any], width: int) -> Read:
    _check_entries(path, config, ("in_features", "out_features", "bias", "activation_function", "use_residual"))
    _check_width(path, config, "in_features", width)
    units: Any = config.get("out_features")
    bias, residual = config.get("bias", True), config.get("use_residual", False)
    for entry, kind, value in (("out_features", int, units), ("bias", bool, bias), ("use_residual", bool, residual)):
        fits, expected = KINDS[kind]
        if not fits(value):
            raise unexpected(path, entry, value, expected)
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise unexpected(path, "activation_function", name, choices(_ACTIVATIONS))
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (units, width)}
    shapes |= {"linear.bias": (units,)} if bias else {}
    shapes |= {"residual.weight": (units, width)} if residual and units != width else {}
    found = dict(zip(shapes, _tensors(path, shapes), strict=True))
    shortcut = pack(found["residual.weight"].T) if "residual.weight" in found else None
    matrix, vector = pack(found["linear.weight"].T), found.get("linear.bias")
    return partial(_product, matrix, vector, _ACTIVATIONS[name], residual, shortcut), units


def product(file: Path, tensors: Mapping[str, Array | QuantizedArray], width: int) -> Step:
    """Return the step of the product with a matrix ``linear.weight``, for input vectors of length `width`."""
    shape = getattr(tensors.get("linear.weight"), "shape", ())
    units = shape[0] if shape and shape[0] else width
    (matrix,) = checked_tensors(file, tensors, {"linear.weight": (units, width)})
    return Step("Dense", partial(_product, pack(matrix.T), None, None, False, None), units)


def _same(vectors: Array) -> Array:
    return vectors


def _product(
    matrix: PackedMatrix, bias: Array | None, activation: Any, residual: bool, shortcut: PackedMatrix | None,
    vectors: Array,
) -> Array:  # fmt: skip
    """Return ``activation(vectors @ matrix + bias)``, with `residual` plus ``vectors @ shortcut`` or plus `vectors`."""
    outputs = ops.matmul(vectors, matrix, bias=bias, activation=activation)
    if not residual:
        return outputs
    return ops.add(outputs, vectors if shortcut is None else ops.matmul(vectors, shortcut))


_READERS: dict[str, Callable[[Path, Mapping[str, Any], int], Read]] = {
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Dropout": _dropout,
    "Normalize": _normalize,
}
KINDS_OF_STEPS = tuple(_READERS)
"""The classes of sentence-transformers that are allowed after the pooling, in any order."""


def _check_entries(path: Path, config: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in config:
        if name not in (*known, *_SENTENCE, "quantization_config"):  # converted folders have a quantization_config
            raise ValueError(f"{path}: setting {name!r} is unknown; expected {choices((*known, *_SENTENCE))}")


def _check_width(path: Path, config: Mapping[str, Any], entry: str, width: int) -> None:
    if config.get(entry) != width:
        raise unexpected(path, entry, config.get(entry), f"{width}, the length of the vectors before")


def _tensors(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> list[Array]:
    file, tensors, _ = tensors_in(path.parent)
    return checked_tensors(file, tensors, shapes)


def checked_tensors(
    file: Path, tensors: Mapping[str, Array | QuantizedArray], shapes: Mapping[str, tuple[int, ...]]
) -> list[Array]:
    """Return the tensors of a module in float32; its file must have exactly these tensors, in these shapes."""
    for name in tensors:
        if name not in shapes:
            raise ValueError(f"{file}: tensor {name} is left over; expected {choices(shapes)}")
    found = []
    for name, shape in shapes.items():
        if name not in tensors:
            raise ValueError(f"{file}: tensor {name} is missing; expected shape {shape}")
        tensor = tensors[name]
        if tensor.shape != shape:
            raise ValueError(f"{file}: tensor {name} has shape {tensor.shape}; expected {shape}")
        if not isinstance(tensor, QuantizedArray) and not dtypes.is_float(tensor.dtype):
            raise ValueError(f"{file}: tensor {name} has dtype {tensor.dtype}; expected a floating-point type")
        found.append(np.array(dequantize(tensor) if isinstance(tensor, QuantizedArray) else ops.cast(tensor, F32)))
    return found
