"""What ``config.json`` says about a network, in the same words for all architectures."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NewType

from mp_core.utilities.arguments import Rule

__all__ = ["ACTIVATIONS", "KINDS", "LEAST_TOKENS", "MOST_BLOCKS", "Count", "Settings", "choices", "shown", "unexpected"]

LEAST_TOKENS = 2
"""How many tokens a text may have at least, whatever limits them: plans tell a text from a token by their numbers."""

MOST_BLOCKS = 2**12
"""How many blocks a network may have: more than any has, but what is listed for each fits into memory."""

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
"""Name of an activation in ``config.json`` -> mp_core's name of it."""

Count = NewType("Count", int)
"""The type of a setting that may be 0."""

_COUNTED = "an int from 0 to 2^31 - 1"
KINDS: dict[Any, Rule] = {
    int: (lambda value: type(value) is int and 0 < value < 2**31, "a positive int below 2^31"),
    **dict.fromkeys((Count, int | None), (lambda value: type(value) is int and 0 <= value < 2**31, _COUNTED)),
    float: (lambda value: type(value) is float and 0 < value < math.inf, "a positive, finite float"),
    bool: (lambda value: type(value) is bool, "true or false"),
}
"""Type of a setting -> the rule that its values follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What ``config.json`` says about a network, in the same words for all architectures.

    Attributes
    ----------
    type_vocab_size : int
        How many types of tokens have vectors of their own; 0 where there are none.
    padding_idx : int or None
        If not None, only tokens other than this one have positions, which begin at ``padding_idx + 1``.
    hidden_act : str
        mp_core's name of the activation.
    position_buckets : int
        How many relative positions have biases in attention; 0 where there are none.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    hidden_act: str
    layer_norm_eps: float
    type_vocab_size: int
    padding_idx: int | None
    position_buckets: int

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def is_relative(self) -> bool:
        """Whether only the distances of positions count, so that padding before a text would change nothing."""
        return False

    @property
    def rows_of_token(self) -> tuple[int, ...]:
        """How many rows operations have for each token, besides those that have one."""
        return ()

    @property
    def overflowing(self) -> tuple[str, ...]:
        """The names of layers whose outputs are beyond the range of float16: they compute in float32 instead."""
        return ()

    @property
    def vector_size(self) -> int:
        """The length of the vectors of the network."""
        return self.hidden_size

    @property
    def embedding_width(self) -> int:
        """The length of the vectors of tokens before the first block."""
        return self.hidden_size

    @property
    def max_length(self) -> int:
        """The most tokens of a text."""
        return self.max_position_embeddings - (0 if self.padding_idx is None else self.padding_idx + 1)


def choices(allowed: Iterable[Any]) -> str:
    """Return the allowed values as a part of a sentence."""
    return " or ".join(map(repr, allowed))


def shown(value: Any) -> str:
    """Return a value as a part of a message: the beginning of one that is very long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_SHOWN = 1000  # characters


def unexpected(path: Any, entry: str, value: Any, expected: str) -> ValueError:
    """Return the error for an entry of a file that has a value which is not allowed."""
    return ValueError(f"{path}: {entry} is {shown(value)}; expected {expected}")
