"""Memory for runs of plans: where each buffer lies in a block, and the blocks, one for each run that is under way."""

import os
from collections.abc import Sequence
from threading import Condition
from typing import Any

import numpy as np

__all__ = ["ARENAS", "Arenas", "place"]

_LINE = 64  # bytes: buffers begin with cache lines


def place(sizes: Sequence[int], lives: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Return where to put buffers in one block, and the size of the block: two that live at once do not overlap.

    Parameters
    ----------
    sizes : sequence of int
        Bytes of each buffer.
    lives : sequence of (int, int)
        The first and the last step that uses it.

    Returns
    -------
    offsets : list of int
        Multiples of 64.
    size : int

    Examples
    --------
    >>> place([100, 64, 100], [(0, 1), (1, 2), (2, 3)])
    ([0, 128, 0], 192)
    """
    placed: list[tuple[int, int, int, int]] = []
    offsets, end = [0] * len(sizes), 0
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        size, (first, last) = -(-sizes[index] // _LINE) * _LINE, lives[index]
        at = 0
        for begin, stop, other_first, other_last in sorted(placed):
            if other_first > last or first > other_last or stop <= at:
                continue
            if begin >= at + size:
                break
            at = stop
        offsets[index] = at
        placed.append((at, at + size, first, last))
        end = max(end, at + size)
    return offsets, end


class Arenas:
    """Blocks of memory that are lent to runs, and lent again afterwards.

    Parameters
    ----------
    most : int
        How many may be lent at once; whoever wants another one waits.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lent = 0
        self._free: list[np.ndarray[Any, Any]] = []
        self._returned = Condition()

    def forget(self) -> None:
        """Begin anew in the child of a fork, where nobody gives back what is lent, or the lock."""
        self._lent, self._free, self._returned = 0, [], Condition()

    def take(self, size: int) -> np.ndarray[Any, Any]:
        """Lend a block of at least `size` bytes that begins with a cache line, until it is given back."""
        with self._returned:
            while self._lent >= self._most:
                self._returned.wait()
            self._lent += 1
            for index in range(len(self._free) - 1, -1, -1):  # the last one given back is the warmest
                if len(self._free[index]) >= size:
                    return self._free.pop(index)
            if self._free:
                self._free.pop()  # a larger one takes its place
        try:
            raw = np.empty(size + _LINE, np.uint8)
        except MemoryError:
            self.give(None)
            raise
        return raw[-raw.__array_interface__["data"][0] % _LINE :][:size]

    def give(self, block: np.ndarray[Any, Any] | None) -> None:
        """Take a block back."""
        with self._returned:
            self._lent -= 1
            if block is not None:
                self._free.append(block)
            self._returned.notify()


ARENAS = Arenas(64)
"""The blocks of this process."""

os.register_at_fork(after_in_child=ARENAS.forget)
