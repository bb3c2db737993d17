"""Regular expressions that come from files, matched in bounded time.

Python's ``re`` tries every way in which a pattern can match, which may be exponentially many, and cannot be stopped. So
the ways are counted first, and a name for which there may be too many is matched by all of them at once [1]_: in time
proportional to the length of the name times that of the pattern.

.. [1] K. Thompson, "Regular expression search algorithm", Communications of the ACM 11 (6), 1968.
"""

import math
import re
from bisect import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any

__all__ = ["MAX_LENGTH", "matcher"]

MAX_LENGTH = 4096
"""Characters of the longest pattern."""
_MAX_STATES = 2000
_MAX_WAYS = 22.0  # log2: a few hundredths of a second
_MAX_NAME = 20  # log2 of a length that no name has
_SHORT = 6  # log2 of a length that names must be allowed to have
_ACCEPT = 0
_REPEATED = re.compile(r"[*+?{|]")

_CHARACTERS = {_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN}
_REPEATS = {_constants.MAX_REPEAT, _constants.MIN_REPEAT}


def matcher(pattern: str, how: str) -> Callable[[str], object]:
    """Return a function that says whether a name matches a pattern.

    Parameters
    ----------
    pattern : str
        As Python's ``re`` has it.
    how : {"fullmatch", "search"}
        Whether the whole name must match, or any part of it.

    Raises
    ------
    ValueError
        `pattern` is no regular expression, too long, or may take too long: one with back references, lookarounds,
        atomic groups or possessive repeats inside or beside many repeats, or one of more than two thousand parts.

    Examples
    --------
    >>> bool(matcher("(a+)+b", "fullmatch")("a" * 1000))
    False
    """
    if len(pattern) > MAX_LENGTH:
        raise ValueError(f"a pattern may have {MAX_LENGTH} characters; received {len(pattern)}")
    try:
        quick: Callable[[str], object] = getattr(re.compile(pattern), how)
        if not _REPEATED.search(pattern):
            return quick
        tree = _parser.parse(pattern)
        if _is_quick(tree, _MAX_NAME, how == "search"):
            return quick
        longest = bisect(range(_MAX_NAME), 0, key=lambda size: not _is_quick(tree, size, how == "search")) - 1
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from None
    try:
        program = _Program.of(tree)
    except _TooHardError as error:
        if longest < _SHORT:
            raise ValueError(f"matching may take too long: {error}") from None
        program = None
    return partial(_match, pattern, quick, 2**longest if longest >= 0 else 0, program, how == "search")


def _match(
    pattern: str, quick: Callable[[str], object], longest: int, program: "_Program | None", search: bool, name: str
) -> object:
    if len(name) <= longest:
        return quick(name)
    if program is None:
        raise ValueError(f"the pattern {pattern!r} may take too long for names of more than {longest} characters")
    return program.matches(name, search)


def _is_quick(tree: Iterable[Any], size: int, search: bool) -> bool:
    """Whether ``re`` matches names of 2**size characters soon enough."""
    return _ways(tree, 2**size) + (size if search else 0) <= _MAX_WAYS


class _TooHardError(ValueError):
    pass


def _ways(items: Iterable[Any], size: int) -> float:
    """Return log2 of the most ways in which ``re`` may try to match the items to `size` characters."""
    total = 0.0
    for kind, value in items:
        if kind in _REPEATS or kind is _constants.POSSESSIVE_REPEAT:
            low, high, body = value
            most = min(high, max(size // max(body.getwidth()[0], 1), low))
            inside = _ways(body, size)
            total += math.log2(most - min(low, most) + 1) + (inside * most if inside else 0.0)
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
    return total


@lru_cache(4096)
def _test(kind: Any, value: Any, flags: int) -> Callable[[str, int], object]:
    """Return what says whether a name has this character, or is at such an end, at a place."""
    state = _parser.State()
    state.flags = flags
    value = list(value) if kind is _constants.IN else value
    match: Callable[[str, int], object] = _compiler.compile(_parser.SubPattern(state, [(kind, value)]), flags).match
    return match


@dataclass(frozen=True, slots=True)
class _Program:
    """A pattern as states, of which a name reaches a set with each of its characters.

    A state is a test of one character or place and the state after it, or no test and the states to go on with.
    """

    states: list[tuple[Callable[[str, int], object] | None, bool, list[int]]]
    start: int

    @classmethod
    def of(cls, tree: Any) -> "_Program":
        """Return the program of a parsed pattern; raise if it has parts that are not of this kind, or too many."""
        states: list[tuple[Callable[[str, int], object] | None, bool, list[int]]] = [(None, False, [])]

        def add(test: Callable[[str, int], object] | None, consumes: bool, then: list[int]) -> int:
            if len(states) >= _MAX_STATES:
                raise _TooHardError(f"it has more than {_MAX_STATES} parts, those of repeats counted as often")
            states.append((test, consumes, then))
            return len(states) - 1

        def build(items: Iterable[Any], then: int, flags: int) -> int:
            items = list(items) or [(_constants.SUBPATTERN, None)]
            for kind, value in reversed(items):
                then = one(kind, value, then, flags)
            return then

        def one(kind: Any, value: Any, then: int, flags: int) -> int:
            if kind in _CHARACTERS or kind is _constants.AT:
                test = _test(kind, tuple(value) if kind is _constants.IN else value, flags)
                return add(test, kind is not _constants.AT, [then])
            if kind is _constants.BRANCH:
                return add(None, False, [build(part, then, flags) for part in value[1]])
            if value is None:  # a repeat of nothing counts too
                return add(None, False, [then])
            if kind is _constants.SUBPATTERN:
                _, added, removed, body = value
                return build(body, then, (flags | added) & ~removed)
            if kind in _REPEATS:
                low, high, body = value
                if high is _constants.MAXREPEAT:
                    loop = add(None, False, [then])
                    states[loop][2].append(build(body, loop, flags))
                    then = loop
                else:
                    end = then
                    for _ in range(high - low):
                        then = add(None, False, [end, build(body, then, flags)])
                for _ in range(low):
                    then = build(body, then, flags)
                return then
            raise _TooHardError("it has a reference, a lookaround, an atomic group or a possessive repeat")

        return cls(states, build(tree, _ACCEPT, tree.state.flags))

    def matches(self, name: str, search: bool) -> bool:
        """Whether the whole name, or any part of it, matches."""
        reached: set[int] = set()
        for place in range(len(name) + 1):
            if search or place == 0:
                reached.add(self.start)
            tests = self._follow(reached, name, place)
            if _ACCEPT in tests and (search or place == len(name)):
                return True
            reached = set()
            if place < len(name):
                for index in tests:
                    test, _, then = self.states[index]
                    if test is not None and test(name, place):
                        reached.update(then)
        return False

    def _follow(self, reached: set[int], name: str, place: int) -> set[int]:
        """Return the states that can be reached without a character and test one, or accept."""
        found: set[int] = set()
        seen, rest = set(reached), list(reached)
        while rest:
            index = rest.pop()
            test, consumes, then = self.states[index]
            if consumes or index == _ACCEPT:
                found.add(index)
            elif test is None or test(name, place):
                new = [state for state in then if state not in seen]
                seen.update(new)
                rest += new
        return found
