"""Propose the next tokens of runs: the network then verifies several tokens in one step."""

from dataclasses import dataclass, field

import numpy as np

from mp_core.arrays import Array
from mp_core.models.generation.batch import Run, shares
from mp_core.models.generation.cache import PagedCache, Sequence
from mp_core.models.generation.network import Steps

__all__ = ["Draft", "Lookup"]

_NEVER = -1e9
"""The logit of tokens that the smaller network does not have."""
_LENGTHS = 3, 2
"""The numbers of last tokens that are looked up: the longer ones first."""


@dataclass(eq=False)
class _Places:
    """Where the sequences of 3 and of 2 tokens were seen last: the index of the token after them."""

    known: dict[tuple[int, ...], int] = field(default_factory=dict)
    end: int = 0  # The tokens before it were noted.

    def note(self, tokens: list[int]) -> None:
        """Note all sequences that a token follows."""
        for end in range(self.end + 1, len(tokens)):
            for length in _LENGTHS:
                if end >= length:
                    self.known[tuple(tokens[end - length : end])] = end
        self.end = max(len(tokens) - 1, 0)


class Lookup:
    """Proposes what followed the last tokens where they occurred before in the same text."""

    def __init__(self) -> None:
        self._places: dict[Run, _Places] = {}

    def propose(self, runs: list[Run], most: list[int]) -> list[list[int]]:
        """Return at most so many proposed tokens for each run."""
        return [self._proposed(run, count) for run, count in zip(runs, most, strict=True)]

    def _proposed(self, run: Run, count: int) -> list[int]:
        tokens, places = run.sequence.tokens, self._places.setdefault(run, _Places())
        places.note(tokens)
        found = (places.known.get(tuple(tokens[-length:])) for length in _LENGTHS)
        place = next((each for each in found if each is not None), None)
        if place is None:
            return []
        period = len(tokens) - place  # a text that repeats itself goes on so
        return [tokens[place + index % period] for index in range(count)]

    def leave(self, run: Run) -> None:
        """Forget a run."""
        self._places.pop(run, None)


class Draft:
    """Proposes what a smaller network generates, by the random numbers of the run.

    It has a cache of its own. A run gets no proposals while that has no pages for it, or once its text is too long for
    the smaller network. Vocabularies may differ in tokens at their end that texts do not have.
    """

    def __init__(self, steps: Steps, cache: PagedCache, longest: int, sizes: tuple[int, int]) -> None:
        self._steps, self._cache, self._longest = steps, cache, longest
        self._sizes = sizes  # the tokens of its own vocabulary, and of that of the runs
        self._sequences: dict[Run, Sequence] = {}

    def propose(self, runs: list[Run], most: list[int]) -> list[list[int]]:
        """Return at most so many proposed tokens for each run."""
        found: dict[Run, list[int]] = {run: [] for run in runs}
        wanted = {run: count for run, count in zip(runs, most, strict=True) if count and self._follow(run, count)}
        while going := [run for run, count in wanted.items() if len(found[run]) < count]:
            for run, logits in self._computed(going):
                token = run.choose(logits, self._sequences[run].tokens)
                found[run].append(token)
                self._sequences[run].tokens.append(token)
        return list(found.values())

    def _follow(self, run: Run, count: int) -> bool:
        """Give the network the tokens of a run; return False if it or its cache has no room for `count` more."""
        tokens = np.minimum(run.sequence.tokens, self._sizes[0] - 1).tolist()
        if len(tokens) + count > self._longest:
            return False
        sequence = self._sequences.get(run)
        if sequence is None:
            if not self._cache.reserve(run.pages):
                return False
            sequence = self._sequences[run] = Sequence(tokens)
            self._cache.share(sequence)
        same = next((i for i in range(sequence.stored) if sequence.tokens[i] != tokens[i]), sequence.stored)
        self._cache.rewind(sequence, min(same, len(tokens) - 1))
        sequence.tokens = tokens
        return True

    def _computed(self, runs: list[Run]) -> list[tuple[Run, Array]]:
        """Compute waiting tokens; return the runs that have none left, with the logits after their last token."""
        sequences = [self._sequences[run] for run in runs]
        counts = [count for count in shares(sequence.waiting for sequence in sequences) if count]
        sequences = sequences[: len(counts)]
        for sequence, count in zip(sequences, counts, strict=True):
            self._cache.grow(sequence, sequence.stored + count)
        logits = self._steps(sequences, counts)
        own, size = self._sizes
        if own != size:
            logits = np.pad(logits[:, :size], ((0, 0), (0, max(size - own, 0))), constant_values=_NEVER)
        computed = zip(runs[: len(counts)], sequences, logits, strict=True)
        return [(run, row) for run, sequence, row in computed if not sequence.waiting]

    def leave(self, run: Run) -> None:
        """Forget a run; its pages are free."""
        sequence = self._sequences.pop(run, None)
        if sequence is not None:
            self._cache.release(sequence)
            self._cache.reserve(-run.pages)
