"""What a tokenizer may do to a text: steps that repeat it, or take too long, are refused before any of them runs.

A step of a normalizer, pre-tokenizer or decoder makes of each character so many at most. A text becomes no longer than
the product of these numbers says, and the package takes some 50 bytes for each character.

The package searches by Oniguruma. At each place of a text it gives up after 10 million steps, 0.3 s, and then starts at
the next place: a pattern that needs nearly as many takes an hour for 1 MB. So patterns obey the rule of
:mod:`mp_core.utilities.patterns`.
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
"""How many characters one may become: 36 in the tokenizers of XLM-RoBERTa, T5 and ALBERT, fewer in others."""

_MOST_STEPS = 256  # ten times those of any tokenizer that is known

Step = dict[str, Any]
"""What a step says of itself in ``tokenizer.json``: its type and its settings."""

_INNER = ("normalizers", "pretokenizers", "processors", "decoders")
"""What the parts call their sequences of steps."""


def steps_of(part: Any) -> Iterator[Step]:
    """Yield the steps of a normalizer, pre-tokenizer, post-processor or decoder, those of sequences one by one."""
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
    """Raise ValueError for a tokenizer that makes texts too long, repeats their tokens too often, or takes too long."""
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
    """Return a pattern of Oniguruma as one of Python that can match in as many ways: each class is a character."""
    if len(pattern) > MAX_LENGTH:
        return pattern  # it is refused
    pattern = _ESCAPED.sub(lambda escape: _TO[escape.lastindex or 0], pattern)
    before = ""
    while before != pattern:  # classes may have classes in them
        before, pattern = pattern, _CLASS.sub("w", pattern)
    return _GROUP.sub("(", pattern.replace("}+", "}{1,}"))  # a repeat of a repeat: Python has possessive ones


_ESCAPED = re.compile(r"\\(?:([bBAzZG])|([RX])|([1-9gk])|[pP]\{\^?\w+\}|[xu]\{?\w+\}?|.)", re.S)
"""An escape of a place, of several characters, of what a group has matched, and of one character."""
_TO = "w", r"\b", "(?:ww?)", r"\g"  # of one character, and of these groups; Python refuses the last
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
    """Whether it is plain that a pattern matches no empty text: each alternative begins with a character or several."""
    text = pattern.get("Regex") if isinstance(pattern, dict) else None
    return isinstance(text, str) and "(" not in text and all(map(_CHARACTER.match, text.split("|")))


_CHARACTER = re.compile(
    r"(?:\\(?:[sSdDwWrnt]|p\{\w+\})|\[(?:\\.|[^\]\\])+\]|[^\\\[\](){}?*+^$])(?:\+|\{[1-9]|(?![?*{]))"
)


def _precompiled(step: Step) -> int:
    """Return the length of the longest text that a map of characters gives: they are behind its trie."""
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
    """Return how often a template has a text, or two."""
    pieces = [step[entry] for entry in ("single", "pair") if isinstance(step.get(entry), list)]
    return max([1, *(sum(isinstance(piece, dict) and "Sequence" in piece for piece in each) for each in pieces)])


_GROWTH: dict[str, Callable[[Step], int]] = {
    "Replace": _replace,
    "Precompiled": _precompiled,
    "Prepend": _prepend,
    "TemplateProcessing": _template,
    **dict.fromkeys(("ByteLevel", "Metaspace", "BPEDecoder", "WordPiece", "CTC"), lambda _: 2),
}
"""Type of a step -> how many characters or texts it makes of one. Unicode's forms do not grow when repeated."""
