"""Nested structures of arguments: tuples (named ones too), lists and dicts."""

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["leaves", "map_leaves"]


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return `tree` with `function` applied to everything that is not a tuple, list or dict.

    Examples
    --------
    >>> map_leaves(str, {"a": (1, [2])})
    {'a': ('1', ['2'])}
    """
    if isinstance(tree, dict):
        return {key: map_leaves(function, value) for key, value in tree.items()}
    if not isinstance(tree, (tuple, list)):
        return function(tree)
    items = [map_leaves(function, item) for item in tree]
    if isinstance(tree, list):
        return items
    return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)


def leaves(tree: Any) -> Iterator[Any]:
    """Yield everything in `tree` that is not a tuple, list or dict, in order.

    Examples
    --------
    >>> list(leaves({"a": (1, [2])}))
    [1, 2]
    """
    if isinstance(tree, (tuple, list, dict)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(item)
    else:
        yield tree
