"""The queue: texts of all requests are computed together in batches of some thousand tokens."""

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
from mp_core.serving.models import Computing
from mp_core.utilities.nonfinite import NonFiniteError, nonfinite

__all__ = ["Batcher"]


@dataclass(eq=False, slots=True)
class _Job:
    """The texts of a request. Those before `next` are computed, or in the current batch."""

    tokens: Tokens
    answer: asyncio.Future[Array]
    arrived: float
    turn: float  # the time since which it waits for its next batch
    waited: float = 0.0  # seconds until its first batch
    lengths: list[int] = field(init=False)
    next: int = 0
    rows: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lengths = [len(row) for row in self.tokens.rows]

    @property
    def rest(self) -> int:
        """The number of tokens that are not in a batch yet."""
        return sum(self.lengths[self.next :])


@dataclass(eq=False, slots=True)
class _Line:
    """The requests that can share batches: those for the same model with the same options."""

    model: Computing
    options: Mapping[str, Any]
    jobs: deque[_Job] = field(default_factory=deque)


def _finite_rows(line: _Line, tokens: Tokens) -> Array:
    """Return the outputs of a line's model for texts; raise NonFiniteError if a number is infinite or NaN."""
    with nonfinite("raise"):
        rows = line.model.compute(tokens, line.options)
    if not all_finite(rows if rows.dtype != object else list(rows)):
        raise NonFiniteError(0, f"{line.model.name} returned Inf or NaN")
    return rows


class Batcher:
    """Computes texts of concurrent requests together, in a separate thread, so that the event loop is not blocked.

    There is no waiting time to fill a batch: the next batch collects requests while the current one is computed.
    Requests take turns: one with more texts than fit into a batch goes to the end of its line with the rest, so it
    delays others by at most one batch. `waiting` is the number of tokens in the queue.
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
        self._answers: set[asyncio.Future[Array]] = set()  # those for which a client waits

    @property
    def running(self) -> bool:
        """Whether the batcher is running."""
        return self._task is not None and not self._task.done()

    @property
    def busy(self) -> bool:
        """Whether the thread is computing a batch."""
        return self._batch is not None and not self._batch.done()

    @property
    def texts(self) -> int:
        """The number of texts in the queue."""
        return sum(len(job.lengths) - job.next for line in self._lines.values() for job in line.jobs)

    def start(self) -> None:
        """Start the batcher. Call this in the event loop of the requests."""
        self._task = asyncio.create_task(self._run())

    def finish(self) -> None:
        """Compute requests in order of arrival, without turns, from now on: turns would finish all of them late."""
        self._finishing = True
        for line in self._lines.values():
            line.jobs = deque(sorted(line.jobs, key=lambda job: job.arrived))

    async def close(self) -> None:
        """Refuse new requests, compute those for which a client waits, and end the thread after its current batch."""
        self._closing = True
        self._changed.set()
        try:
            while self._answers and self._task is not None and not self._task.done():
                awaited: list[asyncio.Future[Any]] = [self._task, *self._answers]
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        finally:  # also if the server is cancelled
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait({self._task})
            self._thread.shutdown(wait=not self.busy, cancel_futures=True)

    def check(self) -> None:
        """Raise RefusedError if the server is stopping."""
        if self._closing or not self.running:
            raise RefusedError("stopping", "the server is stopping", headers={"Retry-After": "5"})

    def _admit(self, tokens: int) -> None:
        """Raise RefusedError if the queue has no room for so many tokens."""
        self.check()
        if self.waiting and self.waiting + tokens > self._limits.queue_tokens:
            full = f"{self.waiting} tokens wait, and at most {self._limits.queue_tokens} may"
            raise RefusedError("busy", f"the server is busy: {full}", headers={"Retry-After": str(self.retry_after())})

    def retry_after(self) -> int:
        """Return the estimated seconds, from 1 to 60, to compute the queue at the average speed so far."""
        return min(max(1, math.ceil(self.waiting * self._busy / max(self._done, 1))), 60)

    async def __call__(self, model: Computing, tokens: Tokens, options: Mapping[str, Any]) -> tuple[Array, float]:
        """Compute the texts of a request; return a row for each text, and the seconds that it waited in the queue.

        A queue without room for the request raises RefusedError. Errors of the model are raised here too.
        """
        now = time.perf_counter()
        job = _Job(tokens, asyncio.get_running_loop().create_future(), now, now)
        self._admit(job.rest)
        key = (model.name, tokens.skipped, *sorted(options.items()))
        line = self._lines.setdefault(key, _Line(model, options))
        line.jobs.append(job)
        self.waiting += job.rest
        self._changed.set()
        self._answers.add(job.answer)
        try:
            return await job.answer, job.waited
        except asyncio.CancelledError:  # the client has gone
            self._forget(line, job)
            raise
        finally:
            self._answers.discard(job.answer)

    def _forget(self, line: _Line, job: _Job) -> None:
        """Remove the rest of a request from the queue."""
        if job in line.jobs:
            line.jobs.remove(job)
            self.waiting -= job.rest

    async def _run(self) -> None:
        while True:
            self._lines = {key: line for key, line in self._lines.items() if line.jobs}
            if self._lines:
                line = min(self._lines.values(), key=self._age)
                await self._compute(line, self._next_batch(line))
            elif self._closing:
                return
            else:
                self._changed.clear()
                await self._changed.wait()

    def _age(self, line: _Line) -> float:
        """Return since when the first request of a line waits: for its turn, or when finishing, since its arrival."""
        job = line.jobs[0]
        return job.arrived if self._finishing else job.turn

    def _next_batch(self, line: _Line) -> list[tuple[_Job, range]]:
        """Take texts from a line, the oldest request first: as many as fit into a batch, but at least one."""
        now, room = time.perf_counter(), self._limits.batch_tokens
        batch: list[tuple[_Job, range]] = []
        rest: list[_Job] = []
        while line.jobs and room > 0:
            job = line.jobs[0]
            start = stop = job.next
            while stop < len(job.lengths) and (job.lengths[stop] <= room or not (batch or stop > start)):
                room -= job.lengths[stop]
                stop += 1
            if stop == start:
                break
            if not start:
                job.waited = now - job.arrived
            job.next, job.turn = stop, now
            batch.append((line.jobs.popleft(), range(start, stop)))
            if stop < len(job.lengths):
                rest.append(job)
        if self._finishing:
            line.jobs.extendleft(reversed(rest))
        else:
            line.jobs.extend(rest)
        return batch

    async def _compute(self, line: _Line, batch: list[tuple[_Job, range]]) -> None:
        size = sum(job.lengths[place] for job, places in batch for place in places)
        self.waiting -= size
        await self._answer(line, batch, size)

    async def _answer(self, line: _Line, batch: list[tuple[_Job, range]], size: int) -> None:
        start = time.perf_counter()
        try:
            tokens = Tokens.joined([job.tokens.select(places) for job, places in batch])
            self._batch = self._thread.submit(_finite_rows, line, tokens)
            rows = await asyncio.wrap_future(self._batch)
        except NonFiniteError as error:
            if len(batch) > 1:  # compute each request alone, so that only the one with the error fails
                for part in batch:
                    await self._answer(line, [part], sum(part[0].lengths[place] for place in part[1]))
                return
            self._fail(line, batch, RefusedError("failed", f"a text has no finite output: {error.cause}"))
            return
        except Exception as error:
            self._fail(line, batch, error)
            return
        self._count(line.model.name, len(tokens), size, time.perf_counter() - start)
        for job, places in batch:
            job.rows.append(rows[: len(places)])
            rows = rows[len(places) :]
            if places.stop == len(job.lengths) and not job.answer.done():
                job.answer.set_result(job.rows[0] if len(job.rows) == 1 else np.concatenate(job.rows))

    def _fail(self, line: _Line, batch: list[tuple[_Job, range]], error: Exception) -> None:
        """Answer the requests of a batch with an error."""
        for job, _ in batch:
            self._forget(line, job)
            if not job.answer.done():
                job.answer.set_exception(error)

    def _count(self, name: str, texts: int, tokens: int, seconds: float) -> None:
        """Add a batch to the metrics."""
        self._done, self._busy = self._done + tokens, self._busy + seconds
        self._metrics.batch_seconds.add(seconds, name)
        self._metrics.batch_texts.add(texts, name)
        self._metrics.batch_tokens.add(tokens, name)
        self._metrics.texts.add(texts, name)
        self._metrics.tokens.add(tokens, name)
