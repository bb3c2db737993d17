"""Show the progress of a long call: a bar in a terminal or notebook, otherwise a line every few seconds."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = ["counting", "progress"]

T = TypeVar("T")

_EVERY = 5.0  # seconds between lines


def progress(items: Iterable[T], *, show: bool, total: int | None, unit: str) -> Iterable[T]:
    """Return `items`; if `show` is true, iterating over the result shows progress on stderr.

    `total` is the number of items, if known; `unit` is the name of an item.
    """
    return _counted(items, total, unit) if show else items


def _counted(items: Iterable[T], total: int | None, unit: str) -> Iterator[T]:
    with counting(show=True, total=total, unit=unit) as done:
        for item in items:
            yield item
            done(1)


@contextmanager
def counting(*, show: bool, total: int | None, unit: str, stays: bool = True) -> Iterator[Callable[[int], object]]:
    """Yield a function to call with the number of newly finished items; it shows progress on stderr.

    In a terminal it shows a bar of tqdm, removed at the end; in a notebook a bar that stays, unless the caller prints a
    line instead (`stays`). Elsewhere, or without tqdm, it prints a line every five seconds. See :func:`progress`.
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
    """Has the interface of a bar of tqdm, but prints lines."""

    def __init__(self, total: int | None, unit: str) -> None:
        self._of, self._unit = "" if total is None else f" of {total:,}", unit
        self._done, self._last = 0, time.monotonic()

    def update(self, count: int) -> None:
        """Count finished items; print a line if the last one is old enough."""
        self._done += count
        if time.monotonic() >= self._last + _EVERY:
            self._last = time.monotonic()
            print(f"mp_core: {self._unit} {self._done:,}{self._of}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Do nothing."""
