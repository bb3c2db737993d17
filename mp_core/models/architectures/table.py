"""What one architecture says about itself: its settings, and the names of its tensors."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

from mp_core.models.blocks import Embeddings, Encoder
from mp_core.models.settings import ACTIVATIONS, KINDS, Settings, choices, unexpected

__all__ = ["Architecture"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A network as ``transformers`` writes it.

    Attributes
    ----------
    model_types : tuple of str
        The values of ``model_type`` in ``config.json``.
    prefix : str
        How the names of all tensors begin where the network is a part of another model.
    tensors : mapping of str to str
        The path of a layer with weights of its own -> how the names of its tensors begin; ``{}`` is the number of a
        block. ``embeddings/token_type`` is a part of ``embeddings/position``.
    entries : mapping of str to str
        Setting -> its name in ``config.json``, where that is another one.
    defaults : mapping of str to object
        Setting -> its value where ``config.json`` says nothing.
    fixed : mapping of str to object
        Setting -> its value, in architectures whose ``config.json`` has no entry for it.
    allowed : mapping of str to tuple
        Entry of ``config.json`` that would change the computation -> the values it may have, first the default.
    settings, embeddings, encoder : type
        The classes of the settings and of the two parts of the network, where they are not those of BERT.
    """

    model_types: tuple[str, ...]
    prefix: str
    tensors: Mapping[str, str]
    entries: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    allowed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    settings: type[Settings] = Settings
    embeddings: type[Embeddings] = Embeddings
    encoder: type[Encoder] = Encoder

    def read(self, config: Mapping[str, Any], path: Any) -> Settings:
        """Return the settings of a ``config.json``; raise ValueError if mp_core does not compute what it says."""
        for name, allowed in self.allowed.items():
            value = config.get(name, allowed[0])
            if not any(type(value) is type(known) and value == known for known in allowed):
                raise unexpected(path, name, value, choices(allowed))
        values = dict(self.fixed)
        kinds = get_type_hints(self.settings)
        for setting in fields(self.settings):
            if setting.name not in values:
                entry = self.entry(setting.name)
                values[setting.name] = _checked(config.get(entry, self.defaults.get(setting.name)), entry,
                    "activation" if setting.name == "hidden_act" else kinds[setting.name], path)  # fmt: skip
        settings = self.settings(**values)
        if settings.hidden_size % settings.num_attention_heads:
            width, heads = map(self.entry, ("hidden_size", "num_attention_heads"))
            expected = f"a multiple of {heads}, {settings.num_attention_heads}"
            raise unexpected(path, width, settings.hidden_size, expected)
        if settings.max_length < 1:
            raise unexpected(path, "max_position_embeddings", settings.max_position_embeddings, "room for a token")
        return settings

    def entry(self, setting: str) -> str:
        """Return what ``config.json`` calls a setting."""
        return self.entries.get(setting, setting)

    def names(self, settings: Settings) -> dict[str, str]:
        """Return the path of each layer -> how the names of its tensors begin, without the prefix."""
        blocks = range(settings.num_hidden_layers)
        found = {path.format(i): name.format(i) for path, name in self.tensors.items() if "{}" in path for i in blocks}
        return {path: name for path, name in self.tensors.items() if "{}" not in path} | found

    def block_of(self, name: str) -> int | None:
        """Return the number of the block that a tensor belongs to, by its name without the prefix."""
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
