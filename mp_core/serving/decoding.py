"""Generation: one thread for each decoder owns its batch, which the runs of all requests join and leave at any step."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

from mp_core.models.generation.batch import Run
from mp_core.models.generation.session import Generated, Session
from mp_core.serving.errors import RefusedError
from mp_core.serving.limits import Limits
from mp_core.serving.metrics import Metrics
from mp_core.serving.models import Decoder

__all__ = ["Engine", "Job", "Piece"]

Noted = list[tuple[float, dict[int, float]]]


class Piece(NamedTuple):
    """What a step adds to a run, or a whole answer."""

    place: int  # the index of the run in its request
    text: str
    tokens: list[int]
    noted: Noted  # for each token its log-probability, and those of the most probable tokens
    reason: str | None = None  # why the run is done
    offset: int = 0  # the number of tokens before


@dataclass(eq=False, slots=True)
class Job:
    """The runs of a request, and the pieces of their texts, or an error, in order."""

    runs: list[Run]
    stops: list[str]
    arrived: float = field(default_factory=time.perf_counter)
    waited: float | None = None  # seconds until the first step of its first run
    events: "asyncio.Queue[Piece | Exception]" = field(default_factory=asyncio.Queue)

    @property
    def size(self) -> int:
        """The most tokens of its runs."""
        return sum(map(_size, self.runs))


class _Change(NamedTuple):
    """A run joins, or leaves if `stops` is None."""

    run: Run
    stops: list[str] | None


class _Step(NamedTuple):
    """The results of a step."""

    seconds: float
    started: list[Run]  # runs that waited before
    pieces: list[tuple[Run, Piece | Exception]]


def _size(run: Run) -> int:
    return len(run.prompt) + run.most


class Engine:
    """A decoder, the requests that it answers, and the thread that computes.

    Changes of the batch reach the thread between two steps, so the pages of a client that has gone are free after at
    most one step. `waiting` is the number of tokens of the runs that are not started, those to be generated included.
    """

    def __init__(self, model: Decoder, limits: Limits, metrics: Metrics) -> None:
        self.model, self.waiting = model, 0
        self._limits, self._metrics = limits, metrics
        self._changes: SimpleQueue[_Change | None] = SimpleQueue()
        self._jobs: dict[Run, Job] = {}
        self._waiting: set[Run] = set()
        self._done, self._busy, self._closing, self._computing = 0, 0.0, False, False
        self._thread = Thread(target=self._work, name="generate", daemon=True)
        self._idle = asyncio.Event()
        self._idle.set()

    # ---- in the event loop

    @property
    def running(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    @property
    def busy(self) -> bool:
        """Whether the thread may be computing runs whose clients have gone."""
        return self.running and self._computing

    def finish(self) -> None:
        """Do nothing: runs are computed in order of arrival."""

    @property
    def texts(self) -> int:
        """The number of runs that are not started."""
        return len(self._waiting)

    @property
    def active(self) -> int:
        """The number of runs that are being computed."""
        return len(self._jobs) - len(self._waiting)

    def start(self) -> None:
        """Start the thread. Call this in the event loop of the requests."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """Finish the runs for which a client waits, and end the thread after its current step."""
        self._closing = True
        try:
            await self._idle.wait()
        finally:  # also if the server is cancelled
            self._changes.put(None)

    def check(self) -> None:
        """Raise RefusedError if the server is stopping."""
        if self._closing or not self.running:
            raise RefusedError("stopping", "the server is stopping", headers={"Retry-After": "5"})

    def retry_after(self) -> int:
        """Return the estimated seconds, from 1 to 60, until the runs that wait are done."""
        return min(max(1, math.ceil(self.waiting * self._busy / max(self._done, 1))), 60)

    def admit(self, job: Job) -> None:
        """Raise RefusedError if a request can never fit the cache, or the queue has no room for it now."""
        self.check()
        most = self.model.generator.cache_tokens
        longest = max(map(_size, job.runs))
        if longest > most:
            much = f"a prompt and the tokens after it may have {most} tokens, those of the cache; these have {longest}"
            raise RefusedError("invalid", f'{much}: send fewer, or a smaller "max_tokens"', "max_tokens")
        if self.waiting and self.waiting + job.size > self._limits.queue_tokens:
            full = f"{self.waiting} tokens wait, and at most {self._limits.queue_tokens} may"
            raise RefusedError("busy", f"the server is busy: {full}", headers={"Retry-After": str(self.retry_after())})

    async def pieces(self, job: Job) -> AsyncGenerator[Piece]:
        """Generate the runs of a request; yield what each step adds. Errors of the model are raised here too."""
        self.admit(job)
        self._idle.clear()
        for run in job.runs:
            self._jobs[run] = job
            self._waiting.add(run)
            self.waiting += _size(run)
            self._changes.put(_Change(run, job.stops))
        left = len(job.runs)
        try:
            while left:
                piece = await job.events.get()
                if isinstance(piece, Exception):
                    raise piece
                left -= piece.reason is not None
                yield piece
        finally:  # also if the client has gone
            for run in job.runs:
                self._forget(run)

    def _forget(self, run: Run) -> None:
        """Let a run leave, unless it has left."""
        if self._jobs.pop(run, None) is not None:
            self._changes.put(_Change(run, None))
            self._start_one(run)
        if not self._jobs:
            self._idle.set()

    def _start_one(self, run: Run) -> None:
        """Note that a run does not wait any more."""
        if run in self._waiting:
            self._waiting.remove(run)
            self.waiting -= _size(run)

    def _deliver(self, step: _Step) -> None:
        """Pass the results of a step to the requests."""
        now, name = time.perf_counter(), self.model.name
        self._metrics.batch_seconds.add(step.seconds, name)
        self._metrics.batch_texts.add(len(step.pieces), name)
        self._busy += step.seconds
        for run in step.started:
            job = self._jobs.get(run)
            self._start_one(run)
            if job is not None and job.waited is None:
                job.waited = now - step.seconds - job.arrived
                self._metrics.queued.add(job.waited, name)
        for run, piece in step.pieces:
            job = self._jobs.get(run)
            if job is None:  # its client has gone
                continue
            if isinstance(piece, Piece):
                self._count(run, job, piece, now)
            if isinstance(piece, Exception) or piece.reason is not None:
                del self._jobs[run]
                self._start_one(run)
            job.events.put_nowait(piece)
        if not self._jobs:
            self._idle.set()

    def _count(self, run: Run, job: Job, piece: Piece, now: float) -> None:
        name, added = self.model.name, len(piece.tokens)
        self._done += added
        self._metrics.generated.add(added, name)
        if not piece.offset:
            self._metrics.first_token.add(now - job.arrived, name)
            self._metrics.tokens.add(len(run.prompt), name)
        if piece.reason is not None:
            self._metrics.texts.add(1, name)

    # ---- in the thread

    def _work(self) -> None:
        """Compute steps until the end."""
        session, runs = self.model.generator.session(), dict[Run, int]()  # run -> the number of its tokens passed on
        while self._change(session, runs):
            self._computing = True
            start = time.perf_counter()
            waiting = [run for run in runs if not run.sequence.stored]
            try:
                self.model.generator.maps.check()
                pieces = [(run, _piece(run, runs, text, done)) for run, text, done in session.step()]
            except Exception as error:
                session.close()
                pieces = [(run, error) for run in runs]
            for run, piece in pieces:
                if isinstance(piece, Exception) or piece.reason is not None:
                    del runs[run]
            started = [run for run in waiting if run.sequence.stored or run not in runs]
            try:
                self._loop.call_soon_threadsafe(self._deliver, _Step(time.perf_counter() - start, started, pieces))
            except RuntimeError:  # the event loop has ended
                return

    def _change(self, session: Session, runs: dict[Run, int]) -> bool:
        """Let runs join and leave; wait for one if there is none. Return whether to go on."""
        while not (self._changes.empty() and runs):
            self._computing = bool(runs)
            change = self._changes.get()
            if change is None:
                session.close()
                self._computing = False
                return False
            if change.stops is None:
                session.leave(change.run)
                runs.pop(change.run, None)
            else:
                session.add(change.run, change.stops)
                runs[change.run] = 0
        return True


def _piece(run: Run, passed: dict[Run, int], text: str, done: Generated | None) -> Piece | Exception:
    """Return what a step has added to a run."""
    if not run.is_finite:
        return RefusedError("failed", "a text has no finite output: the logits of its next token have Inf or NaN")
    first, tokens = passed[run], run.tokens if done is None else done.tokens
    passed[run] = len(tokens)
    noted = run.log_probabilities[first : len(tokens)]
    return Piece(run.number, text, tokens[first:], noted, None if done is None else done.reason, first)
