"""From the tensors of a checkpoint to the weights of a model, and back."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mp_core import dtypes, ops
from mp_core.arrays import F32, Array
from mp_core.autocast.memory import drop_pages
from mp_core.dtype_policies import DTypePolicy, DTypePolicyMap, Scheme, policy_of
from mp_core.dtype_policies.map import policy_at, unquantized
from mp_core.forms import Inputs
from mp_core.layers import Dense, Embedding, Layer, LayerNormalization
from mp_core.layers.matrix import MatrixLayer
from mp_core.models.architectures import Architecture, architecture_of
from mp_core.models.architectures.deberta import DistanceEmbeddings
from mp_core.models.architectures.nomic import NOMIC_EXPERTS
from mp_core.models.architectures.roberta import XLM_ROBERTA
from mp_core.models.architectures.static import STATIC, StaticWeights
from mp_core.models.blocks import PositionBias, Positions
from mp_core.models.embedding_gemma import Factor
from mp_core.models.experts import Experts, Router
from mp_core.models.files import Stored, gguf_in, static_tensors, tensors_in
from mp_core.models.folder import read_object
from mp_core.models.fused_names import apart, experts_apart, is_fused
from mp_core.models.gated import RootMeanSquare, TokenTypes
from mp_core.models.heads import Answer
from mp_core.models.model import Model
from mp_core.models.settings import Settings
from mp_core.quantization import QuantizedArray, dequantize
from mp_core.utilities.system import trim_heap

__all__ = ["Weights", "layers_of", "names_of", "read_model", "tensors_of"]

Tensor = Array | QuantizedArray
M = TypeVar("M", bound=Model)
_Tabled = PositionBias | DistanceEmbeddings | Router | StaticWeights | Factor

_FLOATS = (
    "embeddings/position", "embeddings/token_type", "embeddings/task", "/position_bias", "encoder/distances", "/router",
)  # fmt: skip
"""How the paths end of tables that are no right operands of products: they are floats under any policy."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of a checkpoint, checked one by one as they are taken.

    Attributes
    ----------
    architecture : Architecture
    path : Path
        The file, or the index of several, for messages.
    tensors : mapping of str to ndarray or QuantizedArray
    prefix : str
        How the names of the network's tensors begin.
    names : dict of str to str
        The name that `transformers` gives a tensor today -> its name in the file, which may be an older one. Both have
        the prefix.
    stored : tuple of (str or None, mapping of str to str)
        What :func:`mp_core.checkpoint.stored_policies` returns.
    """

    architecture: Architecture
    path: Path
    tensors: Mapping[str, Tensor]
    prefix: str
    names: dict[str, str]
    stored: Stored

    @classmethod
    def open(cls, folder: Path, architecture: Architecture, settings: Settings) -> "Weights":
        """Map the tensors of a folder into memory, from the file that :func:`tensors_in` finds, or one of GGUF.

        Raises
        ------
        OSError
            There is no such file.
        ValueError
            It is corrupt, or holds a block that `settings` do not have.
        """
        path, tensors, stored = _read(folder, architecture, settings)
        entry, blocks = architecture.entry("num_hidden_layers"), settings.num_hidden_layers
        prefix = architecture.prefix if any(name.startswith(architecture.prefix) for name in tensors) else ""
        last = -1
        for name in tensors:
            number = architecture.block_of(name.removeprefix(prefix))
            if number is not None and number >= blocks:
                raise ValueError(f"{path}: tensor {name} is left over; expected {entry}={blocks}")
            last = last if number is None else max(last, number)
        if architecture.is_numbered and blocks > last + 1:
            raise ValueError(f"{path} has tensors of {last + 1} blocks; expected {entry}={blocks}")
        names = {_today(name): name for name in tensors}
        return cls(architecture, path, tensors, prefix, names, stored)

    def name(self, name: str) -> str:
        """Return the name of a tensor in the file."""
        return self.names.get(name, name)

    def find(self, name: str, *shape: int) -> tuple[Tensor, Inputs | None]:
        """Return a tensor of exactly this shape, floats or codes, and the fixed scales of inputs beside it, if any."""
        name = self.name(name)
        if name not in self.tensors:
            raise ValueError(f"{self.path}: tensor {name} is missing; expected shape {shape}")
        tensor = self.tensors[name]
        if tensor.shape != shape:
            raise ValueError(f"{self.path}: tensor {name} has shape {tensor.shape}; expected {shape}")
        if not isinstance(tensor, QuantizedArray):
            if not dtypes.is_float(tensor.dtype):
                raise ValueError(f"{self.path}: tensor {name} has dtype {tensor.dtype}; expected a floating-point type")
            return tensor, None
        scale: Any = self.tensors.get(f"{name}.inputs_scale")
        return tensor, None if scale is None else Inputs(scale, self.tensors.get(f"{name}.inputs_zero_point"))

    def take(self, name: str, *shape: int) -> Array:
        """Return a floating-point tensor of exactly this shape; codes as the float32 numbers that they stand for."""
        tensor, inputs = self.find(name, *shape)
        if not isinstance(tensor, QuantizedArray):
            return tensor
        floats: Array = dequantize(tensor)
        with np.errstate(over="ignore", under="ignore"):
            return floats if inputs is None else floats / ops.cast(inputs.scale, F32)

    def give(self, layer: Layer, name: str) -> None:
        """Give a built layer its tensors. Codes of the scheme of its policy stay as they are."""
        _GIVERS[type(layer)](self, layer, name)

    def policy(self, names: Mapping[str, str]) -> DTypePolicy:
        """Return under which policy the checkpoint is stored, a map if layers have several.

        Parameters
        ----------
        names : mapping of str to str
            The path of each layer -> how the names of its tensors begin.

        Raises
        ------
        ValueError
            Layers do not compute under a policy, or it does not describe the codes of a tensor.
        """
        default, others = self.stored
        base = policy_of("float32" if default is None else default)
        for stored in (base, *map(policy_of, others.values())):
            unknown = stored.scheme is None and stored.quantization_mode not in (None, "float8")
            if unknown or "float" not in stored.compute_dtype:
                raise ValueError(f"{self.path}: layers do not compute under the policy of tensors '{stored.name}'")
        found: dict[str, DTypePolicy] = {}
        for path, start in names.items():
            name = self.name(f"{start}.weight")
            policy, tensor = policy_of(others.get(name, base)), self.tensors.get(name)
            if isinstance(tensor, QuantizedArray):
                if policy.scheme is not None and not policy.scheme.describes(tensor):
                    groups = "" if tensor.group_size is None else f" in groups of {tensor.group_size}"
                    found_codes = f"codes of {tensor.dtype}{groups}, axis={tensor.axis}"
                    raise ValueError(f"{self.path}: tensor {name} is {found_codes}; expected '{policy.scheme}'")
            elif tensor is not None and tensor.ndim == 2 and not path.endswith(_FLOATS):
                policy = unquantized(policy)  # the conversion was told to keep its floats
            if policy != base:
                found[re.escape(path)] = policy
        return DTypePolicyMap(base, found) if found else base


def _read(folder: Path, architecture: Architecture, settings: Settings) -> tuple[Path, Mapping[str, Tensor], Stored]:
    """Return what :func:`tensors_in` does, or that of the one GGUF file of a folder."""
    path = gguf_in(folder)
    if path is None:
        path, tensors, stored = static_tensors(folder) if architecture is STATIC else tensors_in(folder)
        if architecture is XLM_ROBERTA and is_fused(tensors):
            tensors = apart(tensors)
        if architecture is NOMIC_EXPERTS:
            tensors = experts_apart(tensors, settings.routing.experts, path)  # type: ignore[attr-defined]
        return path, tensors, stored
    from mp_core.models.gguf_names import gguf_tensors  # seldom needed

    kind = read_object(folder / "config.json")["model_type"]
    return path, *gguf_tensors(path, kind, architecture, settings)


def read_model(folder: Path, config: Mapping[str, Any], policy: DTypePolicy | None, kind: type[M]) -> tuple[M, Weights]:
    """Return the model in a folder, and the tensors that it was given.

    Parameters
    ----------
    folder : Path
        With ``model.safetensors`` or its index.
    config : mapping
        What ``config.json`` there says.
    policy : DTypePolicy, optional
        Default: the one under which the files are stored.
    kind : type
        The class of the model.
    """
    architecture = architecture_of(config, folder / "config.json")
    settings = architecture.read(config, folder / "config.json")
    weights = Weights.open(folder, architecture, settings)
    planned = kind(config, dtype="float32")
    weights.names.update(planned.aliases(weights.names, weights.prefix))
    names = planned.names(weights.prefix)
    _check_sizes(weights, names, planned.shapes(), config)
    model = kind(config, name="model", dtype=weights.policy(names) if policy is None else policy)
    model.build()
    for layer in layers_of(model):
        if type(layer) in _GIVERS:
            weights.give(layer, names[str(layer.path)])
    trim_heap()
    return model, weights


def _check_sizes(
    weights: Weights, names: Mapping[str, str], shapes: Mapping[str, Mapping[str, int]], config: Mapping[str, Any]
) -> None:
    """Raise unless tensors have the sizes that ``config.json`` says, before memory is taken for layers of these."""
    for path, lengths in shapes.items():
        try:
            weights.find(f"{names[path]}.weight", *lengths.values())
        except ValueError as error:
            said = [f"{entry}={n}" for entry, n in lengths.items()]
            absent = [entry for axis in lengths for entry in axis.split(" * ") if entry not in config]
            defaults = f"; config.json does not have {', '.join(absent)}, and this is the default" if absent else ""
            raise ValueError(f"{error}, of {', '.join(said)}{defaults}") from None


def layers_of(model: Model) -> list[Layer]:
    """Return a model and all layers in it."""
    return [layer for layer in model.flatten() if isinstance(layer, Layer)]


def names_of(model: Model, weights: Weights) -> dict[str, str]:
    """Return the path of each layer with weights of its own -> how its tensors' names begin."""
    names = model.names(weights.prefix)
    return {str(layer.path): names[str(layer.path)] for layer in layers_of(model) if type(layer) in _GIVERS}


# ---- from tensors to layers


def _matrix(weights: Weights, layer: MatrixLayer, name: str, fixed: bool, *shape: int) -> None:
    scheme = policy_at(layer.dtype_policy, layer.path).scheme
    value, inputs = weights.find(name, *shape)
    fits = isinstance(value, QuantizedArray) and scheme is not None and scheme.describes(value)
    if not (fits and fixed == (inputs is not None)):
        value, inputs = weights.take(name, *shape), None
    try:
        layer.set_matrix(value, inputs)
    except ValueError as error:
        raise ValueError(f"{weights.path}: tensor {weights.name(name)}: {error}") from None
    stored = weights.tensors[weights.name(name)]
    drop_pages(stored.values if isinstance(stored, QuantizedArray) else stored)


def _dense(weights: Weights, layer: Dense, name: str) -> None:
    scheme = policy_at(layer.dtype_policy, layer.path).scheme
    fixed = scheme is not None and scheme.inputs == "fixed"
    _matrix(weights, layer, f"{name}.weight", fixed, layer.units, layer.depth)
    if layer.bias is not None:
        layer.bias.assign(weights.take(f"{name}.bias", layer.units))


def _embedding(weights: Weights, layer: Embedding, name: str) -> None:
    _matrix(weights, layer, f"{name}.weight", False, layer.input_dim, layer.output_dim)


def _normalization(weights: Weights, layer: LayerNormalization, name: str) -> None:
    for part, variable in (("weight", layer.gamma), ("bias", layer.beta)):
        if variable is not None:
            variable.assign(weights.take(f"{name}.{part}", *variable.shape))


def _positions(weights: Weights, layer: Positions, name: str) -> None:
    layer.table.assign(_sums(weights, layer, name))


def _sums(weights: Weights, layer: Positions, name: str) -> Array:
    """Return what is added for each type and position."""
    s = layer.settings
    sums = weights.take(f"{name}.weight", s.max_position_embeddings, s.embedding_width)[np.newaxis]
    if s.type_vocab_size:
        types = weights.take(_beside(weights, "token_type"), s.type_vocab_size, s.embedding_width)
        sums = sums + types[: layer.types, np.newaxis]
    tasks = weights.tensors.get(weights.name(_beside(weights, "task")))
    if tasks is not None:
        sums = sums + weights.take(_beside(weights, "task"), tasks.shape[0], s.embedding_width)[0]
    return sums


def _beside(weights: Weights, table: str) -> str:
    """Return the name of a table whose vectors are added to those of positions."""
    return f"{weights.prefix}{weights.architecture.tensors.get(f'embeddings/{table}', table)}.weight"


def _table(weights: Weights, layer: _Tabled, name: str) -> None:
    layer.table.assign(weights.take(f"{name}.weight", *layer.table.shape))


def _experts(weights: Weights, layer: Experts, name: str) -> None:
    layer.bias.assign(weights.take(f"{name}.bias", *layer.bias.shape))


def _root_mean_square(weights: Weights, layer: RootMeanSquare, name: str) -> None:
    layer.scale.assign(weights.take(f"{name}.weight", layer.width))


def _token_types(weights: Weights, layer: TokenTypes, name: str) -> None:
    s = layer.settings
    layer.table.assign(weights.take(f"{name}.weight", s.type_vocab_size, s.hidden_size)[: layer.types])


def _answer(weights: Weights, layer: Answer, name: str) -> None:
    s = layer.settings
    start = weights.prefix + weights.architecture.tensors["embeddings/word"] if layer.tied else name
    table, _ = weights.find(f"{start}.weight", s.vocab_size, s.hidden_size)
    rows = ops.take_rows(table, np.array(layer.words), F32)
    layer.table.assign(rows[:1] - rows[1:] if len(rows) > 1 else rows)


_GIVERS: dict[type[Layer], Callable[[Weights, Any, str], None]] = {
    Dense: _dense,
    Embedding: _embedding,
    LayerNormalization: _normalization,
    Positions: _positions,
    PositionBias: _table,
    DistanceEmbeddings: _table,
    Router: _table,
    StaticWeights: _table,
    Factor: _table,
    Experts: _experts,
    RootMeanSquare: _root_mean_square,
    TokenTypes: _token_types,
    Answer: _answer,
}


def _today(name: str) -> str:
    """Return a tensor's name as `transformers`, or of dense static embeddings sentence-transformers, has it today."""
    if name in ("embeddings", "weight"):  # of model2vec, and of sparse encoders
        return "embedding.weight"
    if name.endswith(".layer_scalar"):  # of EmbeddingGemma 2
        return f"{name}.weight"
    name = name.replace(".parametrizations.weight.original", ".weight")  # beside adapters, of jina-embeddings-v3
    return re.sub(r"LayerNorm\.(gamma|beta)$", lambda old: f"LayerNorm.{_PARTS[old[1]]}", name)


_PARTS = {"gamma": "weight", "beta": "bias"}


# ---- from layers to tensors


def tensors_of(model: Model, weights: Weights) -> tuple[dict[str, Tensor], str, dict[str, str]]:
    """Return all tensors of a checkpoint, those of the layers of `model` as it holds them, and their policies.

    Returns
    -------
    tensors : dict of str to ndarray or QuantizedArray
    policy : str
        The name of the policy that most matrices have.
    policies : dict of str to str
        Of tensors that have another one.

    Raises
    ------
    ValueError
        Blocks were taken out, added or moved.
    """
    _check_blocks(model)
    tensors = dict(weights.tensors)
    matrices: dict[str, str] = {}
    others: dict[str, str] = {}
    names = names_of(model, weights)
    for layer in layers_of(model):
        if type(layer) in _GIVERS:
            start = names[str(layer.path)]
            policies = matrices if type(layer) in (Dense, Embedding) else others
            weight = weights.name(f"{start}.weight")
            for scale in ("inputs_scale", "inputs_zero_point"):
                tensors.pop(f"{weight}.{scale}", None)
            tensors |= _MAKERS[type(layer)](weights, layer, start)
            parts = weight, weights.name(f"{start}.bias")
            policies |= {name: _policy_name(layer) for name in parts if name in tensors}
    default = Counter((matrices or others).values()).most_common(1)[0][0]
    plain = unquantized(policy_of(default)).name
    found = {name: policy for name, policy in matrices.items() if policy != default}
    return tensors, default, found | {name: policy for name, policy in others.items() if policy != plain}


def _check_blocks(model: Model) -> None:
    """Raise unless the blocks are those of ``config.json``, which is written as it was read."""
    if not hasattr(model.encoder, "blocks"):  # static embeddings
        return
    names, count = [block.name for block in model.encoder.blocks], model.settings.num_hidden_layers
    if names != [f"layer_{index}" for index in range(count)]:
        raise ValueError(
            f"`encoder.blocks` must be layer_0 to layer_{count - 1}, as config.json says, to be saved; received {names}"
        )


def _policy_name(layer: Layer) -> str:
    """Return the name of the policy under which a layer that reads the file holds the same codes or floats.

    What Keras' forms hold is written as codes of the scheme that describes them, or as floats.
    """
    policy = policy_at(layer.dtype_policy, layer.path)
    plain = unquantized(policy).name
    if not isinstance(layer, MatrixLayer) or not isinstance(value := layer.matrix, QuantizedArray):
        return plain
    scheme, fixed = policy.scheme, layer.inputs is not None
    if scheme is None or not scheme.describes(value):
        scheme = Scheme.of(value, "fixed" if fixed else "float")
    return f"{scheme}_from_{plain}"


def _of_matrix(weights: Weights, layer: Dense | Embedding, name: str) -> dict[str, Tensor]:
    weight = weights.name(f"{name}.weight")
    tensors: dict[str, Tensor] = {weight: layer.matrix}
    if layer.inputs is not None:
        parts = {"inputs_scale": layer.inputs.scale, "inputs_zero_point": layer.inputs.zero_point}
        tensors |= {f"{weight}.{part}": value for part, value in parts.items() if value is not None}
    if isinstance(layer, Dense) and layer.bias is not None:
        tensors[weights.name(f"{name}.bias")] = layer.bias.numpy()
    return tensors


def _of_normalization(weights: Weights, layer: LayerNormalization, name: str) -> dict[str, Tensor]:
    parts = (("weight", layer.gamma), ("bias", layer.beta))
    return {weights.name(f"{name}.{part}"): variable.numpy() for part, variable in parts if variable is not None}


def _of_positions(weights: Weights, layer: Positions, name: str) -> dict[str, Tensor]:
    """Return nothing if the table is still the sum of the checkpoint's tables, which are kept in this case."""
    table = layer.table.numpy()
    if ops.cast(_sums(weights, layer, name), table.dtype).tobytes() == table.tobytes():
        return {}
    if layer.types > 1:
        raise ValueError(f"{layer.path} was changed; files hold positions and types apart, not their sums")
    tensors: dict[str, Tensor] = {weights.name(f"{name}.weight"): table[0]}
    for kind in ("token_type", "task"):
        beside = weights.name(_beside(weights, kind))
        if beside in weights.tensors:
            tensors[beside] = np.zeros(weights.tensors[beside].shape, table.dtype)
    return tensors


def _of_experts(weights: Weights, layer: Experts, name: str) -> dict[str, Tensor]:
    return {weights.name(f"{name}.bias"): layer.bias.numpy()}


def _of_table(weights: Weights, layer: _Tabled, name: str) -> dict[str, Tensor]:
    return {weights.name(f"{name}.weight"): layer.table.numpy()}


def _of_root_mean_square(weights: Weights, layer: RootMeanSquare, name: str) -> dict[str, Tensor]:
    return {weights.name(f"{name}.weight"): layer.scale.numpy()}


def _of_token_types(weights: Weights, layer: TokenTypes, name: str) -> dict[str, Tensor]:
    """Return the table with the rows of the checkpoint that the layer has not kept."""
    s, table = layer.settings, layer.table.numpy()
    rest = weights.take(f"{name}.weight", s.type_vocab_size, s.hidden_size)[layer.types :]
    return {weights.name(f"{name}.weight"): np.concatenate([table, ops.cast(rest, table.dtype)])}


def _of_answer(weights: Weights, layer: Answer, name: str) -> dict[str, Tensor]:
    """Return nothing: the rows come from a matrix of the checkpoint, which is kept."""
    return {}


_MAKERS: dict[type[Layer], Callable[[Weights, Any, str], dict[str, Tensor]]] = {
    Dense: _of_matrix,
    Embedding: _of_matrix,
    LayerNormalization: _of_normalization,
    Positions: _of_positions,
    PositionBias: _of_table,
    DistanceEmbeddings: _of_table,
    Router: _of_table,
    StaticWeights: _of_table,
    Factor: _of_table,
    Experts: _of_experts,
    RootMeanSquare: _of_root_mean_square,
    TokenTypes: _of_token_types,
    Answer: _of_answer,
}
