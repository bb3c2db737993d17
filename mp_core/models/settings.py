"""The settings of a network, under the same names for all architectures."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NewType

from mp_core.utilities.arguments import Rule

__all__ = ["ACTIVATIONS", "KINDS", "LEAST_TOKENS", "MOST_BLOCKS", "Count", "Settings", "choices", "shown", "unexpected"]

LEAST_TOKENS = 2
"""The smallest allowed limit of tokens per text. Plans must be able to distinguish numbers of texts and of tokens."""

MOST_BLOCKS = 2**12
"""The most blocks of a network: more than published networks have, but few enough for lists with an entry per block."""

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
"""Name of an activation in ``config.json`` -> its name in mp_core."""

Count = NewType("Count", int)
"""The type of a setting that may be 0."""

_COUNTED = "an int from 0 to 2^31 - 1"
KINDS: dict[Any, Rule] = {
    int: (lambda value: type(value) is int and 0 < value < 2**31, "a positive int below 2^31"),
    **dict.fromkeys((Count, int | None), (lambda value: type(value) is int and 0 <= value < 2**31, _COUNTED)),
    float: (lambda value: type(value) is float and 0 < value < math.inf, "a positive, finite float"),
    bool: (lambda value: type(value) is bool, "true or false"),
}
"""Type of a setting -> the rule for its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a network, under the same names for all architectures."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    hidden_act: str  # The name of the activation in mp_core.
    layer_norm_eps: float
    type_vocab_size: int  # The number of token types with embeddings; 0 if there are none.
    # If given, positions start at ``padding_idx + 1`` and count only tokens other than ``padding_idx``.
    padding_idx: int | None
    position_buckets: int  # The number of buckets of distances with a bias in attention; 0 if there are none.

    @property
    def head_size(self) -> int:
        """The width of an attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def is_relative(self) -> bool:
        """Whether only distances of positions matter: then padding before a text would change nothing."""
        return False

    @property
    def rows_of_token(self) -> tuple[int, ...]:
        """The numbers of rows per token in operations that have more than one row per token."""
        return ()

    @property
    def overflowing(self) -> tuple[str, ...]:
        """The names of layers whose outputs exceed the range of float16; they compute in float32 instead."""
        return ()

    @property
    def vector_size(self) -> int:
        """The length of the network's output vectors."""
        return self.hidden_size

    @property
    def embedding_width(self) -> int:
        """The length of the word embeddings."""
        return self.hidden_size

    @property
    def max_length(self) -> int:
        """The most tokens of a text."""
        return self.max_position_embeddings - (0 if self.padding_idx is None else self.padding_idx + 1)


def choices(allowed: Iterable[Any]) -> str:
    """Return allowed values as part of a sentence."""
    return " or ".join(map(repr, allowed))


def shown(value: Any) -> str:
    """Return a value as part of a message; a very long one is abbreviated."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_SHOWN = 1000  # the most characters of a value in a message


def unexpected(path: Any, entry: str, value: Any, expected: str) -> ValueError:
    """Return the error for an entry of a file with a value that is not allowed."""
    return ValueError(f"{path}: {entry} is {shown(value)}; expected {expected}")
