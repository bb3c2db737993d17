"""Texts of different lengths, one behind the other: no padding is computed, and a plan runs without Python."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.core.changes import count
from mp_core.core.cpu import get_num_threads
from mp_core.layers import Layer
from mp_core.layers.plans import ForwardPlan, UnseenError, is_eager
from mp_core.layers.plans.cache import Cache
from mp_core.models.network import TextNetwork
from mp_core.policies.autocast.memory import trim_heap

__all__ = ["Plans", "RaggedTexts", "cut"]

_TOKENS = 512  # of a pass, if no text is longer: what lies between two products then stays in the L2 cache or near it
_LEAST_TOKENS = 64  # of a pass beside others: with fewer for each thread, all threads share one pass
_MOST_TOKENS = np.iinfo(np.int32).max  # of one call: offsets are of this type
_PLANS = 8  # that an encoder keeps: one for each length of a prompt that it has
_EXAMPLES = 3, 4  # texts of the two examples by which a plan tells its sizes


class _Pooled(Layer):
    """A network, and one vector for each text."""

    def __init__(self, model: TextNetwork, poolings: Sequence[str], skipped: int) -> None:
        super().__init__(autocast=False)
        self.model, self.poolings, self.skipped = model, tuple(poolings), skipped

    def call(self, ids: Array, places: Array, offsets: Array) -> Array:
        """Return the vectors of ragged texts, float32, shape (texts, width)."""
        hidden, longest = self.model(ids, places=places, offsets=offsets), self.model.settings.max_length
        pooled: Array = ops.ragged_pool(hidden, offsets, self.poolings, self.skipped, longest)
        return pooled


class _Scored(Layer):
    """A network with a head, and its scores in float32."""

    def __init__(self, model: TextNetwork) -> None:
        super().__init__(autocast=False)
        self.model = model

    def call(self, ids: Array, places: Array, offsets: Array) -> Array:
        """Return the scores of ragged texts, float32, shape (texts, labels)."""
        scores: Array = ops.cast(self.model(ids, places=places, offsets=offsets), "float32")
        return scores


class RaggedTexts:
    """Some numbers for each of several texts, by a plan.

    Parameters
    ----------
    model : TextNetwork
    layer : Layer
        What is computed: of the ids of tokens, their places and the offsets of texts, float32 of shape (texts, width).
    width : int
    shortest : int
        How many tokens a text has at least.
    """

    def __init__(self, model: TextNetwork, layer: Layer, width: int, shortest: int = 1) -> None:
        self._model, self._width, self._shortest = model, width, shortest
        (example, sizes), others = (_example(model, texts, shortest) for texts in _EXAMPLES)
        self.plan = ForwardPlan(layer, example, {}, sizes, others)

    def __call__(self, ids: Array, lengths: Sequence[int], types: Array | None = None) -> Array:
        """Return the numbers of texts, float32, shape (texts, width).

        Parameters
        ----------
        ids : ndarray of int, shape (tokens,)
            The tokens of the texts, one behind the other.
        lengths : sequence of int
            How many each text has: at least `shortest`, and no more than the network takes.
        types : ndarray of int, shape (tokens,), optional
            The type of each token. Default: 0.

        Raises
        ------
        ValueError
            A text has fewer or more tokens than that, all texts together have not as many as there are or 2^31, or a
            token is outside the vocabulary.
        """
        out = np.empty((len(lengths), self._width), np.float32)
        if not len(lengths):
            return out
        self._check(lengths, len(ids))
        ids = self._model.checked(ids).astype(np.int32, copy=False)
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        places = self._model.embeddings.places(ids, offsets, types)
        cuts = cut(lengths, get_num_threads())
        if len(cuts) == 1:
            found: Array = self.plan.run_rows([ids, places, offsets], _sizes(self._model, len(ids), len(lengths)))
            return found
        passes: list[Any] = []
        for first, last in cuts:
            begin, end = offsets[first], offsets[last]
            arrays = [ids[begin:end], places[begin:end], offsets[first : last + 1] - begin]
            passes.append((arrays, _sizes(self._model, int(end - begin), last - first), out[first:last]))
        self.plan.run_passes(passes)
        return out

    def _check(self, lengths: Sequence[int], tokens: int) -> None:
        """Raise ValueError for lengths that the steps of the plan do not check."""
        longest = self._model.settings.max_length
        if not self._shortest <= min(lengths) <= max(lengths) <= longest:
            received = f"received {min(lengths)} to {max(lengths)}"
            raise ValueError(f"`lengths` must be from {self._shortest} to {longest}; {received}")
        if sum(lengths) != tokens or tokens > _MOST_TOKENS:
            allowed = f"have the sum {tokens}, the number of `ids`, and at most {_MOST_TOKENS}"
            raise ValueError(f"`lengths` must {allowed}; received the sum {sum(lengths)}")


def _sizes(model: TextNetwork, tokens: int, texts: int) -> tuple[int, ...]:
    """Return all numbers of rows of a call with so many tokens and texts."""
    return tokens, texts, *(tokens * rows for rows in model.settings.rows_of_token)


def _example(model: TextNetwork, texts: int, shortest: int) -> tuple[tuple[Array, ...], tuple[int, ...]]:
    """Return what a layer is called with for so many texts of 5, 6, ... tokens, and the numbers of rows of the call."""
    lengths = np.clip(np.arange(5, 5 + texts), shortest, model.settings.max_length)
    ids, offsets = np.zeros(lengths.sum(), np.int32), np.cumsum([0, *lengths]).astype(np.int32)
    return (ids, model.embeddings.places(ids, offsets), offsets), _sizes(model, len(ids), texts)


class Plans:
    """The plans of an encoder or reranker: those that it used last. A copy of it begins with none."""

    def __init__(self) -> None:
        self._kept: Cache[RaggedTexts] = Cache(_PLANS)
        self._unseen: object = None  # what `count` was when the network could not be recorded

    def vectors(self, model: TextNetwork, poolings: Sequence[str], skipped: int) -> RaggedTexts | None:
        """Return the plan for vectors of texts whose first tokens are skipped; None: the network runs without one."""
        width = model.settings.vector_size * len(poolings)
        key = id(model), tuple(poolings), skipped  # the plan holds the model: no other one gets its id
        return self._of(key, lambda: RaggedTexts(model, _Pooled(model, poolings, skipped), width, 1 + skipped))

    def scores(self, model: TextNetwork, pooling: str, labels: int) -> RaggedTexts | None:
        """Return the plan for the scores of texts by a network whose head pools so; None as for :meth:`vectors`."""
        return self._of((id(model), (pooling,), 0), lambda: RaggedTexts(model, _Scored(model), labels))

    def _of(self, key: tuple[int, tuple[str, ...], int], make: Callable[[], RaggedTexts]) -> RaggedTexts | None:
        if is_eager() or self._unseen is count():
            return None
        found = self._kept.get(key)
        try:
            if found is None:
                found = self._kept.put(key, make())
                trim_heap()  # kernels have been packed
            found.plan.refresh()
        except (UnseenError, TypeError):  # of a form or a type that no plan has
            self._unseen = count()
            return None
        return found


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
