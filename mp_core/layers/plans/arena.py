"""Memory for runs of plans: the offset of each buffer in a block, and a pool of blocks, one for each active run."""

from collections.abc import Sequence
from threading import Condition, RLock
from typing import Any
from weakref import WeakSet

import numpy as np

from mp_core.arrays.recorded_array import address_of
from mp_core.core.scopes import called_under
from mp_core.utilities.docstrings import shown
from mp_core.utilities.system import after_fork

__all__ = ["ARENAS", "LINE", "Arenas", "Lease", "place"]

LINE = 64  # bytes of a cache line, with which each buffer begins
_PATIENCE = 0.05  # seconds after which a waiting thread checks again, since a collected lease notifies nobody


@shown("{}([100, 64, 100], [(0, 1), (1, 2), (2, 3)])", "([0, 128, 0], 192)")
def place(sizes: Sequence[int], lives: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Return offsets of buffers in one block, and its size; buffers that are in use at the same time do not overlap.

    Each buffer has a size in bytes, and the first and the last step that uses it. Offsets are multiples of 64.
    """
    count, end = len(sizes), 0
    offsets = [0] * count
    rounded = [-(-size // LINE) * LINE for size in sizes]
    begins, stops, first, last = np.zeros((4, count), np.int64)  # of the buffers placed so far, sorted by `begins`
    for number, index in enumerate(sorted(range(count), key=lambda index: -sizes[index])):
        size, life = rounded[index], lives[index]
        living = (first[:number] <= life[1]) & (last[:number] >= life[0])
        reached = np.maximum.accumulate(np.append(0, stops[:number][living]))
        fits = begins[:number][living] >= reached[:-1] + size
        at = int(reached[fits.argmax() if fits.any() else -1])
        offsets[index], end = at, max(end, at + size)
        where = int(np.searchsorted(begins[:number], at))
        for line, value in ((begins, at), (stops, at + size), (first, life[0]), (last, life[1])):
            line[where + 1 : number + 1] = line[where:number]
            line[where] = value
    return offsets, end


class Lease:
    """A block of memory that :class:`Arenas` has lent to one run."""

    __slots__ = ("__weakref__", "block")

    def __init__(self) -> None:
        self.block: np.ndarray[Any, Any] | None = None

    @property
    def address(self) -> int:
        """The address of the block, a multiple of a cache line."""
        assert self.block is not None
        return address_of(self.block)


class Arenas:
    """A pool of at most `most` memory blocks for runs of plans; further runs wait.

    A run that is interrupted, for example by an exception in a signal handler, does not give its block back. Its lease
    ends when Python collects it, and the block is freed then.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.forget()

    def forget(self) -> None:
        """Start with an empty pool and a new lock: in a forked child, lent blocks and lock are never released."""
        self._lent: WeakSet[Lease] = WeakSet()
        self._free: list[np.ndarray[Any, Any]] = []
        self._lock = RLock()  # a signal handler may run a plan too
        self._returned = Condition(self._lock)

    def take(self, size: int) -> Lease:
        """Lend a block of at least `size` bytes; pass the lease to :meth:`give` afterwards."""
        lease = Lease()
        lease.block = called_under(self._lock, self._lend, lease, size)
        if lease.block is None:
            raw = np.empty(size + LINE, np.uint8)
            lease.block = raw[-address_of(raw) % LINE :][:size]
        return lease

    def _lend(self, lease: Lease, size: int) -> np.ndarray[Any, Any] | None:
        """Wait until a lease is allowed, and register it; return a free block, or None if a new one is needed."""
        while len(self._lent) >= self._most:
            self._returned.wait(_PATIENCE)
        self._lent.add(lease)
        for index in range(len(self._free) - 1, -1, -1):  # the block given back last is most likely in the caches
            if len(self._free[index]) >= size:
                return self._free.pop(index)
        if self._free:
            self._free.pop()  # the new block, which is larger, replaces it
        return None

    def give(self, lease: Lease) -> None:
        """Return the block of a lease to the pool."""
        called_under(self._lock, self._take_back, lease)

    def _take_back(self, lease: Lease) -> None:
        if len(self._lent) >= self._most:  # otherwise no thread waits
            self._returned.notify()
        self._lent.discard(lease)
        if lease.block is not None:
            self._free.append(lease.block)
            lease.block = None  # the lease may outlive the block's stay in the pool


ARENAS = Arenas(64)
"""The pool of this process."""

after_fork(ARENAS.forget)
