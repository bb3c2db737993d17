"""Work on boxes of tensors in threads, in bounded memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self, TypeVar

from mp_core.core.cpu import get_num_threads, num_threads

__all__ = ["MIN_MEMORY", "Pool"]

T = TypeVar("T")
R = TypeVar("R")

_BYTES_PER_ELEMENT = 64  # of a box that is worked on: its values, codes, what these stand for, three float64 arrays
_LEAST, _MOST = 2**16, 2**18  # elements; a larger box leaves the second-level cache and gains nothing

MIN_MEMORY = _BYTES_PER_ELEMENT * _LEAST
"""Bytes with which one thread can work."""


class Pool:
    """Threads that share `max_memory` bytes.

    Attributes
    ----------
    limit : int
        The most elements a box may have: a power of two.
    """

    def __init__(self, threads: int | None, max_memory: int) -> None:
        fitting = max_memory // MIN_MEMORY
        if fitting < 1:
            raise ValueError(f"`max_memory` must be at least {MIN_MEMORY} bytes; received {max_memory}")
        with num_threads(threads or get_num_threads()):
            self._threads = min(get_num_threads(), fitting)
        self.limit = _LEAST
        while self.limit < _MOST and 2 * self.limit * _BYTES_PER_ELEMENT * self._threads <= max_memory:
            self.limit *= 2
        self._executor = ThreadPoolExecutor(self._threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield the results for the items, in their order."""

        def alone(item: T) -> R:
            with num_threads(1):
                return function(item)

        running: deque[Future[R]] = deque()
        for item in items:
            running.append(self._executor.submit(alone, item))
            if len(running) > 2 * self._threads:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
