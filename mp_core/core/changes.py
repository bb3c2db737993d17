"""How often anything has changed on which the result of a layer depends: variables, policies, layers."""

__all__ = ["changed", "count"]

_count = 0


def changed() -> None:
    """Say that something has changed. Threads may do so at once: the number differs from all before in any case."""
    global _count
    _count += 1


def count() -> int:
    """Return a number that is another one after every change."""
    return _count
