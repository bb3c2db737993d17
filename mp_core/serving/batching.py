"""The queue: texts of all requests are computed together, some thousand tokens at a time."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.finite import all_finite
from mp_core.models.texts import Tokens
from mp_core.serving.errors import RefusedError
from mp_core.serving.limits import Limits
from mp_core.serving.metrics import Metrics
from mp_core.serving.models import Served
from mp_core.utilities.nonfinite import NonFiniteError, nonfinite

__all__ = ["Batcher"]


@dataclass(eq=False, slots=True)
class _Work:
    """The texts of a request: those before `next` are computed or in the batch that is."""

    tokens: Tokens
    answer: asyncio.Future[Array]
    arrived: float
    turn: float  # since when it waits for its next batch
    waited: float = 0.0  # until the first one
    lengths: list[int] = field(init=False)
    next: int = 0
    rows: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lengths = [len(row) for row in self.tokens.rows]

    @property
    def rest(self) -> int:
        """The tokens that are in no batch yet."""
        return sum(self.lengths[self.next :])


@dataclass(eq=False, slots=True)
class _Line:
    """The requests that can share batches: those for one model with the same options."""

    model: Served
    options: Mapping[str, Any]
    works: deque[_Work] = field(default_factory=deque)


def _finite_rows(line: _Line, tokens: Tokens) -> Array:
    """Return what the model of a line computes; raise NonFiniteError if a part of it is infinite or NaN."""
    with nonfinite("raise"):
        rows = line.model.compute(tokens, line.options)
    if not all_finite(rows if rows.dtype != object else list(rows)):
        raise NonFiniteError(0, f"{line.model.name} returned Inf or NaN")
    return rows


class Batcher:
    """Computes texts of concurrent requests together, in a thread of its own: the event loop stays free.

    Nobody waits for others to come: while a batch is computed, the next one gathers. Requests take turns: one with more
    texts than fit into a batch goes to the end of the line with the rest, so it delays nobody by more than a batch.

    Parameters
    ----------
    limits : Limits
        Its `batch_tokens` and `queue_tokens`.
    metrics : Metrics
        Where batches are counted.

    Attributes
    ----------
    waiting : int
        Tokens in the queue.
    """

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.waiting = 0
        self._limits, self._metrics = limits, metrics
        self._lines: dict[Any, _Line] = {}
        self._changed = asyncio.Event()
        self._closing = self._finishing = False
        self._done, self._busy = 0, 0.0  # tokens computed, and the seconds that they took
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._task: asyncio.Task[None] | None = None
        self._batch: Future[Array] | None = None
        self._answers: set[asyncio.Future[Array]] = set()  # those that somebody waits for

    @property
    def running(self) -> bool:
        """Whether texts are computed."""
        return self._task is not None and not self._task.done()

    @property
    def busy(self) -> bool:
        """Whether the thread is in the middle of a batch."""
        return self._batch is not None and not self._batch.done()

    @property
    def texts(self) -> int:
        """Texts in the queue."""
        return sum(len(work.lengths) - work.next for line in self._lines.values() for work in line.works)

    def start(self) -> None:
        """Begin to compute. Call it in the event loop of the requests."""
        self._task = asyncio.create_task(self._run())

    def finish(self) -> None:
        """From now on compute requests in their order, each to its end: turns would end all of them late."""
        self._finishing = True
        for line in self._lines.values():
            line.works = deque(sorted(line.works, key=lambda work: work.arrived))

    async def close(self) -> None:
        """Take no more requests, compute what somebody waits for, and end the thread or leave it to its last batch."""
        self._closing = True
        self._changed.set()
        try:
            while self._answers and self._task is not None and not self._task.done():
                awaited: list[asyncio.Future[Any]] = [self._task, *self._answers]
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        finally:  # also of a server that is cancelled
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait({self._task})
            self._thread.shutdown(wait=not self.busy, cancel_futures=True)

    def check(self) -> None:
        """Raise RefusedError if no requests are taken."""
        if self._closing or not self.running:
            raise RefusedError("stopping", "the server is stopping", headers={"Retry-After": "5"})

    def _admit(self, tokens: int) -> None:
        """Raise RefusedError if there is no room for so many tokens."""
        self.check()
        if self.waiting and self.waiting + tokens > self._limits.queue_tokens:
            told = f"{self.waiting} tokens wait, and at most {self._limits.queue_tokens} may"
            raise RefusedError("busy", f"the server is busy: {told}", headers={"Retry-After": str(self.retry_after())})

    def retry_after(self) -> int:
        """Return the seconds, from 1 to 60, that what waits will take, at the speed so far."""
        return min(max(1, math.ceil(self.waiting * self._busy / max(self._done, 1))), 60)

    async def __call__(self, model: Served, tokens: Tokens, options: Mapping[str, Any]) -> tuple[Array, float]:
        """Return a row for each text of a request, and the seconds until the first of them was in a batch.

        Raises
        ------
        RefusedError
            There is no room for the request.
        Exception
            Whatever the model raised.
        """
        now = time.perf_counter()
        work = _Work(tokens, asyncio.get_running_loop().create_future(), now, now)
        self._admit(work.rest)
        key = (model.name, tokens.skipped, *sorted(options.items()))
        line = self._lines.setdefault(key, _Line(model, options))
        line.works.append(work)
        self.waiting += work.rest
        self._changed.set()
        self._answers.add(work.answer)
        try:
            return await work.answer, work.waited
        except asyncio.CancelledError:  # nobody waits for it any more
            self._forget(line, work)
            raise
        finally:
            self._answers.discard(work.answer)

    def _forget(self, line: _Line, work: _Work) -> None:
        """Take what is left of a request from the queue."""
        if work in line.works:
            line.works.remove(work)
            self.waiting -= work.rest

    async def _run(self) -> None:
        while True:
            self._lines = {key: line for key, line in self._lines.items() if line.works}
            if self._lines:
                line = min(self._lines.values(), key=self._age)
                await self._compute(line, self._next_batch(line))
            elif self._closing:
                return
            else:
                self._changed.clear()
                await self._changed.wait()

    def _age(self, line: _Line) -> float:
        """Return when the first request of a line came, or began to wait for its turn."""
        work = line.works[0]
        return work.arrived if self._finishing else work.turn

    def _next_batch(self, line: _Line) -> list[tuple[_Work, range]]:
        """Take texts from a line, the oldest request first, as many as fit into a batch, but at least one."""
        now, room = time.perf_counter(), self._limits.batch_tokens
        batch: list[tuple[_Work, range]] = []
        rest: list[_Work] = []
        while line.works and room > 0:
            work = line.works[0]
            start = stop = work.next
            while stop < len(work.lengths) and (work.lengths[stop] <= room or not (batch or stop > start)):
                room -= work.lengths[stop]
                stop += 1
            if stop == start:
                break
            if not start:
                work.waited = now - work.arrived
            work.next, work.turn = stop, now
            batch.append((line.works.popleft(), range(start, stop)))
            if stop < len(work.lengths):
                rest.append(work)
        if self._finishing:
            line.works.extendleft(reversed(rest))
        else:
            line.works.extend(rest)
        return batch

    async def _compute(self, line: _Line, batch: list[tuple[_Work, range]]) -> None:
        size = sum(work.lengths[place] for work, places in batch for place in places)
        self.waiting -= size
        await self._answer(line, batch, size)

    async def _answer(self, line: _Line, batch: list[tuple[_Work, range]], size: int) -> None:
        start = time.perf_counter()
        try:
            tokens = Tokens.joined([work.tokens.taken(places) for work, places in batch])
            self._batch = self._thread.submit(_finite_rows, line, tokens)
            rows = await asyncio.wrap_future(self._batch)
        except NonFiniteError as error:
            if len(batch) > 1:  # only the request that it belongs to fails
                for part in batch:
                    await self._answer(line, [part], sum(part[0].lengths[place] for place in part[1]))
                return
            self._fail(line, batch, RefusedError("failed", f"a text has no finite output: {error.cause}"))
            return
        except Exception as error:
            self._fail(line, batch, error)
            return
        self._count(line.model.name, len(tokens), size, time.perf_counter() - start)
        for work, places in batch:
            work.rows.append(rows[: len(places)])
            rows = rows[len(places) :]
            if places.stop == len(work.lengths) and not work.answer.done():
                work.answer.set_result(work.rows[0] if len(work.rows) == 1 else np.concatenate(work.rows))

    def _fail(self, line: _Line, batch: list[tuple[_Work, range]], error: Exception) -> None:
        """Answer the requests of a batch by an error."""
        for work, _ in batch:
            self._forget(line, work)
            if not work.answer.done():
                work.answer.set_exception(error)

    def _count(self, name: str, texts: int, tokens: int, seconds: float) -> None:
        """Count a batch."""
        self._done, self._busy = self._done + tokens, self._busy + seconds
        self._metrics.batch_seconds.add(seconds, name)
        self._metrics.batch_texts.add(texts, name)
        self._metrics.batch_tokens.add(tokens, name)
        self._metrics.texts.add(texts, name)
        self._metrics.tokens.add(tokens, name)
