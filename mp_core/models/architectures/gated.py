"""The base of all architectures built from :mod:`mp_core.models.gated_blocks`: kinds of attention, rotary positions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from mp_core.models.architectures.table import Architecture
from mp_core.models.blocks import Embeddings, Encoder
from mp_core.models.gated_blocks import GatedEmbeddings, GatedEncoder, GatedSettings, Layout
from mp_core.models.rope import Rope
from mp_core.models.settings import KINDS, Settings, unexpected

__all__ = ["BIASED", "FIXED", "FULL", "POST_NORM", "SLIDING", "UNBIASED", "GatedArchitecture"]

FULL, SLIDING = "full_attention", "sliding_attention"
_ORIGINAL = "original_max_position_embeddings"
_FROM_HEADS = "encoder/layer_{}/attention/attention_output"
"""The path of the projection after the heads, which every network of this kind has."""

FIXED: dict[str, Any] = {
    "padding_idx": None,
    "position_buckets": 0,
    "num_key_value_heads": 0,
    "head_dim": 0,
    "is_causal": False,
    "reaches": (),
    "ropes": (),
    "score_scale": None,
    "softcap": None,
    "routing": None,
}
"""Settings that :meth:`GatedArchitecture.read` computes, or that these networks do not use."""
_BIASES = "norm_bias", "qkv_bias", "output_bias", "gate_bias", "down_bias"
BIASED, UNBIASED = FIXED | dict.fromkeys(_BIASES, True), FIXED | dict.fromkeys(_BIASES, False)
"""The same for networks whose norms and products all have biases, or have none."""
POST_NORM = Layout(normed_inputs=False, normed_embeddings=True, root_mean_square=False)
"""The layout of BERT's descendants: layer norms of the embeddings and of the sums after each layer."""


def _positive(config: Mapping[str, Any], entry: str, default: int | None, absent: int, path: Any) -> int:
    """Return a positive integer entry of ``config.json``; `absent` if the entry, or its default, is null."""
    value = config.get(entry, default)
    fits, expected = KINDS[int]
    if value is not None and not fits(value):
        raise unexpected(path, entry, value, expected)
    return absent if value is None else int(value)


def _all_full(config: Mapping[str, Any], blocks: int, path: Any) -> list[str]:
    return [FULL] * blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedArchitecture(Architecture):
    """A network with rotary positions and gated perceptrons, as ``transformers`` writes it."""

    settings: type[Settings] = GatedSettings
    embeddings: type[Embeddings] = GatedEmbeddings
    encoder: type[Encoder] = GatedEncoder
    # ``(config, blocks, path)`` -> the kind of attention of each block, if ``layer_types`` is absent.
    kinds: Callable[[Mapping[str, Any], int, Any], list[str]] = _all_full
    kinds_of: tuple[str, ...] = (FULL,)  # The allowed kinds of attention.
    # The entry of ``config.json`` for the width of the sliding window, and its default.
    window: tuple[str, int] = ("sliding_window", 4096)
    is_causal: bool = False  # Whether attention is causal, unless ``config.json`` overrides it.
    # Kind of attention -> the entry that gives theta if ``rope_parameters`` does not, and its default. Empty: no rotary
    # positions.
    thetas: Mapping[str, tuple[str, float]] = field(default_factory=lambda: {FULL: ("rope_theta", 10_000.0)})
    head_dim: int | None = None  # The default of ``head_dim``; None: ``hidden_size / num_attention_heads``.
    # The entry of ``config.json`` for d in the score scale ``1 / sqrt(d)``. None: d is ``head_dim``.
    score_entry: str | None = None
    # The entry of ``config.json`` for the cap of the scores. It must be in `defaults` too.
    softcap_entry: str | None = None

    def read(self, config: Mapping[str, Any], path: Any) -> Settings:
        found: Any = Architecture.read(self, config, path)  # super() fails in classes with slots
        heads, name = found.num_attention_heads, "num_key_value_heads"
        shared = _positive(config, name, self.defaults[name], heads, path) if name in self.defaults else heads
        size = _positive(config, self.entry("head_dim"), self.head_dim, found.hidden_size // heads, path)
        if heads % shared:
            raise unexpected(path, "num_key_value_heads", shared, f"a divisor of num_attention_heads, {heads}")
        if size % 2 and self.thetas:
            expected = f"an even multiple of {self.entry('num_attention_heads')}, {heads}"
            raise unexpected(path, self.entry("hidden_size"), found.hidden_size, expected)
        kinds = self._kinds(config, found.num_hidden_layers, path)
        both_ways = config.get("is_causal", True) is False
        if both_ways and self.is_causal and SLIDING in kinds:
            raise unexpected(path, "is_causal", False, "true in a network with sliding-window attention")
        is_causal = self.is_causal and not both_ways and not config.get("use_bidirectional_attention")
        reaches, ropes = self._reaches(config, is_causal, path), self._ropes(config, (size, found.max_length), path)
        entry = self.score_entry
        settings: GatedSettings = replace(
            found,
            num_key_value_heads=shared,
            head_dim=size,
            is_causal=is_causal,
            reaches=tuple(reaches[kind] for kind in kinds),
            ropes=tuple(ropes[kind] for kind in kinds),
            score_scale=None if entry is None else _positive(config, entry, self.defaults[entry], size, path) ** -0.5,
            softcap=self._softcap(config, path),
        )
        return settings

    def shapes(self, settings: Settings, config: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        gated = cast(GatedSettings, settings)
        found, width = Architecture.shapes(self, settings, config), self.entry("hidden_size")
        heads = " * ".join(map(self.entry, ("num_attention_heads", "head_dim")))
        return found | {
            _FROM_HEADS.format(i): {width: gated.hidden_size, heads: gated.num_attention_heads * gated.heads_of(i)[1]}
            for i in range(gated.num_hidden_layers)
        }

    def _softcap(self, config: Mapping[str, Any], path: Any) -> float | None:
        """Return the cap of the attention scores; None if there is none."""
        entry = self.softcap_entry
        value = None if entry is None else config.get(entry, self.defaults[entry])
        if entry is None or value is None:
            return None
        if type(value) not in (int, float) or not 2.0**-64 <= value <= 2.0**64:
            raise unexpected(path, entry, value, "null or a positive number, from 2^-64 to 2^64")
        return float(value)

    def _kinds(self, config: Mapping[str, Any], blocks: int, path: Any) -> list[str]:
        """Return the kind of attention of each block."""
        kinds = config.get("layer_types")
        kinds = self.kinds(config, blocks, path) if kinds is None else kinds
        if (
            not isinstance(kinds, list)
            or len(kinds) != blocks
            or any(kind not in list(self.kinds_of) for kind in kinds)
        ):
            expected = f"a list of {blocks} of " + " or ".join(map(repr, self.kinds_of))
            raise unexpected(path, "layer_types", kinds, expected)
        return kinds

    def _reaches(self, config: Mapping[str, Any], is_causal: bool, path: Any) -> dict[str, int | None]:
        """Return how many tokens away each kind of attention reaches; None: no limit."""
        if SLIDING not in self.kinds_of:
            return {FULL: None}
        entry, default = self.window
        width = _positive(config, entry, default, default, path)
        return {FULL: None, SLIDING: width - 1 if is_causal else width // 2}

    def _ropes(self, config: Mapping[str, Any], sizes: tuple[int, int], path: Any) -> dict[str, Rope | None]:
        """Return the rotary positions of each kind of attention; `sizes` are the head size and the most positions."""
        if not self.thetas:
            return dict.fromkeys((FULL, SLIDING))
        given = config.get("rope_parameters") or {}
        scaling = config.get("rope_scaling") or {}
        expected = f"an object of {', '.join(map(repr, self.thetas))} with 'rope_theta' and 'rope_type'"
        nested = len(self.thetas) > 1
        by_kind = given if nested and isinstance(given, dict) else {FULL: given}
        if not by_kind.keys() <= self.thetas.keys() or not all(isinstance(own or {}, dict) for own in by_kind.values()):
            raise unexpected(path, "rope_parameters", given, expected)
        if not isinstance(scaling, dict):
            raise unexpected(path, "rope_scaling", scaling, "an object")
        found: dict[str, Rope | None] = {}
        for kind, (entry, default) in self.thetas.items():
            own = {**(scaling if kind == FULL else {}), **(by_kind.get(kind) or {})}
            theta = config.get(entry, default if nested else config.get("rope_theta", default))
            where = kind if nested else "rope_parameters"
            if own.get("rope_type", own.get("type")) == "longrope":
                original = {_ORIGINAL: config.get(_ORIGINAL, own.get(_ORIGINAL, sizes[1]))}
                found[kind] = Rope.by_length(own | original, theta, path, where, sizes)
            else:
                found[kind] = Rope.of(own, theta, path, where)
        return found if nested else dict.fromkeys((FULL, SLIDING), found[FULL])
