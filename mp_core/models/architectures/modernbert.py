"""ModernBERT [1]_: no table of positions, near and far attention in turn, perceptrons with gates.

Every layer gets a normalized input and adds to the sum of all before it. That sum stays float32 (float64 under a
float64 policy), whatever the layers compute in.

.. [1] B. Warner et al., "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder for Fast, Memory Efficient,
   and Long Context Finetuning and Inference", 2024, arXiv:2412.13663.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from mp_core import dtypes, ops
from mp_core.arrays import F32, Array
from mp_core.models.architectures.table import Architecture
from mp_core.models.blocks import Embeddings, Encoder, Part, Shape, attend
from mp_core.models.settings import Settings, unexpected

__all__ = ["MODERNBERT"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernSettings(Settings):
    """What ``config.json`` says about a ModernBERT network.

    Attributes
    ----------
    local_attention : int
        The width of near attention: each token attends to those at most half as many tokens away.
    norm_bias, attention_bias, mlp_bias : bool
        Whether norms add a vector, and the products of attention and perceptron.
    near : tuple of bool
        Whether attention is near, for each block.
    thetas : tuple of float
        The theta of the rotary positions of each block: the larger, the more slowly vectors turn.
    """

    local_attention: int
    norm_bias: bool
    attention_bias: bool
    mlp_bias: bool
    near: tuple[bool, ...]
    thetas: tuple[float, ...]


class ModernEmbeddings(Embeddings):
    """The vectors of tokens, normalized."""

    settings: ModernSettings

    def build(self, input_shape: Shape) -> None:
        """Create the table."""
        s = self.settings
        self.word = self.vocabulary("word")
        self.norm = self.normalization("norm", s.norm_bias)

    def places(self, ids: Array, offsets: Array, types: Array | None = None) -> Array:
        """Return zeros: there is no table of positions, and no network of this kind tells `types` apart."""
        return np.zeros(len(ids), np.int32)

    def call(self, ids: Array, types: Array | None = None, places: Array | None = None) -> Array:
        """Return the vectors of tokens, with the axes of `ids` and one more, whatever their types and places."""
        outputs: Array = self.norm(self.word(ids))
        return outputs


class RotaryAttention(Part):
    """Attention of the tokens of a text to each other, or to those near, whose vectors turn with their positions.

    The layer ``qkv`` makes queries, keys and values, in this order, in one product.
    """

    settings: ModernSettings
    _options = ("settings", "index")

    def __init__(self, settings: ModernSettings, index: int, **kwargs: Any) -> None:
        super().__init__(settings, **kwargs)
        self.index = index

    def build(self, input_shape: Shape) -> None:
        """Create the products."""
        s, width = self.settings, self.settings.hidden_size
        self.qkv = self.dense("qkv", 3 * width, width, bias=s.attention_bias)
        self.attention_output = self.dense("attention_output", width, width, bias=s.attention_bias)

    def call(self, hidden: Array, keep: Array | None = None, offsets: Array | None = None) -> Array:
        """Return as many vectors as there are in `hidden`; `keep` and `offsets` are those of :func:`attend`."""
        s = self.settings
        qkv = self.qkv(hidden).reshape(*hidden.shape[:-1], 3, s.num_attention_heads, s.head_size)
        angles = _angles(s.thetas[self.index], s.head_size, s.max_length)
        both = qkv[..., :2, :, :]
        turned = ops.rotary(both, angles) if offsets is None else ops.ragged_rotary(both, angles, offsets)
        query, key, value = turned[..., 0, :, :], turned[..., 1, :, :], qkv[..., 2, :, :]
        reach = s.local_attention // 2 if s.near[self.index] else None
        outputs: Array = self.attention_output(attend(query, key, value, keep, offsets=offsets, reach=reach))
        return outputs


@lru_cache(maxsize=8)
def _angles(theta: float, size: int, length: int) -> Array:
    """Return cosines, then sines, of ``position / theta ** (2 * i / size)`` in float32, shape (length, size)."""
    powers = (theta ** (np.arange(0, size, 2) / size)).astype(F32)
    angles = (np.arange(length, dtype=F32)[:, np.newaxis] * (1 / powers)).astype(np.float64)
    table: Array = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(F32)
    table.flags.writeable = False  # so that plans share it
    return table


class ModernBlock(Part):
    """Attention and a perceptron with a gate; each gets its input normalized and adds to it."""

    settings: ModernSettings
    _options = ("settings", "index")

    def __init__(self, settings: ModernSettings, index: int, **kwargs: Any) -> None:
        super().__init__(settings, **kwargs)
        self.index = index

    def build(self, input_shape: Shape) -> None:
        """Create the layers; the first block's input is normalized already."""
        s, width, inner = self.settings, self.settings.hidden_size, self.settings.intermediate_size
        self.attention_norm = self.normalization("attention_norm", s.norm_bias) if self.index else None
        self.attention = self.part(RotaryAttention, s, self.index, shape=input_shape, name="attention")
        self.intermediate_norm = self.normalization("intermediate_norm", s.norm_bias)
        self.intermediate = self.dense("intermediate", 2 * inner, width, bias=s.mlp_bias)
        self.output = self.dense("output", width, inner, bias=s.mlp_bias)

    def call(self, hidden: Array, keep: Array | None = None, offsets: Array | None = None) -> Array:
        """Return as many vectors as there are in `hidden`; `keep` and `offsets` are those of :func:`attend`."""
        normed = hidden if self.attention_norm is None else self.attention_norm(hidden)
        hidden = ops.add(hidden, self.attention(normed, keep=keep, offsets=offsets))
        inner, half = self.intermediate(self.intermediate_norm(hidden)), self.settings.intermediate_size
        gated = ops.gate(inner[..., :half], inner[..., half:], self.settings.hidden_act)
        return ops.add(hidden, self.output(gated))


class ModernEncoder(Encoder):
    """Blocks, each of which adds to the outputs of the one before, and a normalization of the sum."""

    settings: ModernSettings

    def build(self, input_shape: Shape) -> None:
        """Create the blocks."""
        s = self.settings
        self.blocks = [
            self.part(ModernBlock, s, index, shape=input_shape, name=f"layer_{index}")
            for index in range(s.num_hidden_layers)
        ]
        self.norm = self.normalization("norm", s.norm_bias)

    def call(self, hidden: Array, keep: Array | None = None, offsets: Array | None = None) -> Array:
        """Return the normalized sum of all blocks; `keep` and `offsets` are those of :func:`attend`."""
        hidden = ops.cast(hidden, dtypes.result_type(hidden.dtype, F32))
        for block in self.blocks:
            hidden = block(hidden, keep=keep, offsets=offsets)
        outputs: Array = self.norm(hidden)
        return outputs


class ModernArchitecture(Architecture):
    """ModernBERT as ``transformers`` writes it."""

    def read(self, config: Mapping[str, Any], path: Any) -> ModernSettings:
        """Return the settings; raise ValueError if mp_core does not compute what ``config.json`` says."""
        settings: Any = super().read(config, path)
        if settings.head_size % 2:
            expected = f"an even multiple of num_attention_heads, {settings.num_attention_heads}"
            raise unexpected(path, "hidden_size", settings.hidden_size, expected)
        kinds = _kinds(config, settings.num_hidden_layers, path)
        theta = {kind: _theta(config, kind, *old, path) for kind, old in _THETAS.items()}
        near = tuple(kind == "sliding_attention" for kind in kinds)
        full: ModernSettings = replace(settings, near=near, thetas=tuple(theta[kind] for kind in kinds))
        return full


_THETAS = {"full_attention": ("global_rope_theta", 160_000.0), "sliding_attention": ("local_rope_theta", 10_000.0)}
"""Kind of attention in ``layer_types`` -> the entry that had its theta in files of before 2026, and the default."""


def _kinds(config: Mapping[str, Any], blocks: int, path: Any) -> list[str]:
    """Return the kind of attention of each block."""
    kinds = config.get("layer_types")
    if kinds is None:
        every = config.get("global_attn_every_n_layers", 3)
        if type(every) is not int or every < 1:
            raise unexpected(path, "global_attn_every_n_layers", every, "a positive int")
        kinds = ["sliding_attention" if index % every else "full_attention" for index in range(blocks)]
    if not isinstance(kinds, list) or len(kinds) != blocks or any(kind not in list(_THETAS) for kind in kinds):
        expected = f"a list of {blocks} of " + " or ".join(map(repr, _THETAS))
        raise unexpected(path, "layer_types", kinds, expected)
    return kinds


def _theta(config: Mapping[str, Any], kind: str, entry: str, default: float, path: Any) -> float:
    """Return the theta of a kind of attention."""
    parameters = config.get("rope_parameters") or {}
    given = parameters.get(kind) or {} if isinstance(parameters, dict) and parameters.keys() <= _THETAS.keys() else None
    if not isinstance(given, dict) or given.get("rope_type", "default") != "default" or given.keys() - _ROPE:
        expected = f"an object of {', '.join(map(repr, _THETAS))} with 'rope_theta' and 'rope_type': 'default'"
        raise unexpected(path, "rope_parameters", parameters, expected)
    theta = given.get("rope_theta", config.get(entry, default))
    if type(theta) not in (int, float) or not 0 < theta < math.inf:
        raise unexpected(path, f"the rope_theta of {kind}", theta, "a positive, finite number")
    return float(theta)


_ROPE = {"rope_type", "rope_theta"}

MODERNBERT = ModernArchitecture(
    model_types=("modernbert",),
    prefix="model.",
    tensors={
        "embeddings/word": "embeddings.tok_embeddings",
        "embeddings/norm": "embeddings.norm",
        "encoder/layer_{}/attention_norm": "layers.{}.attn_norm",
        "encoder/layer_{}/attention/qkv": "layers.{}.attn.Wqkv",
        "encoder/layer_{}/attention/attention_output": "layers.{}.attn.Wo",
        "encoder/layer_{}/intermediate_norm": "layers.{}.mlp_norm",
        "encoder/layer_{}/intermediate": "layers.{}.mlp.Wi",
        "encoder/layer_{}/output": "layers.{}.mlp.Wo",
        "encoder/norm": "final_norm",
    },
    entries={"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps"},
    defaults={
        "vocab_size": 50368,
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
        "max_position_embeddings": 8192,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "local_attention": 128,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
    },
    fixed={"type_vocab_size": 0, "padding_idx": None, "position_buckets": 0, "near": (), "thetas": ()},
    allowed={"rope_scaling": (None,), "head_dim": (None,), "is_decoder": (False,)},
    settings=ModernSettings,
    embeddings=ModernEmbeddings,
    encoder=ModernEncoder,
)
