"""The loop over steps: sequences join and leave a batch at any step."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import RLock

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.models.generation.cache import PAGE, NoPageError, PagedCache, Sequence
from mp_core.models.generation.network import Steps
from mp_core.models.generation.sampling import Sampling
from mp_core.utilities.system import lock_for_forks

__all__ = ["Batch", "Run"]

_CHUNK = 512
"""The most tokens of prompts in a step: their activations stay in or near the L2 cache."""
_locks = lock_for_forks(RLock)
"""Its only lock is held by a thread that computes a step or changes pages."""


@dataclass(eq=False)
class Run:
    """A prompt and the tokens that were generated after it."""

    prompt: list[int]
    sampling: Sampling
    number: int  # The index of the prompt: a part of the key of its random numbers.
    most: int  # The most tokens to generate.
    alternatives: int | None = None  # How many log-probabilities to note for each token; None: none.
    tokens: list[int] = field(default_factory=list)
    # For each token its log-probability, and those of the most probable tokens.
    log_probabilities: list[tuple[float, dict[int, float]]] = field(default_factory=list)
    is_finite: bool = True  # Whether its logits were; otherwise they chose no token.
    sequence: Sequence = field(init=False)

    def __post_init__(self) -> None:
        self.sequence = Sequence(list(self.prompt))

    @property
    def pages(self) -> int:
        """The most pages that it may need."""
        return -(-(len(self.prompt) + self.most) // PAGE)

    def add(self, logits: Array) -> None:
        """Choose the next token, unless the logits have Inf or NaN."""
        self.is_finite = bool(np.isfinite(np.max(logits)))
        if not self.is_finite:
            return
        position = len(self.sequence.tokens)
        token = self.sampling.token(logits, self.sequence.tokens, self.number, position)
        self.tokens.append(token)
        self.sequence.tokens.append(token)
        if self.alternatives is not None:
            found = ops.log_softmax(logits)
            best = np.argsort(-found, kind="stable")[: self.alternatives].tolist()
            self.log_probabilities.append((float(found[token]), {i: float(found[i]) for i in best}))


class Batch:
    """Runs that are computed together. Those that do not fit the cache wait, in the order in which they were added.

    Several batches, also of several threads, may share a cache: one step is computed at a time.
    """

    def __init__(self, steps: Steps, cache: PagedCache, pages: int) -> None:
        self._steps, self._cache, self._pages = steps, cache, pages
        self._waiting: deque[Run] = deque()
        self._active: list[Run] = []

    def add(self, run: Run) -> None:
        """Let a run join; raise ValueError if it could never fit the cache."""
        if run.pages > self._pages:
            room = self._pages * PAGE
            raise ValueError(
                f"a prompt of {len(run.prompt)} tokens and `max_tokens`={run.most} need more than the {room} tokens of "
                "the cache: pass a larger `cache_tokens`"
            )
        self._waiting.append(run)

    def leave(self, run: Run) -> None:
        """Let a run leave, finished or not; its pages are free at once."""
        if run in self._active:
            self._active.remove(run)
            with _locks[0]:
                self._cache.release(run.sequence)
                self._cache.reserve(-run.pages)
        elif run in self._waiting:
            self._waiting.remove(run)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._active)

    def step(self) -> Iterator[Run]:
        """Compute a part of the prompts, then a token of each run whose prompt is done; yield runs with a new token.

        The caller lets finished runs leave before it asks for the next one.
        """
        with _locks[0]:
            self._admit()
        yield from self._compute([run for run in self._active if run.sequence.waiting > 1 or not run.tokens])
        yield from self._compute([run for run in self._active if run.sequence.waiting == 1 and run.tokens])

    def _admit(self) -> None:
        while self._waiting and self._cache.reserve(self._waiting[0].pages):
            run = self._waiting.popleft()
            self._cache.share(run.sequence)
            self._active.append(run)
        if not self._active:
            raise NoPageError(
                f"other texts that are being generated hold the pages of the cache; {self._waiting[0].pages} are needed"
            )

    def _compute(self, runs: list[Run]) -> Iterator[Run]:
        room = _CHUNK
        counts: list[int] = []
        for run in runs:
            counts.append(min(run.sequence.waiting, max(room, 0 if counts else 1)))
            room -= counts[-1]
        runs, counts = [run for run, n in zip(runs, counts, strict=True) if n], [n for n in counts if n]
        if not runs:
            return
        with _locks[0]:
            for run, count in zip(runs, counts, strict=True):
                self._cache.grow(run.sequence, run.sequence.stored + count)
            logits = self._steps([run.sequence for run in runs], counts)
        for run, row in zip(runs, logits, strict=True):
            if not run.sequence.waiting:
                run.add(row)
                yield run
