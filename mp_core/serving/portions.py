"""Process texts and answers in portions, so that other requests run in between and abandoned ones can be cancelled."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from types import GeneratorType
from typing import Any

import numpy as np

from mp_core.models.texts import Tokens
from mp_core.serving.models import Computing

__all__ = ["json_portions", "text_portions", "tokens_of"]

_CHARACTERS = 1 << 16  # in a portion of texts or of an answer: some 10 ms
_AT_ONCE = 1 << 12  # numbers that one call converts to JSON, some 20 characters each
_POSITION = re.compile(r"^(`\w+\[)(\d+)")


def text_portions(inputs: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any], int]]:
    """Split texts or pairs into portions: yield (index of the first input, the inputs, number of characters).

    The first text of pairs, which may be a long query, is counted once per portion, since each portion tokenizes it
    again. So a portion has at least as many characters of other texts.

    >>> list(text_portions(["ab", "c"]))
    [(0, ['ab', 'c'], 3)]
    """
    first = size = 0
    shared: object = None
    least = _CHARACTERS
    for position, each in enumerate(inputs):
        text = each
        if not isinstance(each, str):
            before, text = each
            if before != shared:
                shared, size = before, size + len(before)
                least = max(least, size + len(before))
        size += len(text)
        if size >= least or position == len(inputs) - 1:
            yield first, inputs[first : position + 1], size
            first, size, shared, least = position + 1, 0, None, _CHARACTERS


def tokens_of(served: Computing, inputs: Sequence[Any], prompt_name: str | None, first: int, **how: bool) -> Tokens:
    """Return the tokens of a portion that starts at text `first`; errors name the index among all texts."""
    try:
        return served.tokenize(inputs, prompt_name, **how)
    except ValueError as error:
        raise ValueError(_POSITION.sub(lambda found: f"{found[1]}{int(found[2]) + first}", str(error))) from None


def json_portions(answer: Any) -> Iterator[bytes]:
    """Yield an answer as JSON, in portions. It may contain dicts, lists, generators and arrays of finite numbers.

    >>> b"".join(json_portions({"a": np.eye(2), "b": "c"}))
    b'{"a":[[1.0,0.0],[0.0,1.0]],"b":"c"}'
    """
    kept: list[str] = []
    size = 0
    for part in _parts(answer):
        kept.append(part)
        size += len(part)
        if size >= _CHARACTERS:
            yield "".join(kept).encode()
            kept, size = [], 0
    yield "".join(kept).encode()


def _parts(value: Any) -> Iterator[str]:
    """Yield the JSON of a value in parts of about `_AT_ONCE` numbers: one call per number would take longer."""
    if _size(value) <= _AT_ONCE or isinstance(value, str):
        yield _JSON.encode(value)
    elif isinstance(value, dict):
        for place, (key, item) in enumerate(value.items()):
            yield f"{',' if place else '{'}{_JSON.encode(key)}:"
            yield from _parts(item)
        yield "}"
    elif isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype != object:
        yield _JSON.encode(value)
    else:
        for place, run in enumerate(_runs(value)):
            yield "," if place else "["
            yield from _parts(run[0]) if len(run) == 1 else [_JSON.encode(run)[1:-1]]
        yield "]"


def _runs(items: Iterable[Any]) -> Iterator[Any]:
    """Yield runs of items with about `_AT_ONCE` numbers in total, at least one item each; for no items an empty run."""
    if isinstance(items, np.ndarray) and items.dtype != object:
        count = max(1, _AT_ONCE // items[0].size)
        yield from (items[start : start + count] for start in range(0, len(items), count))
        return
    run: list[Any] = []
    room: float = _AT_ONCE
    for item in items:
        size = _size(item)
        if run and size > room:
            yield run
            run, room = [], _AT_ONCE
        run.append(item)
        room -= size
    yield run


def _size(value: Any) -> float:
    """Estimate how many numbers a value has, from the first item of a list; infinite if the size is unknown."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.size
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list):
        return len(value) * _size(value[0]) if value else 0
    if isinstance(value, str):
        return 1 + len(value) // 16
    return inf if isinstance(value, np.ndarray | GeneratorType) else 1


_JSON = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=np.ndarray.tolist)
