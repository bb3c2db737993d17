"""LoRA adapters of text models: enable, merge, save and load them, in the folder format of the peft library."""

import json
import math
from collections.abc import Callable, Mapping
from copy import copy, deepcopy
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np

from mp_core import ops
from mp_core.arrays import Array, dtypes
from mp_core.core.changes import undone_if_it_fails
from mp_core.files.checkpoint import open_tensors
from mp_core.files.checkpoint.output import check_free, naming, replace, temporary_beside
from mp_core.files.checkpoint.writing import save_tensors
from mp_core.layers import Dense, Embedding
from mp_core.layers.base.contents import contents_of
from mp_core.layers.filters import chooser
from mp_core.layers.initializers import HeUniform
from mp_core.layers.lora import AdaptableLayer, adapt, drop_lora, lora_of, lora_variables
from mp_core.layers.seeds import SeedGenerator
from mp_core.models.folder import read_object
from mp_core.models.network import TextNetwork
from mp_core.models.ragged import Plans
from mp_core.models.rules import ANY, Rule, check, only
from mp_core.utilities.arguments import is_number, path_of

__all__ = ["ADAPTER_FILES", "AdaptedModel"]

ADAPTER_FILES = _CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_START = "base_model.model."
_PARTS: dict[type, tuple[str, str]] = {
    Dense: ("lora_A.weight", "lora_B.weight"),
    Embedding: ("lora_embedding_A", "lora_embedding_B"),
}
"""Class of a layer -> the suffixes of its two tensors. Files hold them transposed: (rank, inputs), (outputs, rank)."""
_TARGETS = "^(query|value|qkv)$"
"""The layers that get LoRA by default, as in peft: ``qkv`` is one joint projection to queries, keys and values."""

_POSITIVE: Rule = lambda value: is_number(value) and 0 < value < math.inf, "a number above 0"
_RULES: dict[str, Rule] = {
    "peft_type": only("LORA"),
    "lora_alpha": _POSITIVE,
    "use_rslora": only(True, False, None),
    "bias": only("none", None),
    **dict.fromkeys(
        (
            "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config",
            "exclude_modules", "inference_mode", "init_lora_weights", "loftq_config", "lora_dropout", "megatron_core",
            "peft_version", "qalora_group_size", "r", "rank_pattern", "revision", "runtime_config", "target_modules",
            "task_type",
        ),
        ANY,
    ),
}  # fmt: skip
"""Setting in ``adapter_config.json`` -> its allowed values. Every other setting must be absent or false."""


class AdaptedModel:
    """Mixin of text models: LoRA adapters of the network."""

    model: TextNetwork
    _plans: Plans

    def enable_lora(
        self, rank: int, lora_alpha: float | None = None, targets: Any = None, *, seed: int | None = None
    ) -> None:
        """Freeze the network, and add two trainable low-rank matrices to each chosen layer.

        Parameters
        ----------
        rank, lora_alpha
            Those of :meth:`mp_core.layers.Dense.enable_lora`.
        targets : str, sequence of str or callable, optional
            Which Dense layers, and whether the word embedding table, get LoRA. They are chosen as by the `filters` of
            :meth:`~mp_core.layers.Layer.quantize`. Default: the projections to queries and values, as in peft, or the
            joint projection to queries, keys and values.
        seed : int, optional
            Seed of the initial values, from 0 to 2**32 - 1. Default: the seed of the process, see
            :func:`mp_core.random.set_seed`.

        Raises
        ------
        ValueError
            `targets` match no layer, or a layer has LoRA already. Nothing has changed.
        NotImplementedError
            A chosen layer uses delayed float8 scaling.

        Examples
        --------
        >>> encoder.enable_lora(8)  # doctest: +SKIP
        >>> encoder.enable_lora(8, 16, targets=["query", "key", "value", "intermediate"])  # doctest: +SKIP
        """
        chosen, layers = chooser(_TARGETS if targets is None else targets, "targets"), _adaptable(self.model)
        found = [layer for layer in layers.values() if chosen(layer)]
        if not found:
            names = sorted({layer.name for layer in layers.values()})
            raise ValueError(f"`targets` must choose some of the layers {names}; received {targets!r}")

        begin = "he_uniform" if seed is None else HeUniform(SeedGenerator(seed))

        def enable() -> None:
            for layer in found:
                layer.enable_lora(rank, lora_alpha, begin)

        undone_if_it_fails(contents_of(found), enable)
        self._freeze()

    def merge_lora(self) -> None:
        """Add the LoRA products to the matrices of the network: see :meth:`mp_core.layers.Dense.merge_lora`."""
        for layer in self._adapted().values():
            layer.merge_lora()

    def save_adapter(self, path: str | PathLike[str], *, force: bool = False) -> None:
        """Write the LoRA adapters as a folder that peft and :meth:`load_adapter` read.

        The folder holds ``adapter_config.json`` and ``adapter_model.safetensors``, in float32. To write the whole
        network with the adapters added to its matrices, use :meth:`save`.

        Parameters
        ----------
        path : path
        force : bool
            Whether to replace an existing folder. It must contain no other files than those written here.
        """
        adapted, names, target = self._adapted(), self._module_names(), path_of(path, "path").absolute()
        tensors = {
            f"{_START}{names[place]}.{part}": np.ascontiguousarray(variable.numpy().T)
            for place, layer in adapted.items()
            for part, variable in zip(_PARTS[type(layer)], lora_variables(layer), strict=True)
        }
        config = json.dumps(_config([names[place] for place in adapted], [*adapted.values()]), indent=2)
        files = {*ADAPTER_FILES}
        check_free(target, files, [], force=force)
        with temporary_beside(target) as temporary:
            temporary.mkdir(parents=True)
            with naming(temporary / _CONFIG):
                (temporary / _CONFIG).write_text(f"{config}\n")
            save_tensors(temporary / _WEIGHTS, tensors, policy="float32")
            replace(temporary, target, files, [], force=force)

    def load_adapter(self, path: str | PathLike[str]) -> None:
        """Replace the LoRA adapters of the network by those in a folder of :meth:`save_adapter` or of peft.

        Parameters
        ----------
        path : path
            Folder with ``adapter_config.json`` and ``adapter_model.safetensors``.

        Raises
        ------
        ValueError
            A file is damaged, belongs to another network, or asks for something that mp_core does not compute, such as
            DoRA or trained biases. Nothing has changed.
        """
        folder, layers = path_of(path, "path"), _adaptable(self.model)
        found = _read(folder, {name: layers[place] for place, name in self._module_names().items() if place in layers})

        def load() -> None:
            for layer in layers.values():
                drop_lora(layer)
            for layer, alpha, a, b in found:
                adapt(layer, a.shape[1], alpha, _constant(a), _constant(b))

        undone_if_it_fails(contents_of(layers.values()), load)
        self._freeze()

    def with_adapter(self, path: str | PathLike[str]) -> Self:
        """Return a copy of the model with the adapter in a folder: see :meth:`load_adapter`.

        Both share the frozen weights, so a server holds one network in memory, plus about one megabyte for each
        adapter.
        """
        other = copy(self)
        other.model, other._plans = deepcopy(self.model, {id(v): v for v in self.model.weights}), Plans()
        other.load_adapter(path)
        return other

    def _adapted(self) -> dict[str, AdaptableLayer]:
        """Return path -> layer for all layers with LoRA; raise ValueError if there are none."""
        found = {path: layer for path, layer in _adaptable(self.model).items() if layer.lora_enabled}
        if not found:
            raise ValueError("the model has no LoRA: call `enable_lora` or `load_adapter` first")
        return found

    def _module_names(self) -> dict[str, str]:
        """Return the path of each layer -> the name of its module in transformers."""
        return self.model.names("" if type(self.model) is TextNetwork else self.model.architecture.prefix)

    def _freeze(self) -> None:
        """Make the LoRA matrices trainable, and nothing else."""
        lora = {id(variable) for layer in _adaptable(self.model).values() for variable in lora_variables(layer)}
        for variable in self.model.weights:
            variable.trainable = id(variable) in lora

    def _take_lora(self, other: "AdaptedModel") -> None:
        """Copy the LoRA adapters of another model of the same architecture."""
        layers = _adaptable(self.model)
        for path, layer in _adaptable(other.model).items():
            lora = lora_of(layer)
            if lora is not None:
                rank, alpha, a, b = lora
                adapt(layers[path], rank, alpha, _constant(a.numpy()), _constant(b.numpy()))
                self._freeze()


def _adaptable(model: TextNetwork) -> dict[str, AdaptableLayer]:
    """Return path -> layer for all layers that can have LoRA."""
    layers = (layer for layer in model.flatten() if isinstance(layer, AdaptableLayer))
    return {str(layer.path): layer for layer in layers if type(layer) in _PARTS}


def _constant(array: Array) -> Callable[..., Array]:
    return lambda *_: array


def _config(names: list[str], layers: list[AdaptableLayer]) -> dict[str, Any]:
    """Return the content of ``adapter_config.json``: rank and alpha of the first layer, and patterns for exceptions."""
    numbers = {name: (layer.lora_rank, layer.lora_alpha) for name, layer in zip(names, layers, strict=True)}
    rank, alpha = numbers[names[0]]
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {name: each[0] for name, each in numbers.items() if each[0] != rank},
        "alpha_pattern": {name: each[1] for name, each in numbers.items() if each[1] != alpha},
        "target_modules": names,
        "bias": "none",
        "lora_dropout": 0.0,
        "use_rslora": False,
        "inference_mode": True,
    }


def _read(folder: Path, layers: Mapping[str, AdaptableLayer]) -> list[tuple[AdaptableLayer, float, Array, Array]]:
    """Return the layers of an adapter folder, each with its alpha and two matrices; `layers` has their module names."""
    path = folder / _CONFIG
    config = read_object(path)
    on = {name: value for name, value in config.items() if name in _RULES or (value and name != "alpha_pattern")}
    check(path, on, _RULES)
    alphas = config.get("alpha_pattern") or {}
    if (
        not isinstance(alphas, dict)
        or not alphas.keys() <= layers.keys()
        or not all(map(_POSITIVE[0], alphas.values()))
    ):
        raise ValueError(f"{path}: alpha_pattern is {alphas!r}; expected whole names of modules and numbers above 0")
    pairs = _pairs(folder / _WEIGHTS, layers)
    found = []
    for name, (a, b) in pairs.items():
        alpha = float(alphas.get(name, config.get("lora_alpha", 8)))
        found.append((layers[name], alpha * math.sqrt(a.shape[1]) if config.get("use_rslora") else alpha, a, b))
    return found


def _pairs(path: Path, layers: Mapping[str, AdaptableLayer]) -> dict[str, tuple[Array, Array]]:
    """Return the name of each module in the file -> its two matrices, of shapes (inputs, rank) and (rank, outputs)."""
    tensors = open_tensors(path)
    places = {
        f"{name}.{part}": (name, index)
        for name, layer in layers.items()
        for index, part in enumerate(_PARTS[type(layer)])
    }
    found: dict[str, dict[int, Array]] = {}
    for full, tensor in tensors.items():
        place = places.get(full.removeprefix(_START))
        if place is None:
            raise ValueError(f"{path}: tensor {full} belongs to no layer of this network that can have LoRA")
        if not isinstance(tensor, np.ndarray) or tensor.ndim != 2 or not dtypes.is_float(tensor.dtype):
            raise ValueError(f"{path}: tensor {full} must be a matrix of floats")
        found.setdefault(place[0], {})[place[1]] = ops.cast(tensor.T, "float32")
    if not found:
        raise ValueError(f"{path} holds no tensors")
    for name, parts in found.items():
        shape = layers[name].form.geometry.shape
        a, b = (parts.get(index, np.zeros((0, 0), np.float32)) for index in (0, 1))
        rank = a.shape[1]
        if rank == 0 or (a.shape, b.shape) != ((shape[0], rank), (rank, shape[1])):
            raise ValueError(
                f"{path}: the matrices of {name} have shapes {a.T.shape} and {b.T.shape}; expected (rank, {shape[0]}) "
                f"and ({shape[1]}, rank)"
            )
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            raise ValueError(f"{path}: the matrices of {name} have Inf or NaN")
    return {name: (parts[0], parts[1]) for name, parts in found.items()}
