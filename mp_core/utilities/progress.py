"""How far a long call is: a bar where a person watches, a line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = ["counting", "progress"]

T = TypeVar("T")

_EVERY = 5.0  # seconds between lines


def progress(items: Iterable[T], *, show: bool, total: int | None, unit: str) -> Iterable[T]:
    """Return `items`; if `show` is true, stderr says how many of them are done.

    Parameters
    ----------
    items : iterable
        What the caller iterates over.
    show : bool
        Whether to show anything.
    total : int or None
        The number of items, if it is known.
    unit : str
        What an item is called.
    """
    return _counted(items, total, unit) if show else items


def _counted(items: Iterable[T], total: int | None, unit: str) -> Iterator[T]:
    with counting(show=True, total=total, unit=unit) as done:
        for item in items:
            yield item
            done(1)


@contextmanager
def counting(*, show: bool, total: int | None, unit: str, stays: bool = True) -> Iterator[Callable[[int], object]]:
    """Yield a function that is called with a number of items that are done; stderr says how many that makes.

    In a terminal that is a bar of tqdm, which is gone at the end, and in a notebook one that stays. Elsewhere, and
    without tqdm, it is a line every five seconds.

    Parameters
    ----------
    show, total, unit
        Those of :func:`progress`.
    stays : bool
        Whether the bar of a notebook stays; not if the caller prints a line in its place.
    """
    if not show or sys.stderr is None:
        yield lambda count: None
        return
    bar = _bar(total, unit, stays)
    try:
        yield bar.update
    finally:
        bar.close()


def _bar(total: int | None, unit: str, stays: bool) -> Any:
    is_notebook = type(sys.stderr).__module__.startswith("ipykernel.")
    if not (is_notebook or sys.stderr.isatty()):
        return _Lines(total, unit)
    try:
        from tqdm import tqdm
    except ImportError:
        return _Lines(total, unit)
    return tqdm(total=total, unit=unit, leave=is_notebook and stays)


class _Lines:
    """Like a bar of tqdm, a line now and then."""

    def __init__(self, total: int | None, unit: str) -> None:
        self._of, self._unit = "" if total is None else f" of {total:,}", unit
        self._done, self._last = 0, time.monotonic()

    def update(self, count: int) -> None:
        """Count items that are done."""
        self._done += count
        if time.monotonic() >= self._last + _EVERY:
            self._last = time.monotonic()
            print(f"mp_core: {self._unit} {self._done:,}{self._of}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Say nothing more."""
