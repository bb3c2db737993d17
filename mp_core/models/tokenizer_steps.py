"""Check the steps of a tokenizer before any of them runs: none may repeat a text too often or take too long.

Each step of a normalizer, pre-tokenizer or decoder expands a character to at most some number of characters. A text
grows at most by the product of these numbers, and the package takes some 50 bytes per character.

The package matches patterns with Oniguruma, which gives up after 10 million steps, 0.3 s, at each position of a text,
and continues at the next one: a pattern that needs nearly as many steps takes an hour for 1 MB. So patterns must follow
the rule of :mod:`mp_core.utilities.patterns`.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mp_core.models.settings import shown, unexpected
from mp_core.utilities.patterns import MAX_LENGTH, longest_for

__all__ = ["Step", "check_steps", "steps_of"]

_MOST = 64
"""The most characters that one may become: 36 in the tokenizers of XLM-RoBERTa, T5 and ALBERT, fewer in others."""

_MOST_STEPS = 256  # ten times as many as in any known tokenizer

Step = dict[str, Any]
"""The object of a step in ``tokenizer.json``: its type and its settings."""

_INNER = ("normalizers", "pretokenizers", "processors", "decoders")
"""The entries that contain the steps of a sequence."""


def steps_of(part: Any) -> Iterator[Step]:
    """Yield the steps of a normalizer, pre-tokenizer, post-processor or decoder, with sequences flattened."""
    waiting = [part]
    while waiting:
        step = waiting.pop()
        if isinstance(step, dict):
            inner = next((step[name] for name in _INNER if isinstance(step.get(name), list)), None)
            if inner is None:
                yield step
            else:
                waiting += reversed(inner)


def check_steps(path: Path, content: dict[str, Any]) -> None:
    """Raise ValueError if a tokenizer expands texts too much, repeats their tokens too often, or may take too long."""
    parts = {
        "the number of characters that one may become": ("normalizer", "pre_tokenizer"),
        "how often its post-processor repeats a text": ("post_processor",),
        "the number of characters that one of a token may become": ("decoder",),
    }
    for what, names in parts.items():
        growth = 1
        steps = [step for name in names for step in steps_of(content.get(name))]
        if len(steps) > _MOST_STEPS:
            raise unexpected(path, f"the number of steps of its {names[0]}", len(steps), f"at most {_MOST_STEPS}")
        for step in steps:
            _check_pattern(path, step.get("pattern"))
            grow = _GROWTH.get(str(step.get("type")))
            growth *= 1 if grow is None else grow(step)
            if growth > _MOST:
                raise unexpected(path, what, growth, f"at most {_MOST}")


def _check_pattern(path: Path, pattern: Any) -> None:
    """Raise ValueError for a regular expression that may take too long for a few characters."""
    text = pattern.get("Regex") if isinstance(pattern, dict) else None
    if not isinstance(text, str):
        return
    try:
        longest_for(_as_python(text), "search")
    except ValueError as error:
        raise ValueError(f"{path}: the pattern {shown(text)} is refused: {error}") from None


def _as_python(pattern: str) -> str:
    """Return a Python pattern with as many ways to match as one of Oniguruma; a character class becomes a letter."""
    if len(pattern) > MAX_LENGTH:
        return pattern  # it is refused
    pattern = _ESCAPED.sub(lambda escape: _TO[escape.lastindex or 0], pattern)
    before = ""
    while before != pattern:  # classes may be nested
        before, pattern = pattern, _CLASS.sub("w", pattern)
    return _GROUP.sub("(", pattern.replace("}+", "}{1,}"))  # `}+` repeats a repeat; in Python it would be possessive


_ESCAPED = re.compile(r"\\(?:([bBAzZG])|([RX])|([1-9gk])|[pP]\{\^?\w+\}|[xu]\{?\w+\}?|.)", re.S)
"""An escape: of a position, of several characters, a back-reference, or of one character."""
_TO = "w", r"\b", "(?:ww?)", r"\g"  # for one character, and for groups 1 to 3; Python refuses the last
_CLASS = re.compile(r"\[\^?\]?[^\[\]]*\]")
_GROUP = re.compile(r"\(\?<(?![=!])\w+>")


def _replace(step: Step) -> int:
    pattern, content = step.get("pattern"), step.get("content")
    length = len(content) if isinstance(content, str) else 0
    literal = pattern.get("String") if isinstance(pattern, dict) else pattern
    if isinstance(literal, str) and literal:
        return max(1, -(-length // len(literal)))
    return max(1, length) if _consumes(pattern) else 1 + length


def _consumes(pattern: Any) -> bool:
    """Return whether a pattern certainly matches no empty text: each alternative begins with at least one character."""
    text = pattern.get("Regex") if isinstance(pattern, dict) else None
    return isinstance(text, str) and "(" not in text and all(map(_CHARACTER.match, text.split("|")))


_CHARACTER = re.compile(
    r"(?:\\(?:[sSdDwWrnt]|p\{\w+\})|\[(?:\\.|[^\]\\])+\]|[^\\\[\](){}?*+^$])(?:\+|\{[1-9]|(?![?*{]))"
)


def _precompiled(step: Step) -> int:
    """Return the length of the longest replacement in a character map; replacements are stored after its trie."""
    try:
        blob = base64.b64decode(step.get("precompiled_charsmap") or "", validate=True)
    except (binascii.Error, TypeError, ValueError):
        return 1  # the package refuses it
    texts = blob[4 + int.from_bytes(blob[:4], "little") :]
    return max([1, *(len(text.decode("utf-8", "replace")) for text in texts.split(b"\0"))])


def _prepend(step: Step) -> int:
    text = step.get("prepend")
    return 1 + (len(text) if isinstance(text, str) else 0)


def _template(step: Step) -> int:
    """Return how many times a template contains texts."""
    pieces = [step[entry] for entry in ("single", "pair") if isinstance(step.get(entry), list)]
    return max([1, *(sum(isinstance(piece, dict) and "Sequence" in piece for piece in each) for each in pieces)])


_GROWTH: dict[str, Callable[[Step], int]] = {
    "Replace": _replace,
    "Precompiled": _precompiled,
    "Prepend": _prepend,
    "TemplateProcessing": _template,
    **dict.fromkeys(("ByteLevel", "Metaspace", "BPEDecoder", "WordPiece", "CTC"), lambda _: 2),
}
"""Type of a step -> to how many characters or texts it expands one. Unicode normalization does not accumulate."""
