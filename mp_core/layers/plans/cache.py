"""A cache of the most recently used values, such as plans."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

__all__ = ["Cache"]

T = TypeVar("T")


class Cache(Generic[T]):
    """A cache that keeps the `most` recently used values by key.

    Threads may share it without a lock: a dictionary that others may see is never changed, but replaced by a new one.
    At worst a value is made twice. (:class:`~collections.OrderedDict` of free-threaded Python 3.13 crashes if threads
    share it.) A copy or an unpickled cache is empty, since plans and their memory belong to one process.

    Examples
    --------
    >>> cache = Cache(2)
    >>> [cache.get_or_make(key, lambda: key.upper()) for key in "abac"]
    ['A', 'B', 'A', 'C']
    >>> cache.get("a"), cache.get("b")
    ('A', None)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[Hashable, T] = {}  # from the least to the most recently used

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> T | None:
        """Return the value of a key and mark it as used; None if it is not in the cache."""
        kept = self._kept
        found = kept.get(key)
        if found is not None and next(reversed(kept)) != key:
            self.put(key, found)
        return found

    def put(self, key: Hashable, value: T) -> T:
        """Add a value and return it; if the cache is full, drop the least recently used one."""
        kept = self._kept.copy()
        kept.pop(key, None)
        kept[key] = value
        if len(kept) > self._most:
            del kept[next(iter(kept))]
        self._kept = kept
        return value

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key; call `make` if it is not in the cache."""
        found = self.get(key)
        return self.put(key, make()) if found is None else found

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, (self._most,)
