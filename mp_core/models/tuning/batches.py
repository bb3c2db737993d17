"""Batches of ragged texts for training."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.models.blocks import Padding
from mp_core.models.network import TextNetwork
from mp_core.models.texts import Tokens
from mp_core.training.batches import Batch, Batches

__all__ = ["GROUP", "TextBatches", "groups_of", "ragged_inputs"]

GROUP = 32
"""The most examples in a group."""
_MOST_TOKENS = 4096
"""The most tokens in a group of several examples."""

_SHARE = 6
"""The significant bits of a rounded batch length. It is at most 1/32 longer, and a fit needs only a few plans."""
_LEAST_UNIT = 16
"""The smallest unit to which batch lengths are rounded up, in tokens."""


def ragged_inputs(model: TextNetwork, tokens: Tokens) -> dict[str, Any]:
    """Return ragged texts as inputs of a network: a dictionary of int32 arrays.

    A filler text is appended: it rounds the number of tokens up, so that batches of similar lengths share a plan. Its
    vector is not used, and it adds zero to gradients. ``ids``, ``places`` and ``offsets`` include it, ``lengths`` does
    not; ``padding`` is a :class:`~mp_core.models.blocks.Padding` of the texts, or None.
    """
    lengths = np.array([len(row) for row in tokens.rows], np.int32)
    filled = _rounded(int(lengths.sum()), tokens.skipped, model.settings.max_length)
    rest = np.zeros(filled - int(lengths.sum()), np.int32)
    ids = np.concatenate([*tokens.rows, rest]).astype(np.int32)
    types = None if tokens.types is None else np.concatenate([*tokens.types, rest]).astype(np.int32)
    offsets = np.zeros(len(lengths) + 2, np.int32)
    np.cumsum([*lengths, len(rest)], out=offsets[1:])
    return {
        "lengths": lengths, "ids": ids, "places": model.embeddings.places(ids, offsets, types), "offsets": offsets,
        "padding": _padding(lengths, len(ids), model.settings.max_length) if model.architecture.encoder.pads else None,
    }  # fmt: skip


def _padding(lengths: Array, tokens: int, longest: int) -> Padding:
    """Return the padding of texts, without the filler, to a length rounded up to limit the number of plans."""
    length = min(-(-int(lengths.max()) // _LEAST_UNIT) * _LEAST_UNIT, longest)
    keep = np.arange(length) < lengths[:, np.newaxis]
    given, places = np.zeros(keep.shape, np.int32), np.zeros(tokens, np.int32)
    given[keep] = np.arange(lengths.sum())
    places[: lengths.sum()] = np.flatnonzero(keep)
    return Padding(given, places, keep)


def _rounded(tokens: int, skipped: int, longest: int) -> int:
    """Return the number of tokens including the filler text, which has at least ``skipped + 1`` tokens."""
    unit = min(max(_LEAST_UNIT, 1 << max(tokens.bit_length() - _SHARE, 0)), longest - skipped)
    return -(-(tokens + skipped + 1) // unit) * unit if unit > skipped else tokens + skipped + 1


def groups_of(tokens: Array) -> list[slice]:
    """Split a batch into groups, given the number of tokens of each example.

    Gradients of weights are summed over groups in a fixed order, so they do not depend on how many groups are computed
    at once, or where. An example starts a new group if the current one has 32 examples, or would exceed 4096 tokens
    with it.

    Examples
    --------
    >>> groups_of(np.array([4000, 96, 1, 5000, 7]))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None), slice(4, 5, None)]
    """
    begins, filled = [0], 0
    for place, count in enumerate(tokens.tolist()):
        filled += count
        if place - begins[-1] == GROUP or (filled > _MOST_TOKENS and place > begins[-1]):
            begins.append(place)
            filled = count
    return [slice(begin, end) for begin, end in pairwise([*begins, len(tokens)])]


class TextBatches(Batches):
    """The batches of a fit, `size` examples each; column j holds text j of all examples.

    `order` is that of :func:`mp_core.training.batches.batches_of`.
    """

    def __init__(
        self, model: TextNetwork, columns: Sequence[Tokens], labels: Array | None, size: int,
        order: Callable[[int, int], Array] | None = None,
    ) -> None:  # fmt: skip
        self.model, self.columns, self.labels, self.size, self.order = model, columns, labels, size, order
        self.tokens = np.sum([[len(row) for row in column.rows] for column in columns], axis=0)

    @property
    def steps(self) -> int:
        return -(-len(self.columns[0]) // self.size)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of an epoch; the inputs of a batch of several groups are a list."""
        count = len(self.columns[0])
        order = np.arange(count) if self.order is None else self.order(count, number)
        for start in range(0, count, self.size):
            chosen = order[start : start + self.size]
            yield Batch(self._inputs(chosen), None if self.labels is None else self.labels[chosen])

    def _inputs(self, chosen: Array) -> Any:
        groups = [self._texts(chosen[group]) for group in groups_of(self.tokens[chosen])]
        return groups if len(groups) > 1 else groups[0]

    def _texts(self, chosen: Array) -> dict[str, Any]:
        return ragged_inputs(self.model, Tokens.joined([column.select(chosen.tolist()) for column in self.columns]))
