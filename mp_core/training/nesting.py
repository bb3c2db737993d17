"""Nested lists and dictionaries of outputs, and losses, targets and weights in the same arrangement."""

from collections.abc import Iterator, Sequence
from typing import Any

from mp_core.utilities.tree import leaves

__all__ = ["flattened", "is_nest", "is_nested", "names_in_logs", "with_replaced_parts"]


def is_nest(x: Any) -> bool:
    """Whether `x` is a list, tuple or dictionary."""
    return isinstance(x, list | tuple | dict)


def is_nested(outputs: Any) -> bool:
    """Whether `outputs` is a list or dictionary that contains another one."""
    return is_nest(outputs) and any(map(is_nest, outputs.values() if isinstance(outputs, dict) else outputs))


def flattened(given: Any, outputs: Any, place: str = "") -> Iterator[Any]:
    """Yield the part of `given` for each output, or None; lists and tuples are not distinguished."""
    if not is_nest(outputs):
        yield given
    elif given is None:
        yield from (None for _ in leaves(outputs))
    else:
        for key, part in _parts_of(outputs):
            yield from flattened(_part(given, outputs, key, place), part, f"{place}[{key!r}]")


def _parts_of(outputs: Any) -> Iterator[tuple[Any, Any]]:
    return iter(outputs.items() if isinstance(outputs, dict) else enumerate(outputs))


def _part(given: Any, outputs: Any, key: Any, place: str) -> Any:
    """Return the part of `given` for one part of the outputs; raise ValueError if the arrangements differ."""
    where = f" at {place}" if place else ""
    if isinstance(outputs, dict):
        if not isinstance(given, dict) or not given.keys() <= outputs.keys():
            received = ", ".join(map(repr, given)) if isinstance(given, dict) else type(given).__name__
            raise ValueError(f"a dict of {', '.join(map(repr, outputs))} is needed{where}; received {received}")
        return given.get(key)
    if not isinstance(given, list | tuple) or len(given) != len(outputs):
        received = str(len(given)) if isinstance(given, list | tuple) else type(given).__name__
        raise ValueError(f"a list of {len(outputs)} is needed{where}; received {received}")
    return given[key]


def with_replaced_parts(given: Any, outputs: Any, parts: Iterator[Any]) -> Any:
    """Return a copy of `given`, arranged as the outputs, in which each part is replaced by the next of `parts`."""
    if not is_nest(outputs):
        return next(parts)
    if given is None:
        for _ in leaves(outputs):
            next(parts)
        return None
    found = {key: with_replaced_parts(_part(given, outputs, key, ""), part, parts) for key, part in _parts_of(outputs)}
    if isinstance(given, dict):
        return {key: found[key] for key in given}
    return type(given)(*found.values()) if hasattr(given, "_fields") else list(found.values())


def names_in_logs(names: Sequence[str], outputs: Any) -> list[str]:
    """Return the name of each output in the logs, as in Keras: its path, with a name in the place of a list index.

    >>> names_in_logs(["a", "b", "c"], {"u": [None, None], "v": None})
    ['u/a', 'u/b', 'v']
    """
    return ["/".join(map(str, path)) for path in _paths(outputs, iter(names))]


def _paths(outputs: Any, names: Iterator[str], above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if is_nest(outputs):
        for key, part in _parts_of(outputs):
            yield from _paths(part, names, (*above, key))
    else:
        name = next(names)
        yield above if above and not isinstance(above[-1], int) else (*above[:-1], name)
