"""The loop over steps: sequences join and leave a batch at any step."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from threading import RLock
from typing import Protocol

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.models.generation.cache import PAGE, NoPageError, PagedCache, Sequence
from mp_core.models.generation.network import Steps
from mp_core.models.generation.sampling import Sampling
from mp_core.utilities.system import lock_for_forks

__all__ = ["Batch", "Proposer", "Run", "one_at_a_time", "shares"]

_CHUNK = 512
"""The most tokens of prompts in a step: their activations stay in or near the L2 cache."""
_VERIFIED = 128
"""The most tokens of a step with proposals: their logits are in memory, 78 MB for a vocabulary of 151,936."""
_PROPOSED = 3, 7, 15
"""How many tokens are proposed: at first, and after each step that accepted all. To verify 3, 7 and 15 tokens takes
1.9, 3.4 and 5.9 times as long as one token (int8, one thread of a Zen 3, November 2026)."""
_REST = 15
"""The most steps without proposals. The first step that accepts none is followed by 1, later ones by 3, 7 and 15."""
_locks = lock_for_forks(RLock)
"""Its only lock is that of :func:`one_at_a_time`."""


def one_at_a_time() -> RLock:
    """Return the lock that a thread holds while it computes a step or changes pages."""
    return _locks[0]


@dataclass
class _Pace:
    """How many tokens to propose: more after successes, none for some steps after failures."""

    level: int = 0  # The index in `_PROPOSED`.
    failures: int = 0  # How many times in a row no token was accepted.
    rest: int = 0  # The steps that follow without proposals.

    def next(self) -> int:
        """Return the number for the next step."""
        self.rest, resting = max(self.rest - 1, 0), self.rest > 0
        return 0 if resting else _PROPOSED[self.level]

    def note(self, proposed: int, accepted: int) -> None:
        """Learn from a step with proposals."""
        self.level = min(self.level + 1, len(_PROPOSED) - 1) if accepted == proposed else 0
        self.failures = 0 if accepted else self.failures + 1
        self.rest = min(2**self.failures - 1, _REST)


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
    steps: int = 0  # How many steps computed the tokens.
    pace: _Pace = field(default_factory=_Pace)
    is_finite: bool = True  # Whether its logits were; otherwise they chose no token.
    sequence: Sequence = field(init=False)

    def __post_init__(self) -> None:
        self.sequence = Sequence(list(self.prompt))

    @property
    def pages(self) -> int:
        """The most pages that it may need."""
        return -(-(len(self.prompt) + self.most) // PAGE)

    def choose(self, logits: Array, earlier: list[int]) -> int:
        """Return the token after `earlier` ones, which are the prompt and what follows it."""
        return self.sampling.token(logits, earlier, len(self.prompt), self.number)

    def add(self, logits: Array) -> None:
        """Choose the next token, unless the logits have Inf or NaN."""
        self.is_finite = bool(np.isfinite(np.max(logits)))
        if not self.is_finite:
            return
        token = self.choose(logits, self.sequence.tokens)
        self.tokens.append(token)
        self.sequence.tokens.append(token)
        if self.alternatives is not None:
            found = ops.log_softmax(logits)
            best = np.argsort(-found, kind="stable")[: self.alternatives].tolist()
            self.log_probabilities.append((float(found[token]), {i: float(found[i]) for i in best}))


class Proposer(Protocol):
    """Proposes tokens. They change no answer: a proposed token counts if it is the one that is chosen anyway."""

    def propose(self, runs: list[Run], most: list[int]) -> list[list[int]]:
        """Return at most so many proposed tokens for each run."""

    def leave(self, run: Run) -> None:
        """Forget a run."""


def shares(waiting: Iterable[int]) -> list[int]:
    """Return how many tokens of each sequence the next step computes.

    `waiting` has the number of tokens of each sequence that were not computed yet.
    """
    room = _CHUNK
    counts: list[int] = []
    for count in waiting:
        counts.append(min(count, max(room, 0 if counts else 1)))
        room -= counts[-1]
    return counts


class Batch:
    """Runs that are computed together. Those that do not fit the cache wait, in the order in which they were added.

    Several batches, also of several threads, may share a cache: one step is computed at a time.
    """

    def __init__(self, steps: Steps, cache: PagedCache, pages: int, proposer: Proposer | None = None) -> None:
        self._steps, self._cache, self._pages, self._proposer = steps, cache, pages, proposer
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
            with one_at_a_time():
                self._cache.release(run.sequence)
                self._cache.reserve(-run.pages)
                if self._proposer is not None:
                    self._proposer.leave(run)
        elif run in self._waiting:
            self._waiting.remove(run)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._active)

    def step(self) -> Iterator[Run]:
        """Compute a part of the prompts, then a token of each run whose prompt is done; yield runs with a new token.

        A run is yielded once for each token: several times if proposed tokens were accepted. The caller lets finished
        runs leave before it asks for the next one.
        """
        with one_at_a_time():
            self._admit()
        yield from self._compute([run for run in self._active if run.sequence.waiting > 1 or not run.tokens], None)
        runs = [run for run in self._active if run.sequence.waiting == 1 and run.tokens]
        if runs:
            yield from self._compute(runs, self._proposer)

    def _admit(self) -> None:
        while self._waiting and self._cache.reserve(self._waiting[0].pages):
            run = self._waiting.popleft()
            self._cache.share(run.sequence)
            self._active.append(run)
        if not self._active:
            raise NoPageError(
                f"other texts that are being generated hold the pages of the cache; {self._waiting[0].pages} are needed"
            )

    def _compute(self, runs: list[Run], proposer: Proposer | None) -> Iterator[Run]:
        counts = [count for count in shares(run.sequence.waiting for run in runs) if count]
        runs = runs[: len(counts)]
        if not runs:
            return
        with one_at_a_time():
            proposals = [[] for _ in runs] if proposer is None else proposer.propose(runs, _most(runs))
            for run, count, proposed in zip(runs, counts, proposals, strict=True):
                self._cache.grow(run.sequence, run.sequence.stored + count + len(proposed))
            logits = self._steps([run.sequence for run in runs], counts, proposals)
        first = 0
        for run, proposed in zip(runs, proposals, strict=True):
            if not run.sequence.waiting:
                yield from self._verified(run, logits[first : first + len(proposed) + 1], proposed)
            first += len(proposed) + 1

    def _verified(self, run: Run, logits: Array, proposed: list[int]) -> Iterator[Run]:
        """Choose a token after the last one, and after each proposed one as long as those were chosen too."""
        run.steps += 1
        accepted = 0
        for row in logits:
            run.add(row)
            is_accepted = run.is_finite and accepted < len(proposed) and run.tokens[-1] == proposed[accepted]
            if is_accepted:
                accepted += 1
                with one_at_a_time():
                    self._cache.note(run.sequence, run.sequence.stored + 1)
            yield run
            if not is_accepted or run not in self._active:
                break
        if proposed:
            run.pace.note(len(proposed), accepted)


def _most(runs: list[Run]) -> list[int]:
    """Return how many tokens may be proposed for each run: no more than it may generate or the step has room for."""
    room = (_VERIFIED - len(runs)) // len(runs)
    return [max(min(run.pace.next(), run.most - len(run.tokens) - 1, room), 0) for run in runs]
