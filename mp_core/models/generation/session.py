"""Answers that are generated together: they join and leave at any step, and their texts grow."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mp_core.models.generation.batch import Batch, Run

__all__ = ["Generated", "Session", "stops_of"]


@dataclass(frozen=True)
class Generated:
    """What was generated after a prompt.

    Attributes
    ----------
    text : str
    tokens : list of int
        Without a final token that ends texts.
    reason : str
        Why it ends: ``"stop"`` (a token that ends texts, or a string of `stop`) or ``"length"`` (`max_tokens`).
    log_probabilities : list of (float, dict of int to float), or None
        For each token its log-probability, and those of the most probable tokens.
    steps : int
        The steps of the network that computed the tokens: fewer than tokens if proposed tokens were accepted. It is not
        compared.
    """

    text: str
    tokens: list[int]
    reason: str
    log_probabilities: list[tuple[float, dict[int, float]]] | None = None
    steps: int = field(default=0, compare=False)


def stops_of(stop: str | Sequence[str]) -> list[str]:
    """Return the strings before which texts end; raise ValueError unless they are strings that are not empty."""
    stops = [stop] if isinstance(stop, str) else list(stop)
    if not all(isinstance(word, str) and word for word in stops):
        raise ValueError(f"`stop` must be strings that are not empty; received {stop!r}")
    return stops


class Session:
    """Runs of a batch, with their texts. It is used by one thread at a time.

    `ends` are the tokens that end texts.
    """

    def __init__(self, batch: Batch, tokenizer: Any, ends: frozenset[int]) -> None:
        self._batch, self._tokenizer, self._ends = batch, tokenizer, ends
        self._texts: dict[Run, _Text] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, run: Run, stops: list[str]) -> None:
        """Let a run join; raise ValueError if it could never fit the cache."""
        self._batch.add(run)
        self._texts[run] = _Text(self._tokenizer, stops, run.prompt)

    def leave(self, run: Run) -> None:
        """Let a run leave, finished or not; its pages are free at once."""
        self._texts.pop(run, None)
        self._batch.leave(run)

    def close(self) -> None:
        """Let all runs leave."""
        for run in list(self._texts):
            self.leave(run)

    def step(self) -> Iterator[tuple[Run, str, Generated | None]]:
        """Compute a step; yield (run, new text, its result if it is done).

        Runs that are done have left, and so have those whose logits are not finite.
        """
        for run in self._batch.step():
            text = self._texts[run]
            if not run.is_finite:
                self.leave(run)
                yield run, "", None
                continue
            ends = run.tokens[-1] in self._ends
            last = ends or len(run.tokens) == run.most
            piece = text.read(run.tokens[:-1] if ends else run.tokens, last)
            if not (last or text.stopped):
                yield run, piece, None
                continue
            self.leave(run)
            yield run, piece, _result(run, text, ends)


def _result(run: Run, text: "_Text", ends: bool) -> Generated:
    tokens = run.tokens[:-1] if ends else run.tokens
    noted = run.log_probabilities[: len(tokens)] if run.alternatives is not None else None
    return Generated(text.known, tokens, "stop" if ends or text.stopped else "length", noted, run.steps)


_CONTEXT = 4
"""How many tokens of the prompt are decoded with the first ones after it: alone, these would lose their space."""


class _Text:
    """The text of a growing list of tokens. Bytes of a character that is not complete, or of a stop, wait."""

    def __init__(self, tokenizer: Any, stops: list[str], prompt: list[int]) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._context = prompt[-_CONTEXT:]
        # Tokens before `_first` are decoded; those before `_read` give context.
        self._first, self._read = 0, len(self._context)
        self._text = ""
        self.known, self.stopped = "", False

    def read(self, tokens: list[int], last: bool) -> str:
        """Return the text that is known since the last call; `last` says that no tokens follow."""
        tokens = self._context + tokens
        parts = tokens[self._first : self._read], tokens[self._first :]
        before, now = self._tokenizer.decode([[*filter(self._tokenizer.knows, part)] for part in parts])
        if len(now) > len(before) and (last or not now.endswith("\ufffd")):
            self._text += now[len(before) :]
            self._first, self._read = self._read, len(tokens)
        places = [place for word in self._stops if (place := self._text.find(word)) >= 0]
        self.stopped = bool(places)
        end = min(places) if places else len(self._text) if last else len(self._text) - self._held()
        piece, self.known = self._text[len(self.known) : end], self._text[:end]
        return piece

    def _held(self) -> int:
        """Return how many last characters may be the start of a stop."""
        last = self._text[len(self.known) :]
        lengths = (
            n for word in self._stops for n in range(1, min(len(word), len(last) + 1)) if last.endswith(word[:n])
        )
        return max(lengths, default=0)
