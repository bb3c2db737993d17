"""Which of the layers below one are meant."""

from collections.abc import Callable
from typing import Any

from mp_core.utilities.patterns import matcher

__all__ = ["chooser"]


def chooser(filters: Any, argument: str = "filters") -> Callable[[Any], bool]:
    """Return a function that says whether a layer is meant.

    Parameters
    ----------
    filters : str, sequence of str, callable or None
        Regular expressions, one of which is found in the name of the layer; or a function of the layer. None: all are.
    argument : str
        Its name, for messages.

    Raises
    ------
    ValueError
        `filters` is none of these, or a pattern is no regular expression, or may take too long.
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
