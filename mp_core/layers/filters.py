"""Select layers by their names or by a function."""

from collections.abc import Callable
from typing import Any

from mp_core.utilities.patterns import matcher

__all__ = ["chooser"]


def chooser(filters: Any, argument: str = "filters") -> Callable[[Any], bool]:
    """Return a function that returns whether a layer is selected by `filters`; None selects all.

    `filters` is one or several regular expressions that are searched in the layer's name, or a function of the layer. A
    pattern whose matching may take too long raises ValueError.
    """
    if filters is None:
        return lambda layer: True
    if callable(filters):
        return lambda layer: bool(filters(layer))
    patterns = [filters] if isinstance(filters, str) else filters
    if not isinstance(patterns, list | tuple) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError(
            f"The `{argument}` argument must be a regex string, a list of regex strings, or a callable. "
            f"Received: {filters!r}"
        )
    try:
        matches = [matcher(pattern, "search") for pattern in patterns]
    except ValueError as error:
        raise ValueError(f"`{argument}` must be patterns that can be matched; received {filters!r}: {error}") from None
    return lambda layer: any(match(layer.name) for match in matches)
