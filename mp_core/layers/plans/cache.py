"""What is made once for each key and kept, such as plans: as many as were used last."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

__all__ = ["Cache"]

T = TypeVar("T")


class Cache(Generic[T]):
    """Values by key: those that were used last.

    Several threads may use it at once, without a lock: a dictionary that others may see is never changed, but replaced
    by another one. At worst a value that two threads make at once, or keep while another one is used, is made again.
    (Without the interpreter lock, :class:`~collections.OrderedDict` of Python 3.13 crashes where threads share it.) A
    copy begins empty, since plans and their memory are those of a process.

    Parameters
    ----------
    most : int
        How many values are kept.

    Examples
    --------
    >>> cache = Cache(2)
    >>> [cache.made(key, lambda: key.upper()) for key in "abac"]
    ['A', 'B', 'A', 'C']
    >>> cache.get("a"), cache.get("b")
    ('A', None)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[Hashable, T] = {}  # the one that was used last is last

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> T | None:
        """Return the value of a key, which counts as used; None if there is none."""
        kept = self._kept
        found = kept.get(key)
        if found is not None and next(reversed(kept)) != key:
            self.put(key, found)
        return found

    def put(self, key: Hashable, value: T) -> T:
        """Keep a value, and return it; if there are too many, the one that was not used for longest is dropped."""
        kept = self._kept.copy()
        kept.pop(key, None)
        kept[key] = value
        if len(kept) > self._most:
            del kept[next(iter(kept))]
        self._kept = kept
        return value

    def made(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key, made if there is none."""
        found = self.get(key)
        return self.put(key, make()) if found is None else found

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, (self._most,)
