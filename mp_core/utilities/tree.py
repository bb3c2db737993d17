"""Functions on trees: nested tuples (also named tuples), lists and dicts. Everything else in them is a leaf."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = [
    "by_key",
    "has_sorted_keys",
    "leaves",
    "leaves_as",
    "leaves_by_key",
    "map_leaves",
    "numbered",
    "packed_by_key",
]


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return `tree` with `function` applied to each leaf.

    >>> map_leaves(str, {"a": (1, [2])})
    {'a': ('1', ['2'])}
    """
    if isinstance(tree, dict):
        return {key: map_leaves(function, value) for key, value in tree.items()}
    if not isinstance(tree, (tuple, list)):
        return function(tree)
    return _sequence_like(tree, [map_leaves(function, item) for item in tree])


def _sequence_like(sequence: Any, items: list[Any]) -> Any:
    """Return items as a list, tuple or named tuple, like `sequence`."""
    if isinstance(sequence, list):
        return items
    return type(sequence)(*items) if hasattr(sequence, "_fields") else tuple(items)


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves of `tree` in order.

    >>> list(leaves({"a": (1, [2])}))
    [1, 2]
    """
    if isinstance(tree, (tuple, list, dict)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(item)
    else:
        yield tree


def by_key(tree: dict[Any, Any]) -> list[Any]:
    """Return the keys of a dict in the order of Keras: sorted, or in their own order if they cannot be sorted.

    >>> by_key({"b": 1, "a": 2})
    ['a', 'b']
    """
    try:
        return sorted(tree)
    except TypeError:
        return list(tree)


def has_sorted_keys(tree: dict[Any, Any]) -> bool:
    """Return whether the keys of a dict are in the order of Keras, so that a list can replace the dict.

    >>> has_sorted_keys({"a": 1, "b": 2}), has_sorted_keys({"b": 1, "a": 2})
    (True, False)
    """
    return list(tree) == by_key(tree)


def leaves_by_key(tree: Any) -> Iterator[Any]:
    """Yield the leaves of `tree` in the order of Keras, in which it numbers the outputs of a layer.

    >>> list(leaves_by_key({"b": 1, "a": (2, [3])}))
    [2, 3, 1]
    """
    if isinstance(tree, (tuple, list, dict)):
        for item in [tree[key] for key in by_key(tree)] if isinstance(tree, dict) else tree:
            yield from leaves_by_key(item)
    else:
        yield tree


def packed_by_key(structure: Any, found: Iterator[Any]) -> Any:
    """Return `structure` with its leaves replaced by `found`, in the order of :func:`leaves_by_key`.

    >>> packed_by_key({"b": 0, "a": (0, [0])}, iter([2, 3, 1]))
    {'b': 1, 'a': (2, [3])}
    """
    if isinstance(structure, dict):
        items = {key: packed_by_key(structure[key], found) for key in by_key(structure)}
        return {key: items[key] for key in structure}
    if isinstance(structure, (tuple, list)):
        return _sequence_like(structure, [packed_by_key(part, found) for part in structure])
    return next(found)


def leaves_as(structure: Any, tree: Any) -> Iterator[Any]:
    """Yield the leaves of `tree` in the order of the leaves of `structure`; only the order of keys may differ.

    >>> list(leaves_as({"b": 0, "a": 0}, {"a": 1, "b": 2}))
    [2, 1]
    """
    if isinstance(structure, dict) and isinstance(tree, dict) and structure.keys() == tree.keys():
        pairs = [(structure[key], tree[key]) for key in structure]
    elif isinstance(structure, (tuple, list)) and isinstance(tree, (tuple, list)) and len(structure) == len(tree):
        pairs = list(zip(structure, tree, strict=True))
    elif isinstance(structure, (tuple, list, dict)) or isinstance(tree, (tuple, list, dict)):
        raise ValueError(f"must be arranged as {_arrangement(structure)}; received {_arrangement(tree)}")
    else:
        yield tree
        return
    for pair in pairs:
        yield from leaves_as(*pair)


def _arrangement(tree: Any) -> Any:
    return map_leaves(lambda leaf: type(leaf).__name__, tree)


def numbered(names: Iterable[str]) -> list[str]:
    """Make names unique: a repeated name gets a number, as in Keras' files.

    >>> numbered(["dense", "dropout", "dense"])
    ['dense', 'dropout', 'dense_1']
    """
    counts, found = Counter[str](), []
    for name in names:
        found.append(f"{name}_{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return found
