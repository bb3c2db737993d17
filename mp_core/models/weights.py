"""Read the weights of a model from a checkpoint, and write them: one loop over the slots of its parts."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array, dtypes
from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.layers import Layer, LayerNormalization
from mp_core.layers.forms import Inputs
from mp_core.layers.matrix import MatrixLayer
from mp_core.models.architectures import Architecture
from mp_core.models.blocks import Part
from mp_core.models.files import Stored, gguf_in, tensors_in
from mp_core.models.network import TextNetwork
from mp_core.models.slots import Matrix, Slot, Tensor
from mp_core.policies.autocast.memory import drop_pages, trim_heap
from mp_core.policies.dtype_policies import DTypePolicy, DTypePolicyMap, Scheme, policy_of
from mp_core.policies.dtype_policies.map import policy_at, unquantized

__all__ = ["Weights", "read_model", "slots_in", "tensors_of"]

M = TypeVar("M", bound=TextNetwork)

_FLOATS = (
    "embeddings/position", "embeddings/token_type", "embeddings/task", "/position_bias", "encoder/distances", "/router",
)  # fmt: skip
"""The ends of the paths of tables that are not matrices of products. They are floats under any policy."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of a checkpoint. Each one is checked when it is read."""

    path: Path  # The file, or the index of several, for error messages.
    tensors: Mapping[str, Tensor]
    starts: Mapping[str, str]  # The path of each layer -> the start of its tensor names.
    # The current name of a tensor in transformers -> its name in the file, which may be older.
    names: Mapping[str, str]
    stored: Stored  # The policies of the tensors, as `mp_core.checkpoint.stored_policies` returns them.

    @classmethod
    def open(cls, folder: Path, model: TextNetwork) -> "Weights":
        """Map the tensors of a folder into memory, from the file that :func:`tensors_in` finds or a GGUF file.

        `model` need not be built yet. Raise OSError if there is no file, and ValueError if it is corrupt, or has
        tensors of a block that the network does not have.
        """
        architecture, settings = model.architecture, model.settings
        path, tensors, stored = _read(folder, model)
        entry, blocks = architecture.entry("num_hidden_layers"), settings.num_hidden_layers
        names = _unwrapped(path, tensors, architecture)
        prefix = architecture.prefix if any(name.startswith(architecture.prefix) for name in names) else ""
        last = -1
        for name in names:
            number = architecture.block_of(name.removeprefix(prefix))
            if number is not None and number >= blocks:
                raise ValueError(f"{path}: tensor {name} is left over; expected {entry}={blocks}")
            last = last if number is None else max(last, number)
        if architecture.is_numbered and blocks > last + 1:
            first, example = next(iter(tensors), None), architecture.example(prefix)
            names_of_none = f"; the first tensor is {first!r}, expected names such as {example!r}" if last < 0 else ""
            raise ValueError(f"{path} has tensors of {last + 1} blocks; expected {entry}={blocks}{names_of_none}")
        known = {architecture.current_name(own): name for own, name in names.items()}
        for copy, name in architecture.tied.items():
            if prefix + copy in known:
                known.setdefault(prefix + name, known[prefix + copy])
        known |= model.aliases(known, prefix)
        return cls(path, tensors, model.names(prefix), known, stored)

    def name(self, path: str, part: str = "weight") -> str:
        """Return the name in the file for a tensor of the layer at a path."""
        name = f"{self.starts[path]}.{part}"
        return self.names.get(name, name)

    def tensor(self, path: str, part: str = "weight") -> Tensor | None:
        """Return a tensor of the layer at a path, unchecked; None if the file does not have it."""
        return self.tensors.get(self.name(path, part)) if path in self.starts else None

    def find(self, path: str, part: str, *shape: int) -> tuple[Tensor, Inputs | None]:
        """Return a tensor of exactly this shape, floats or codes, and its fixed scales of inputs or None."""
        name, tensor = self.name(path, part), self.tensor(path, part)
        if tensor is None:
            raise ValueError(f"{self.path}: tensor {name} is missing; expected shape {shape}")
        if tensor.shape != shape:
            raise ValueError(f"{self.path}: tensor {name} has shape {tensor.shape}; expected {shape}")
        if not isinstance(tensor, QuantizedArray):
            if not dtypes.is_float(tensor.dtype):
                raise ValueError(f"{self.path}: tensor {name} has dtype {tensor.dtype}; expected a floating-point type")
            return tensor, None
        scale: Any = self.tensors.get(f"{name}.inputs_scale")
        return tensor, None if scale is None else Inputs(scale, self.tensors.get(f"{name}.inputs_zero_point"))

    def take(self, path: str, part: str, *shape: int) -> Array:
        """Return a floating-point tensor of exactly this shape; codes are dequantized to float32."""
        tensor, inputs = self.find(path, part, *shape)
        if not isinstance(tensor, QuantizedArray):
            return tensor
        floats: Array = dequantize(tensor)
        with np.errstate(over="ignore", under="ignore"):
            return floats if inputs is None else floats / ops.cast(inputs.scale, F32)

    def drop_pages(self, path: str, part: str) -> None:
        """Release the pages of a tensor: see :func:`~mp_core.policies.autocast.memory.drop_pages`."""
        tensor = self.tensor(path, part)
        drop_pages(tensor.values if isinstance(tensor, QuantizedArray) else tensor)

    def policy(self) -> DTypePolicy:
        """Return the policy of the checkpoint, a map if layers differ; ValueError if they cannot read its codes."""
        default, others = self.stored
        base = policy_of("float32" if default is None else default)
        for stored in (base, *map(policy_of, others.values())):
            unknown = stored.scheme is None and stored.quantization_mode not in (None, "float8")
            if unknown or "float" not in stored.compute_dtype:
                raise ValueError(
                    f"{self.path}: layers do not compute under the policy of tensors '{stored.name}'; give another "
                    "`policy`"
                )
        found: dict[str, DTypePolicy] = {}
        for path in self.starts:
            name, tensor = self.name(path), self.tensor(path)
            policy = policy_of(others.get(name, base))
            if isinstance(tensor, QuantizedArray):
                if policy.scheme is not None and not policy.scheme.describes(tensor):
                    groups = "" if tensor.group_size is None else f" in groups of {tensor.group_size}"
                    found_codes = f"codes of {tensor.dtype}{groups}, axis={tensor.axis}"
                    raise ValueError(f"{self.path}: tensor {name} is {found_codes}; expected '{policy.scheme}'")
            elif tensor is not None and tensor.ndim == 2 and not path.endswith(_FLOATS):
                policy = unquantized(policy)  # the conversion kept this matrix as floats
            if policy != base:
                found[re.escape(path)] = policy
        return DTypePolicyMap(base, found) if found else base


def _read(folder: Path, model: TextNetwork) -> tuple[Path, Mapping[str, Tensor], Stored]:
    """Return the file of a folder (also GGUF), its tensors in the layout of the architecture, and their policies."""
    path = gguf_in(folder)
    if path is None:
        path, tensors, stored = tensors_in(folder)
        return path, model.architecture.adapt(tensors, model.settings, path), stored
    from mp_core.models.gguf_names import gguf_tensors  # imported here: few models need it

    return path, *gguf_tensors(path, model.config["model_type"], model.architecture, model.settings)


_WRAPPED = re.compile(r"(?:_orig_mod\.|module\.|0\.auto_model\.)+")
"""The prefixes that torch.compile, DataParallel and SentenceTransformer put before the tensor names of a network."""


def _unwrapped(path: Path, tensors: Iterable[str], architecture: Architecture) -> dict[str, str]:
    """Return the names of tensors without prefixes of wrappers around the network -> their names in the file."""
    found: dict[str, str] = {}
    for name in tensors:
        own = name[wrapped.end() :] if (wrapped := _WRAPPED.match(name)) else name
        if own in found:
            raise ValueError(f"{path} has the tensors {found[own]} and {name}; expected one network")
        found[own] = name
    before = len(_attribute(found, architecture))
    return {own[before:]: name for own, name in found.items()}


def _attribute(names: Iterable[str], architecture: Architecture) -> str:
    """Return the common prefix of an attribute, such as ``model.`` for ``self.model = network``, or "" without one."""
    example = f".{architecture.example('')}" if architecture.is_numbered else ""
    begins = {name[: 1 - len(example)] for name in names if example and name.endswith(example)}
    before = begins.pop().removesuffix(architecture.prefix) if len(begins) == 1 else ""
    return before if all(name.startswith(before) for name in names) else ""


def read_model(
    folder: Path, config: Mapping[str, Any], policy: DTypePolicy | None, kind: type[M]
) -> tuple[M, Weights, list[Layer]]:
    """Read a model of class `kind` from a folder; return the model, the tensors, and its layers that have tensors.

    `policy` defaults to the one under which the files are stored.
    """
    model = kind(config, name="model", dtype="float32")
    weights = Weights.open(folder, model)
    _check_sizes(weights, model)
    model.dtype_policy = weights.policy() if policy is None else policy
    model.build()
    layers = []
    for layer, slots in slots_in(model):
        layers.append(layer)
        for slot in slots:
            slot.read(weights)
    trim_heap()
    return model, weights, layers


def _check_sizes(weights: Weights, model: TextNetwork) -> None:
    """Raise ValueError if tensors contradict the sizes in ``config.json``, before layers allocate memory."""
    for path, lengths in model.shapes().items():
        try:
            weights.find(path, "weight", *lengths.values())
        except ValueError as error:
            sizes = [f"{entry}={n}" for entry, n in lengths.items()]
            absent = [entry for axis in lengths for entry in axis.split(" * ") if entry not in model.config]
            defaults = f"; config.json does not have {', '.join(absent)}, and this is the default" if absent else ""
            raise ValueError(f"{error}, of {', '.join(sizes)}{defaults}") from None


def slots_in(model: TextNetwork) -> Iterator[tuple[Layer, list[Slot | Matrix]]]:
    """Yield (layer, its slots) for each layer of a model that has tensors."""
    for layer in model.flatten():
        if isinstance(layer, Layer) and (slots := _slots_of(layer)):
            yield layer, slots


def _slots_of(layer: Layer) -> list[Slot | Matrix]:
    if isinstance(layer, Part):
        return [*layer.slots()]
    matrix, variables = [], {}
    if isinstance(layer, MatrixLayer):
        matrix, variables = [Matrix(layer)], {"bias": getattr(layer, "bias", None)}
    elif isinstance(layer, LayerNormalization):
        variables = {"weight": layer.gamma, "bias": layer.beta}
    path = str(layer.path)
    return [*matrix, *(Slot(path, part, held) for part, held in variables.items() if held is not None)]


def tensors_of(model: TextNetwork, weights: Weights) -> tuple[dict[str, Tensor], str, dict[str, str]]:
    """Return all tensors of a checkpoint, updated from the layers of `model`, and their policies.

    The policies are the name of the most common policy of the matrices, and tensor -> policy for those with another
    one. Raise ValueError if blocks were removed, added or moved.
    """
    _check_blocks(model)
    tensors: dict[str, Tensor | None] = dict(weights.tensors)
    matrices: dict[str, str] = {}
    others: dict[str, str] = {}
    for layer, slots in slots_in(model):
        policies = matrices if isinstance(layer, MatrixLayer) else others
        for slot in slots:
            tensors |= slot.to_save(weights)
            policies[weights.name(str(layer.path), slot.part)] = _policy_name(layer)
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    default = Counter((matrices or others).values()).most_common(1)[0][0]
    plain = unquantized(policy_of(default)).name
    found = {name: policy for name, policy in matrices.items() if policy != default}
    found |= {name: policy for name, policy in others.items() if policy != plain and name in kept}
    return kept, default, found


def _check_blocks(model: TextNetwork) -> None:
    """Raise ValueError unless the blocks are those of ``config.json``, which is saved unchanged."""
    if not hasattr(model.encoder, "blocks"):  # static embeddings
        return
    names, count = [block.name for block in model.encoder.blocks], model.settings.num_hidden_layers
    if names != [f"layer_{index}" for index in range(count)]:
        raise ValueError(
            f"`encoder.blocks` must be layer_0 to layer_{count - 1}, as config.json says, to be saved; received {names}"
        )


def _policy_name(layer: Layer) -> str:
    """Return the name of the policy under which a layer that reads the file has the same codes or floats.

    Weights in Keras' forms are written as codes of a scheme that describes them, or as floats.
    """
    policy = policy_at(layer.dtype_policy, layer.path)
    plain = unquantized(policy).name
    if not isinstance(layer, MatrixLayer) or not isinstance(value := layer.matrix, QuantizedArray):
        return plain
    scheme, fixed = policy.scheme, layer.inputs is not None
    if scheme is None or not scheme.describes(value):
        scheme = Scheme.of(value, "fixed" if fixed else "float")
    return f"{scheme}_from_{plain}"
