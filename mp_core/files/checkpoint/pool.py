"""Process boxes of tensors in threads, in bounded memory."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Self, TypeVar

import numpy as np

from mp_core.core.cpu import get_num_threads, num_threads
from mp_core.files.checkpoint.output import signals_deferred
from mp_core.utilities.arguments import positive_integer

__all__ = ["MIN_MEMORY", "Pool"]

T = TypeVar("T")
R = TypeVar("R")

MIN_MEMORY = 2**23
"""Bytes that one thread needs: about 64 per element of a box (65,536 elements), and as many in reserve."""


class Pool:
    """A pool of min(`threads`, `max_memory` / :data:`MIN_MEMORY`) threads."""

    def __init__(self, threads: int | None, max_memory: int) -> None:
        if positive_integer(max_memory, "max_memory") < MIN_MEMORY:
            raise ValueError(f"`max_memory` must be at least {MIN_MEMORY} bytes; received {max_memory}")
        threads = get_num_threads() if threads is None else threads
        self._threads = min(positive_integer(threads, "threads"), max_memory // MIN_MEMORY)
        self._executor = ThreadPoolExecutor(self._threads)
        self._alone = False
        # glibc returns freed memory to the system if it exceeds twice the largest block ever freed. All memory of a box
        # is freed after it. Freeing one large block here raises that limit; without it, page faults would take most of
        # the time.
        np.empty(MIN_MEMORY, np.uint8)

    def __enter__(self) -> Self:
        """Start a thread; if the system cannot start one, the caller will do all work."""
        try:
            with signals_deferred():
                self._executor.submit(int)
        except RuntimeError:
            self._alone = True
        except BaseException:  # an interrupt: Python will not call __exit__
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with signals_deferred():
            self._executor.shutdown(cancel_futures=True)

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
        """Yield ``function(item)`` in the order of the items; when the generator ends or is closed, no call runs."""

        def alone(item: T) -> R:
            with num_threads(1):
                return function(item)

        running: deque[Future[R]] = deque()
        try:
            for item in items:
                with signals_deferred():
                    running.append(self._submit(partial(alone, item)))
                if len(running) > 2 * self._threads:
                    yield _first(running)
            while running:
                yield _first(running)
        finally:
            for future in running:
                if not future.cancel():
                    _wait(future)

    def _submit(self, work: Callable[[], R]) -> "Future[R]":
        """Submit a task. If the executor cannot start another thread, it raises, but has queued the task already."""
        future: Future[R] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)

        if self._alone:
            run()
        else:
            with suppress(RuntimeError):
                self._executor.submit(run)
        return future


def _first(running: deque[Future[R]]) -> R:
    """Wait for the first task, remove it, and return its result or raise its error."""
    _wait(running[0])
    return running.popleft().result()


def _wait(future: Future[R]) -> None:
    """Wait for a task, in C: an interrupt in ``threading.Condition.wait`` may become a RuntimeError (CPython 3.11)."""
    ended: SimpleQueue[Future[R]] = SimpleQueue()
    future.add_done_callback(ended.put)
    ended.get()
