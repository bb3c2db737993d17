"""Suggest a known word for an unknown one: "did you mean ...?"."""

import re
from collections.abc import Iterable

__all__ = ["meant", "not_one_of", "refusal", "suggestion"]

_OTHER_NAMES = {
    "bf16": "bfloat16",
    "double": "float64",
    "e4m3": "float8_e4m3fn",
    "e4m3fn": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "f16": "float16",
    "f32": "float32",
    "float": "float32",
    "fp16": "float16",
    "fp32": "float32",
    "fp4": "mxfp4",
    "fp8": "float8_e4m3fn",
    "f8": "float8_e4m3fn",
    "float8": "float8_e4m3fn",
    "half": "float16",
    "i4": "int4",
    "i8": "int8",
    "q4": "int4",
    "q8": "int8",
    "single": "float32",
    "w4a16": "int4",
    "w8a16": "int8/weight_only",
    "w8a8": "int8",
}
"""Name of a type or a policy in other programs -> its name in mp_core."""


_SHOWN = 200  # most characters of the received word in a message


def meant(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that the user most likely meant, or None.

    >>> meant("mixed_bf16", ["bfloat16", "mixed_bfloat16"]), meant("INT8", ["int8"]), meant("conver", ["convert"])
    ('mixed_bfloat16', 'int8', 'convert')
    """
    from difflib import get_close_matches  # only errors need it

    words = list(known)
    plain = word.lower()
    plain = _OTHER_NAMES.get(plain, plain)
    plain = "".join(_OTHER_NAMES.get(part, part) for part in re.split(r"([_/])", plain))
    parts = _parts(plain)
    holding = [other for other in words if parts and parts <= _parts(other)]
    return min(holding, key=len, default=None) or next(iter(get_close_matches(plain, words, 1)), None)


def _parts(word: str) -> set[str]:
    """Return the set of alphanumeric parts of a word, so that `int8_weight_only` equals `int8/weight-only`."""
    return set(re.findall(r"[a-z0-9]+", word.lower()))


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about a word: "; did you mean ...?", or "" if no known word is similar."""
    other = meant(word, known)
    return "" if other is None else f"; did you mean {other}?"


def refusal(word: str, allowed: str, other: str | None = None) -> str:
    """Return a message about a word: what was received, what may have been meant, what is allowed.

    >>> refusal("two", "must be an integer")
    "received 'two'; it must be an integer"
    >>> refusal("bf16", "must be float32 or bfloat16", "bfloat16")
    "received 'bf16'; did you mean bfloat16? It must be float32 or bfloat16"
    """
    shown = repr(word) if len(word) <= _SHOWN else f"{word[: _SHOWN // 2]!r}... of {len(word)} characters"
    return f"received {shown}; {'it' if other is None else f'did you mean {other}? It'} {allowed}"


def not_one_of(word: str, known: Iterable[str]) -> str:
    """Return the message for a word that is not one of the known words."""
    words = list(known)
    return refusal(word, f"must be one of {', '.join(words)}", meant(word, words))
