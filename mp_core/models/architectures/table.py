"""The table of one architecture: its settings in ``config.json``, and the names of its tensors."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from mp_core.models.blocks import Embeddings, Encoder
from mp_core.models.settings import ACTIVATIONS, KINDS, LEAST_TOKENS, MOST_BLOCKS, Settings, choices, unexpected
from mp_core.models.slots import Tensor

__all__ = ["Architecture", "Tensors"]

Tensors = Mapping[str, Tensor]


def _as_they_are(tensors: Tensors, settings: Settings, path: Path) -> Tensors:
    return tensors


_TABLES = {
    "embeddings/word": "vocab_size",
    "embeddings/position": "max_position_embeddings",
    "embeddings/token_type": "type_vocab_size",
}
"""The path of a table -> the setting for its number of rows."""
_OUTPUT = "hidden_size", "intermediate_size"
_AXES = {"encoder/layer_{}/output": _OUTPUT, "encoder/layer_0/output": _OUTPUT}
"""The path of another layer -> the settings for the lengths of its weight's axes."""
_RENAMED = {r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A network as ``transformers`` writes it."""

    model_types: tuple[str, ...]  # The values of ``model_type`` in ``config.json``.
    prefix: str  # The start of all tensor names if the network is part of another model.
    # The path of a layer with weights of its own -> the start of its tensor names; ``{}`` stands for the number of a
    # block. ``embeddings/token_type`` is a part of ``embeddings/position``.
    tensors: Mapping[str, str]
    # Setting -> its entry in ``config.json``, if the names differ.
    entries: Mapping[str, str] = field(default_factory=dict)
    # Settings that ``config.json`` may also contain under their own name: transformers reads both.
    aliases: tuple[str, ...] = ()
    # Setting -> its value if ``config.json`` has no such entry, as in transformers.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # Setting -> its value, for settings that this architecture does not read from ``config.json``.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    # Entry of ``config.json`` that would change the computation -> the supported values; the first is the default.
    allowed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # The largest ``max_position_embeddings``: more than published networks have, but tables of this length still fit
    # into memory.
    most_positions: int = 2**20
    # Name of a tensor -> the name of an equal tensor, which a file may omit.
    tied: Mapping[str, str] = field(default_factory=dict)
    # Pattern in an older tensor name -> its replacement.
    renamed: Mapping[str, str] = field(default_factory=lambda: _RENAMED)
    # ``(tensors, settings, path)`` -> the tensors of a file in the layout of this table, for example with joint
    # matrices split.
    adapt: Callable[[Tensors, Settings, Path], Tensors] = _as_they_are
    # `settings`, `embeddings`, `encoder`: The classes of the settings and of the two parts of the network. Default:
    # those of BERT.
    settings: type[Settings] = Settings
    embeddings: type[Embeddings] = Embeddings
    encoder: type[Encoder] = Encoder

    def read(self, config: Mapping[str, Any], path: Any) -> Settings:
        """Return the settings of a ``config.json``; raise ValueError if mp_core does not support one of its values."""
        for name, allowed in self.allowed.items():
            value = config.get(name, allowed[0])
            if not any(type(value) is type(known) and value == known for known in allowed):
                raise unexpected(path, name, value, choices(allowed))
        values = dict(self.fixed)
        kinds = get_type_hints(self.settings)
        for setting in fields(self.settings):
            if setting.name not in values:
                entry = self._entry_in(config, setting.name)
                values[setting.name] = _checked(config.get(entry, self.defaults[setting.name]), entry,
                    "activation" if setting.name == "hidden_act" else kinds[setting.name], path)  # fmt: skip
        settings = self.settings(**values)
        if settings.num_hidden_layers > MOST_BLOCKS:
            entry = self._entry_in(config, "num_hidden_layers")
            raise unexpected(path, entry, settings.num_hidden_layers, f"an int from 1 to {MOST_BLOCKS}")
        if settings.hidden_size % settings.num_attention_heads and "head_dim" not in self.entries:
            width, heads = map(self.entry, ("hidden_size", "num_attention_heads"))
            expected = f"a multiple of {heads}, {settings.num_attention_heads}"
            raise unexpected(path, width, settings.hidden_size, expected)
        unused = settings.max_position_embeddings - settings.max_length
        if not LEAST_TOKENS + unused <= settings.max_position_embeddings <= self.most_positions:
            expected = f"an int from {LEAST_TOKENS + unused} to {self.most_positions}"
            raise unexpected(path, "max_position_embeddings", settings.max_position_embeddings, expected)
        return settings

    def shapes(self, settings: Settings, config: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        """Return path of a weight -> {``config.json`` entry: length of the axis}; these weights cover all sizes."""
        return {
            path.format(0): {self._entry_in(config, name): getattr(settings, name) for name in names}
            for path, names in self._axes(settings).items()
            if path in self.tensors and all(getattr(settings, name) for name in names)
        }

    def _axes(self, settings: Settings) -> dict[str, tuple[str, ...]]:
        """Return the path of a layer -> the settings that give the lengths of its weight's axes."""
        width = "embedding_size" if hasattr(settings, "embedding_size") else "hidden_size"
        return {**{path: (length, width) for path, length in _TABLES.items()}, **_AXES}

    def _entry_in(self, config: Mapping[str, Any], setting: str) -> str:
        """Return the entry under which ``config.json`` has a setting, or would have it."""
        entry = self.entry(setting)
        return setting if setting in self.aliases and entry not in config and setting in config else entry

    def entry(self, setting: str) -> str:
        """Return the usual entry of a setting in ``config.json``."""
        return self.entries.get(setting, setting)

    def names(self, settings: Settings) -> dict[str, str]:
        """Return the path of each layer -> the start of its tensor names, without the prefix."""
        blocks = range(settings.num_hidden_layers)
        found = {path.format(i): name.format(i) for path, name in self.tensors.items() if "{}" in path for i in blocks}
        return {path: name for path, name in self.tensors.items() if "{}" not in path} | found

    def current_name(self, name: str) -> str:
        """Return the current name of a tensor, given its name in a file."""
        for pattern, other in self.renamed.items():
            name = re.sub(pattern, other, name)
        return name

    def example(self, prefix: str) -> str:
        """Return the name of one tensor of the first block, in a checkpoint with this prefix."""
        return prefix + next(name for path, name in self.tensors.items() if "{}" in path).format(0) + ".weight"

    @property
    def is_numbered(self) -> bool:
        """Whether tensor names contain the number of a block."""
        return any("{}" in path for path in self.tensors)

    def block_of(self, name: str) -> int | None:
        """Return the number of the block in a tensor name without prefix; None if it names no block."""
        if not self.is_numbered:
            return None
        start = next(name for path, name in self.tensors.items() if "{}" in path).partition("{}")[0]
        number = re.match(rf"{re.escape(start)}(\d+)\.", name)
        return None if number is None else int(number[1])


def _checked(value: Any, entry: str, kind: Any, path: Any) -> Any:
    if kind == "activation":
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise unexpected(path, entry, value, choices(ACTIVATIONS))
        return ACTIVATIONS[value]
    fits, expected = KINDS[kind]
    if not fits(value):
        raise unexpected(path, entry, value, expected)
    return value
