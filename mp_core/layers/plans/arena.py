"""Memory for runs of plans: where each buffer lies in a block, and the blocks, one for each run that is under way."""

from collections.abc import Sequence
from threading import Condition, RLock
from typing import Any
from weakref import WeakSet

import numpy as np

from mp_core.arrays.recorded_array import address_of
from mp_core.core.scopes import called_under
from mp_core.utilities.system import after_fork

__all__ = ["ARENAS", "LINE", "Arenas", "Lease", "place"]

LINE = 64  # bytes: buffers begin with cache lines
_PATIENCE = 0.05  # seconds after which those who wait look for leases that have ended without a word


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
    count, end = len(sizes), 0
    offsets = [0] * count
    rounded = [-(-size // LINE) * LINE for size in sizes]
    begins, stops, first, last = np.zeros((4, count), np.int64)  # of those that are placed, by their beginnings
    for number, index in enumerate(sorted(range(count), key=lambda index: -sizes[index])):
        size, life = rounded[index], lives[index]
        beside = (first[:number] <= life[1]) & (last[:number] >= life[0])
        reached = np.maximum.accumulate(np.append(0, stops[:number][beside]))
        fits = begins[:number][beside] >= reached[:-1] + size
        at = int(reached[fits.argmax() if fits.any() else -1])
        offsets[index], end = at, max(end, at + size)
        where = int(np.searchsorted(begins[:number], at))
        for line, value in ((begins, at), (stops, at + size), (first, life[0]), (last, life[1])):
            line[where + 1 : number + 1] = line[where:number]
            line[where] = value
    return offsets, end


class Lease:
    """A block of memory for one run, from :class:`Arenas`."""

    __slots__ = ("__weakref__", "block")

    def __init__(self) -> None:
        self.block: np.ndarray[Any, Any] | None = None

    @property
    def address(self) -> int:
        """Where the block begins: with a cache line."""
        assert self.block is not None
        return address_of(self.block)


class Arenas:
    """Blocks of memory that are lent to runs, and lent again afterwards.

    A run that is broken off, as by an exception of a signal handler, gives nothing back. Its lease ends when it is
    collected, and the block is freed with it.

    Parameters
    ----------
    most : int
        How many may be lent at once; whoever wants another one waits.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.forget()

    def forget(self) -> None:
        """Begin anew, as in the child of a fork, where nobody gives back what is lent, or the lock."""
        self._lent: WeakSet[Lease] = WeakSet()
        self._free: list[np.ndarray[Any, Any]] = []
        self._lock = RLock()  # a signal handler may run a plan too
        self._returned = Condition(self._lock)

    def take(self, size: int) -> Lease:
        """Lend a block of at least `size` bytes, until it is given back."""
        lease = Lease()
        lease.block = called_under(self._lock, self._lend, lease, size)
        if lease.block is None:
            raw = np.empty(size + LINE, np.uint8)
            lease.block = raw[-address_of(raw) % LINE :][:size]
        return lease

    def _lend(self, lease: Lease, size: int) -> np.ndarray[Any, Any] | None:
        """Enter a lease, once there may be another one; return a free block for it, None if it needs a new one."""
        while len(self._lent) >= self._most:
            self._returned.wait(_PATIENCE)
        self._lent.add(lease)
        for index in range(len(self._free) - 1, -1, -1):  # the last one given back is the warmest
            if len(self._free[index]) >= size:
                return self._free.pop(index)
        if self._free:
            self._free.pop()  # a larger one takes its place
        return None

    def give(self, lease: Lease) -> None:
        """Take a block back."""
        called_under(self._lock, self._take_back, lease)

    def _take_back(self, lease: Lease) -> None:
        if len(self._lent) >= self._most:  # only then does anybody wait
            self._returned.notify()
        self._lent.discard(lease)
        if lease.block is not None:
            self._free.append(lease.block)
            lease.block = None  # somebody may hold the lease for longer than the pool keeps the block


ARENAS = Arenas(64)
"""The blocks of this process."""

after_fork(ARENAS.forget)
