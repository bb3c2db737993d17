"""A progress bar where a person watches, nothing elsewhere."""

from collections.abc import Iterable
from typing import TypeVar

__all__ = ["progress"]

T = TypeVar("T")


def progress(items: Iterable[T], *, show: bool, total: int | None, unit: str) -> Iterable[T]:
    """Return `items`, wrapped in a bar on stderr if `show` is true and tqdm (extra ``cli``) is installed.

    Parameters
    ----------
    items : iterable
        What the caller iterates over.
    show : bool
        Whether to show a bar.
    total : int or None
        The number of items, if it is known.
    unit : str
        What the bar calls an item.
    """
    if not show:
        return items
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    bar: Iterable[T] = tqdm(items, total=total, unit=unit, leave=False)
    return bar
