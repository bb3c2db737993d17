"""Texts of different lengths, one behind the other: no padding is computed, and a plan runs without Python."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.core.changes import count
from mp_core.core.cpu import get_num_threads
from mp_core.core.pooling import POOLINGS
from mp_core.forward import ForwardPlan, UnseenError, is_eager
from mp_core.layers import Layer
from mp_core.models.model import Model

__all__ = ["Plans", "RaggedTexts", "cut"]

_TOKENS = 512  # of a pass, if no text is longer: what lies between two products then stays in the L2 cache or near it
_LEAST_TOKENS = 64  # of a pass beside others: with fewer for each thread, all threads share one pass
_PLANS = 8  # that an encoder keeps: one for each length of a prompt that it has
_EXAMPLE = 17, 3  # tokens and texts of the example: numbers that no product of the network has as its rows otherwise


class _Pooled(Layer):
    """A network, and one vector for each text."""

    def __init__(self, model: Model, pooling: str, skipped: int) -> None:
        super().__init__(autocast=False)
        self.model, self.pooling, self.skipped = model, pooling, skipped

    def call(self, ids: Array, places: Array, offsets: Array) -> Array:
        """Return the vectors of ragged texts, float32, shape (texts, width)."""
        hidden, longest = self.model(ids, places=places, offsets=offsets), self.model.settings.max_length
        pooled: Array = ops.ragged_pool(hidden, offsets, self.pooling, self.skipped, longest)
        return pooled


class RaggedTexts:
    """One vector for each of several texts, by a plan.

    Parameters
    ----------
    model : Model
        One whose encoder :attr:`takes_ragged`.
    pooling : str
        One of those of :func:`mp_core.ops.ragged_pool`.
    skipped : int
        How many tokens at the beginning of each text, those of a prompt, count for none.
    """

    def __init__(self, model: Model, pooling: str, skipped: int) -> None:
        self._model = model
        tokens, texts = _EXAMPLE
        share = min(max(tokens // texts, 1 + skipped), model.settings.max_length)
        lengths = [share] * (texts - 1) + [
            min(max(tokens - share * (texts - 1), 1 + skipped), model.settings.max_length)
        ]
        ids, offsets = np.zeros(sum(lengths), np.int32), np.cumsum([0, *lengths]).astype(np.int32)
        example = ids, self._places(ids, offsets), offsets
        self.plan = ForwardPlan(_Pooled(model, pooling, skipped), example, {}, (len(ids), texts))

    def __call__(self, ids: Array, lengths: Sequence[int]) -> Array:
        """Return the vectors of texts, float32, shape (texts, width).

        Parameters
        ----------
        ids : ndarray of int, shape (tokens,)
            The tokens of the texts, one behind the other.
        lengths : sequence of int
            How many each text has: more than are skipped, and no more than the network takes.

        Raises
        ------
        ValueError
            A token is outside the vocabulary.
        """
        if not len(lengths):
            return np.empty((0, self._model.settings.hidden_size), np.float32)
        ids = self._model.checked(ids).astype(np.int32, copy=False)
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        places = self._places(ids, offsets)
        cuts = cut(lengths, get_num_threads())
        if len(cuts) == 1:
            pooled: Array = self.plan.run_rows([ids, places, offsets], (len(ids), len(lengths)))[0]
            return pooled
        passes: list[Any] = []
        out = np.empty((len(lengths), self._model.settings.hidden_size), np.float32)
        for first, last in cuts:
            begin, end = offsets[first], offsets[last]
            arrays = [ids[begin:end], places[begin:end], offsets[first : last + 1] - begin]
            passes.append((arrays, (int(end - begin), last - first), out[first:last]))
        self.plan.run_passes(passes)
        return out

    def _places(self, ids: Array, offsets: Array) -> Array:
        places: Array = self._model.embeddings.position.places(ids, offsets)
        return places


class Plans:
    """The plans of an encoder: some of those that it used last. A copy of it begins with none."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str, int], RaggedTexts] = {}
        self._unseen = -1  # what `count` was when the network could not be recorded

    def of(self, model: Model, poolings: Sequence[str], skipped: int) -> RaggedTexts | None:
        """Return the plan for texts of which so many tokens are skipped; None if the network must run without one."""
        if is_eager() or self._unseen == count() or not model.encoder.takes_ragged:
            return None
        if len(poolings) != 1 or poolings[0] not in POOLINGS:
            return None
        key = id(model), poolings[0], skipped  # the plan holds the model: no other one gets its id
        found = self._kept.pop(key, None)
        try:
            found = found or RaggedTexts(model, poolings[0], skipped)
            found.plan.refresh()
        except (UnseenError, TypeError):  # of a form or a type that no plan has
            self._unseen = count()
            return None
        self._kept = dict([*self._kept.items()][1 - _PLANS :]) | {key: found}
        return found

    def __reduce__(self) -> tuple[type["Plans"], tuple[()]]:
        return Plans, ()


def cut(lengths: Sequence[int], threads: int) -> list[tuple[int, int]]:
    """Return ranges of texts, each for one pass: of similar numbers of tokens, and as many as keep all threads at work.

    A pass has about 512 tokens, or one longer text. If there are fewer than 64 tokens for each thread, or fewer texts
    than threads, all threads share one pass.
    """
    total = sum(lengths)
    if threads > 1 and (len(lengths) < threads or total < threads * _LEAST_TOKENS):
        return [(0, len(lengths))]
    count = max(threads, -(-total // _TOKENS))
    count = min(-(-count // threads) * threads, len(lengths))
    passes: list[tuple[int, int]] = []
    ends, begin, seen = [total * (index + 1) / count for index in range(count)], 0, 0
    for index, length in enumerate(lengths):
        seen += length
        if seen >= ends[len(passes)] - length / 2 or len(lengths) - index - 1 < 1:
            passes.append((begin, index + 1))
            begin = index + 1
            if len(passes) == count:
                break
    if begin < len(lengths):
        passes[-1] = passes[-1][0], len(lengths)
    return passes
