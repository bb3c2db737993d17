"""Match regular expressions from untrusted files in bounded time.

Python's ``re`` backtracks: it may try exponentially many ways to match a pattern, and a running match cannot be
stopped. So we first compute a bound for the number of ways, and refuse a pattern with too many. The bound needs the
parsed pattern; Python offers it only in the private modules ``re._parser`` and ``re._constants``.
"""

import math
import re
from collections.abc import Callable, Iterable
from functools import partial
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

__all__ = ["MAX_LENGTH", "longest_for", "matcher"]

MAX_LENGTH = 4096
"""The most characters of a pattern."""

# log2 of the most ways that are allowed. Example: `(.*a){4}b` may match 128 characters in 2^23.4 ways; Python tries
# them on `ac` * 64 in 9 ms (Zen 4, November 2026).
_MAX_WAYS = 24.0
_MAX_NAME = 20  # log2 of a length that no name reaches
_SHORT = 6  # log2 of the length of names that every accepted pattern can match

_CHARACTERS = {_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN}
_REPEATS = {_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT}


def matcher(pattern: str, how: str) -> Callable[[str], object]:
    """Return a function that returns whether a name matches a pattern: the whole name, or any part of it ("search").

    The pattern is a regular expression of Python's ``re``. It is refused if it is too long, or may take too long for
    names of 64 characters: it has repeats or alternatives inside repeats, or too many repeats in a row. The function
    raises ValueError if the name is so long that matching may take too long.

    >>> bool(matcher("encoder/.*/query", "fullmatch")("encoder/layer_0/query"))
    True
    """
    longest = longest_for(pattern, how)
    try:
        match: Callable[[str], object] = getattr(re.compile(pattern), how)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return match if longest == 2**_MAX_NAME else partial(_match_short, match, pattern, longest)


def longest_for(pattern: str, how: str) -> int:
    """Return the most characters of a name for a pattern; arguments and errors are those of :func:`matcher`."""
    if len(pattern) > MAX_LENGTH:
        raise ValueError(f"a pattern may have at most {MAX_LENGTH} characters; received {len(pattern)}")
    try:
        tree = _parser.parse(pattern)
        starts = 1 if how == "search" else 0
        sizes = range(_MAX_NAME, -1, -1)
        longest = next((size for size in sizes if _ways(tree, 2.0**size, starts) <= _MAX_WAYS), -1)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if longest < _SHORT:
        raise ValueError(
            "matching may take too long: the pattern has repeats or alternatives within a repeat, or too many repeats "
            "in a row"
        )
    return int(2**longest)


def _match_short(match: Callable[[str], object], pattern: str, longest: int, name: str) -> object:
    if len(name) > longest:
        raise ValueError(
            f"the pattern {pattern!r} may take too long for names of more than {longest} characters; received {name!r}"
        )
    return match(name)


def _ways(items: Iterable[Any], size: float, free: int = 0) -> float:
    """Return an upper bound for log2 of the number of ways in which ``re`` may match the items to `size` characters.

    The ends of k repeats of one character (and the start of a search: `free` = 1) are k ordered positions, which gives
    size^k / k! ways. All other choices count as independent, so their numbers are multiplied.
    """
    total = free * math.log2(size)
    for kind, value in items:
        if kind in _REPEATS:
            low, high, body = value
            width = body.getwidth()[0]
            tried = size // max(width, 1) + (width > 1)  # the last attempt has too few characters left
            most = max(min(high, tried), low)
            if width == 0 and low > 1:  # `re` matches "" the required number of times, and can backtrack into each
                total += low
            inside = _ways(body, size)
            total += math.log2(most - low + 1) + (inside * most if inside else 0.0)
            free += most - low + 1 >= size and len(body) == 1 and body[0][0] in _CHARACTERS
        elif kind is _constants.BRANCH:
            parts = [_ways(part, size) for part in value[1]]
            most_ways = max(parts)
            total += most_ways + math.log2(sum(2.0 ** (part - most_ways) for part in parts))
        elif kind is _constants.SUBPATTERN:
            total += _ways(value[-1], size)
        elif kind is _constants.ATOMIC_GROUP:
            total += _ways(value, size)
        elif kind in (_constants.ASSERT, _constants.ASSERT_NOT):
            total += _ways(value[1], size)
        elif kind is _constants.GROUPREF_EXISTS:
            total += sum(_ways(part, size) for part in value[1:] if part)
    return total - math.lgamma(free + 1) / math.log(2)
