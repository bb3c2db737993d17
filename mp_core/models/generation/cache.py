"""The cache of keys and values: pages of a fixed number of tokens, shared by sequences with a common prefix."""

import math
from collections import OrderedDict
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mp_core.arrays import dtypes

__all__ = ["PAGE", "NoPageError", "PagedCache", "Sequence"]

PAGE = 64
"""The tokens of a page."""

Key = tuple[Any, ...]
"""Identifies the tokens from the start of a sequence to the end of a page."""


class NoPageError(MemoryError):
    """All pages of the cache are in use."""


@dataclass(eq=False)
class Sequence:
    """A sequence of tokens with its pages."""

    tokens: list[int]
    pages: list[int] = field(default_factory=list)
    stored: int = 0  # The tokens whose keys and values are in the pages.

    @property
    def waiting(self) -> int:
        """The number of tokens without keys and values."""
        return len(self.tokens) - self.stored


class PagedCache:
    """Keys and values of all blocks of a network.

    Full pages are found again by their tokens, and those before them: :meth:`share` gives them to other sequences. A
    page that no sequence uses keeps its contents until :meth:`grow` needs it; the least recently used page is taken
    first.

    Parameters
    ----------
    heads : sequence of (int, int)
        For each block the number of heads of keys, and their size.
    dtype : dtype
    pages : int
    """

    def __init__(self, heads: Listed[tuple[int, int]], dtype: Any, pages: int) -> None:
        self.rows = pages * PAGE
        # All rows of a head, then those of the next: attention reads memory in order.
        shapes = [(count * self.rows, size) for count, size in heads]
        self.keys, self.values = ([np.zeros(shape, dtypes.parse(dtype)) for shape in shapes] for _ in range(2))
        self._users = [0] * pages
        self._free = set(range(pages))
        self._keys: dict[int, Key] = {}
        self._known: dict[Key, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # known pages without users, the oldest first
        self._unreserved = pages

    @staticmethod
    def bytes_of_page(heads: Listed[tuple[int, int]], dtype: Any) -> int:
        """Return the bytes of a page of all blocks."""
        return sum(2 * math.prod(shape) for shape in heads) * PAGE * int(dtypes.parse(dtype).itemsize)

    @property
    def nbytes(self) -> int:
        """The bytes of all pages."""
        return sum(int(x.nbytes) for x in (*self.keys, *self.values))

    @property
    def available(self) -> int:
        """The number of pages that no sequence uses."""
        return len(self._free) + len(self._idle)

    def reserve(self, pages: int) -> bool:
        """Reserve pages for a sequence; return False if so many are not left. A negative number returns pages."""
        if pages > self._unreserved:
            return False
        self._unreserved -= pages
        return True

    def share(self, sequence: Sequence) -> None:
        """Give a new sequence the pages that have its first tokens; at least one token stays without."""
        tokens, key = sequence.tokens, ()
        for end in range(PAGE, len(tokens), PAGE):
            key = _key(key, tokens[end - PAGE : end])
            page = self._known.get(key)
            if page is None:
                return
            self._idle.pop(page, None)
            self._users[page] += 1
            sequence.pages.append(page)
            sequence.stored = end

    def grow(self, sequence: Sequence, tokens: int) -> None:
        """Give a sequence the pages for its first `tokens` tokens; raise NoPageError if there are too few."""
        needed = -(-tokens // PAGE) - len(sequence.pages)
        if needed > self.available:
            raise NoPageError(f"the cache has {self.available} free pages of {PAGE} tokens; {needed} are needed")
        for _ in range(needed):
            page = self._next(sequence.pages[-1] if sequence.pages else None)
            self._users[page] = 1
            sequence.pages.append(page)

    def note(self, sequence: Sequence, stored: int) -> None:
        """Note that the first `stored` tokens of a sequence have keys and values."""
        first, sequence.stored = sequence.stored // PAGE, stored
        key = self._keys[sequence.pages[first - 1]] if first else ()
        for index in range(first, stored // PAGE):
            key = _key(key, sequence.tokens[index * PAGE : (index + 1) * PAGE])
            page = sequence.pages[index]
            if self._known.setdefault(key, page) == page:
                self._keys[page] = key
            else:  # another sequence stored the same tokens first
                self._keys[page] = self._keys[self._known[key]]

    def rewind(self, sequence: Sequence, stored: int) -> None:
        """Forget the tokens of a sequence after the first `stored` ones.

        If other sequences may share the page of the last of these, forget its tokens too.
        """
        kept = stored // PAGE
        if kept < len(sequence.pages) and sequence.pages[kept] in self._keys:
            self._take(sequence, kept)
        sequence.stored = min(stored, sequence.stored, len(sequence.pages) * PAGE)

    def release(self, sequence: Sequence) -> None:
        """Take the pages of a sequence back."""
        self._take(sequence, 0)
        sequence.stored = 0

    def _take(self, sequence: Sequence, first: int) -> None:
        """Free the pages of a sequence from index `first` on."""
        for page in sequence.pages[first:]:
            self._users[page] -= 1
            if self._users[page]:
                continue
            key = self._keys.get(page)
            if key is not None and self._known.get(key) == page:
                self._idle[page] = None
            else:
                self._keys.pop(page, None)
                self._free.add(page)
        del sequence.pages[first:]

    def _next(self, last: int | None) -> int:
        """Return a page for a sequence whose last page is `last`: its neighbour if possible, which is read in place."""
        if last is not None and last + 1 in self._free:
            self._free.remove(last + 1)
            return last + 1
        if not self._free:
            page, _ = self._idle.popitem(last=False)
            del self._known[self._keys.pop(page)]
            return page
        page = self._start() if last is None else min(self._free)
        self._free.remove(page)
        return page

    def _start(self) -> int:
        """Return the first page of a sequence: the middle of the longest run of free pages, so that it can grow."""
        free = sorted(self._free)
        ends = [i for i in range(len(free)) if i + 1 == len(free) or free[i + 1] != free[i] + 1]
        starts = [0, *(end + 1 for end in ends[:-1])]
        first, end = max(zip(starts, ends, strict=True), key=lambda run: run[1] - run[0])
        return free[first if free[first] == 0 else (first + end) // 2]


def _key(before: Key, tokens: list[int]) -> Key:
    """Return the key of a page, given that of the page before it."""
    return before, np.array(tokens, np.int32).tobytes()
