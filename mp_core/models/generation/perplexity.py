"""The perplexity of a long text, in windows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mp_core.arrays import Array
from mp_core.utilities.arguments import positive_integer
from mp_core.utilities.progress import progress

__all__ = ["Perplexity", "Scorer", "perplexity_of"]

_WINDOW = 1024


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The perplexity of a text.

    Attributes
    ----------
    value : float
        ``exp(-log_probability / tokens)``.
    log_probability : float
        The sum over all scored tokens, in float64.
    tokens, windows : int
        How many tokens were scored, in how many windows.
    window, stride : int
        The tokens of a window, and by how many it moves.

    Examples
    --------
    >>> found = Perplexity(2.0, -2.0794415, 3, 1, 1024, 512)
    >>> round(math.exp(-found.log_probability / found.tokens), 3)
    2.0
    """

    value: float
    log_probability: float
    tokens: int
    windows: int
    window: int
    stride: int


class Scorer(Protocol):
    """What is needed of a generator."""

    def pieces(self, texts: str) -> list[list[Any]]:
        """Return all tokens of a text."""

    def log_probabilities(self, texts: list[Sequence[int]]) -> list[Array]:
        """Return the log-probabilities of tokens after the first one."""


def perplexity_of(
    model: Scorer, text: str, most: int, window: int | None, stride: int | None, show_progress: bool
) -> Perplexity:
    """Return what :meth:`Generator.perplexity` returns; `most` is the largest window."""
    window = min(_WINDOW, most) if window is None else positive_integer(window, "window")
    if not 2 <= window <= most:
        raise ValueError(f"`window` must be from 2 to {most}, what the network and the cache hold; received {window}")
    stride = max(window // 2, 1) if stride is None else positive_integer(stride, "stride")
    if stride > window:
        raise ValueError(f"`stride` must be at most `window`, {window}; received {stride}")
    ids = [piece.id for piece in model.pieces(text)[0]]
    if len(ids) < 2:
        raise ValueError(f"`text` must have two tokens; the model's tokenizer gives it {len(ids)}")
    found = list(_windows(len(ids), window, stride))
    total, count = 0.0, 0
    for begin, end, first in progress(found, show=show_progress, total=len(found), unit="window"):
        scores = model.log_probabilities([ids[begin:end]])[0][first - begin - 1 :]
        total += math.fsum(scores.tolist())
        count += len(scores)
    return Perplexity(math.exp(-total / count), total, count, len(found), window, stride)


def _windows(count: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield for each window its first token, its end, and the first token that it scores."""
    end = 0
    for begin in range(0, count, stride):
        before, end = end, min(begin + window, count)
        first = max(before, begin + 1)
        if first < end:
            yield begin, end, first
        if end == count:
            return
