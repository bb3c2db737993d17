"""Nested structures of arguments: tuples (named ones too), lists and dicts."""

from collections.abc import Callable
from typing import Any

__all__ = ["map_leaves"]


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
