"""Ragged texts: texts of different lengths, concatenated without padding, and computed by a plan."""

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

_TOKENS = 512
"""The tokens of a pass, if no text is longer: its activations stay in or near the L2 cache."""
_LEAST_TOKENS = 64
"""The fewest tokens per thread. If a call has fewer, all threads share one pass."""
_MOST_TOKENS = np.iinfo(np.int32).max
"""The most tokens of one call: offsets are int32."""
_PLANS = 8
"""The most plans that an encoder caches: one for each prompt length in use."""
_EXAMPLES = 3, 4
"""The numbers of texts in the two examples from which a plan infers the variable dimensions."""


class _Pooled(Layer):
    """A network and its pooling: one vector for each text."""

    def __init__(self, model: TextNetwork, poolings: Sequence[str], skipped: int) -> None:
        super().__init__(autocast=False)
        self.model, self.poolings, self.skipped = model, tuple(poolings), skipped

    def call(self, ids: Array, places: Array, offsets: Array) -> Array:
        """Return the pooled vectors of ragged texts, float32, shape (texts, width)."""
        hidden, longest = self.model(ids, places=places, offsets=offsets), self.model.settings.max_length
        pooled: Array = ops.ragged_pool(hidden, offsets, self.poolings, self.skipped, longest)
        return pooled


class _Scored(Layer):
    """A network with a head: scores in float32."""

    def __init__(self, model: TextNetwork) -> None:
        super().__init__(autocast=False)
        self.model = model

    def call(self, ids: Array, places: Array, offsets: Array) -> Array:
        """Return the scores of ragged texts, float32, shape (texts, labels)."""
        scores: Array = ops.cast(self.model(ids, places=places, offsets=offsets), "float32")
        return scores


class RaggedTexts:
    """Computes a row of `width` numbers for each text by a plan of `layer`; each text has at least `shortest` tokens.

    The layer maps ``(ids, places, offsets)`` to float32 of shape (texts, width).
    """

    def __init__(self, model: TextNetwork, layer: Layer, width: int, shortest: int = 1) -> None:
        self._model, self._width, self._shortest = model, width, shortest
        (example, sizes), others = (_example(model, texts, shortest) for texts in _EXAMPLES)
        self.plan = ForwardPlan(layer, example, {}, sizes, others)

    def __call__(self, ids: Array, lengths: Sequence[int], types: Array | None = None) -> Array:
        """Return a row for each text, float32, shape (texts, width); `ids` are the concatenated tokens of all texts.

        Raise ValueError if a length is below `shortest` or above the network's maximum, the lengths do not sum up to
        ``len(ids)``, there are 2^31 tokens or more, or a token is outside the vocabulary.
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
        """Raise ValueError for wrong lengths: the plan itself does not check them."""
        longest = self._model.settings.max_length
        if not self._shortest <= min(lengths) <= max(lengths) <= longest:
            received = f"received {min(lengths)} to {max(lengths)}"
            raise ValueError(f"`lengths` must be from {self._shortest} to {longest}; {received}")
        if sum(lengths) != tokens or tokens > _MOST_TOKENS:
            allowed = f"have the sum {tokens}, the number of `ids`, and at most {_MOST_TOKENS}"
            raise ValueError(f"`lengths` must {allowed}; received the sum {sum(lengths)}")


def _sizes(model: TextNetwork, tokens: int, texts: int) -> tuple[int, ...]:
    """Return all variable numbers of rows in a call with so many tokens and texts."""
    return tokens, texts, *(tokens * rows for rows in model.settings.rows_of_token)


def _example(model: TextNetwork, texts: int, shortest: int) -> tuple[tuple[Array, ...], tuple[int, ...]]:
    """Return example inputs of `texts` texts of 5, 6, ... tokens, and their :func:`_sizes`."""
    lengths = np.clip(np.arange(5, 5 + texts), shortest, model.settings.max_length)
    ids, offsets = np.zeros(lengths.sum(), np.int32), np.cumsum([0, *lengths]).astype(np.int32)
    return (ids, model.embeddings.places(ids, offsets), offsets), _sizes(model, len(ids), texts)


class Plans:
    """The cache of an encoder's or reranker's recent plans. A copy of the encoder starts with an empty cache."""

    def __init__(self) -> None:
        self._kept: Cache[RaggedTexts] = Cache(_PLANS)
        self._unplannable: object = None  # the value of `count()` when the network could not be recorded

    def vectors(self, model: TextNetwork, poolings: Sequence[str], skipped: int) -> RaggedTexts | None:
        """Return the plan for pooled vectors without the first `skipped` tokens; None if the network has no plan."""
        width = model.settings.vector_size * len(poolings)
        key = id(model), tuple(poolings), skipped  # the plan refers to the model, so its id is not reused
        return self._plan_of(key, lambda: RaggedTexts(model, _Pooled(model, poolings, skipped), width, 1 + skipped))

    def scores(self, model: TextNetwork, pooling: str, labels: int) -> RaggedTexts | None:
        """Return the plan for the scores of a network with a head; None if the network has no plan."""
        return self._plan_of((id(model), (pooling,), 0), lambda: RaggedTexts(model, _Scored(model), labels))

    def _plan_of(self, key: tuple[int, tuple[str, ...], int], make: Callable[[], RaggedTexts]) -> RaggedTexts | None:
        if is_eager() or self._unplannable is count():
            return None
        found = self._kept.get(key)
        try:
            if found is None:
                found = self._kept.put(key, make())
                trim_heap()  # packing has freed memory
            found.plan.refresh()
        except (UnseenError, TypeError):  # the network has a form or a type that plans do not support
            self._unplannable = count()
            return None
        return found


def cut(lengths: Sequence[int], threads: int) -> list[tuple[int, int]]:
    """Split texts into passes of similar numbers of tokens: ranges (first, last), a multiple of `threads` if possible.

    A pass has about 512 tokens, or one longer text. If there are fewer than 64 tokens per thread, or fewer texts than
    threads, all threads share one pass.
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
