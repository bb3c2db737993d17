"""Batches of texts for training: their tokens one behind the other, without padding."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.models.blocks import Padding
from mp_core.models.network import TextNetwork
from mp_core.models.texts import Tokens
from mp_core.training.batches import Batch, Batches

__all__ = ["GROUP", "TextBatches", "groups_of", "laid_out"]

GROUP = 32
"""The most examples of a group."""
_MOST_TOKENS = 4096
"""The most tokens of a group that has several examples."""

_SHARE = 6  # bits: lengths of batches are rounded up by at most 1/32, so that a fit needs some plans only
_LEAST_UNIT = 16  # tokens


def laid_out(model: TextNetwork, tokens: Tokens) -> dict[str, Any]:
    """Return texts as a network takes them: their tokens, their places, and where each text begins.

    One more text is behind them, whose vector nobody reads: it makes the number of tokens a multiple of some number, so
    that batches of similar lengths have one plan. What it adds to sums is zero.

    Parameters
    ----------
    model : TextNetwork
    tokens : Tokens

    Returns
    -------
    dict of str to ndarray
        ``lengths`` of the texts without the last one, ``ids``, ``places`` and ``offsets``, int32; and ``padding``, a
        :class:`~mp_core.models.blocks.Padding` of these texts, or None.
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
    """Return the padding of texts to a length of few different ones; what lies behind them is not in it."""
    length = min(-(-int(lengths.max()) // _LEAST_UNIT) * _LEAST_UNIT, longest)
    keep = np.arange(length) < lengths[:, np.newaxis]
    given, places = np.zeros(keep.shape, np.int32), np.zeros(tokens, np.int32)
    given[keep] = np.arange(lengths.sum())
    places[: lengths.sum()] = np.flatnonzero(keep)
    return Padding(given, places, keep)


def _rounded(tokens: int, skipped: int, longest: int) -> int:
    """Return the number of tokens with those of the last text: at least one beyond the `skipped` ones."""
    unit = min(max(_LEAST_UNIT, 1 << max(tokens.bit_length() - _SHARE, 0)), longest - skipped)
    return -(-(tokens + skipped + 1) // unit) * unit if unit > skipped else tokens + skipped + 1


def groups_of(tokens: Array) -> list[slice]:
    """Return the groups of a batch, by the tokens of its examples.

    Gradients of weights are sums of groups in a fixed order, so they do not depend on how many groups are computed at a
    time, or where. An example begins a group if the group before it has 32 examples, or would have more than 4096
    tokens with it.

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
    """The examples of a fit, batch by batch.

    Parameters
    ----------
    model : TextNetwork
    columns : sequence of Tokens
        One for each text of an example.
    labels : ndarray, optional
    size : int
        How many examples a batch has.
    order : callable, optional
        As for :func:`mp_core.training.batches.batches_of`.
    """

    def __init__(
        self, model: TextNetwork, columns: Sequence[Tokens], labels: Array | None, size: int,
        order: Callable[[int, int], Array] | None = None,
    ) -> None:  # fmt: skip
        self.model, self.columns, self.labels, self.size, self.order = model, columns, labels, size, order
        self.tokens = np.sum([[len(row) for row in column.rows] for column in columns], axis=0)

    @property
    def steps(self) -> int:
        """How many batches an epoch has."""
        return -(-len(self.columns[0]) // self.size)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of an epoch; a batch of several groups has a list of their inputs."""
        count = len(self.columns[0])
        order = np.arange(count) if self.order is None else self.order(count, number)
        for start in range(0, count, self.size):
            chosen = order[start : start + self.size]
            yield Batch(self._inputs(chosen), None if self.labels is None else self.labels[chosen])

    def _inputs(self, chosen: Array) -> Any:
        groups = [self._texts(chosen[group]) for group in groups_of(self.tokens[chosen])]
        return groups if len(groups) > 1 else groups[0]

    def _texts(self, chosen: Array) -> dict[str, Any]:
        """Return the texts of some examples: those of the first column, then those of the second, and so on."""
        return laid_out(self.model, Tokens.joined([column.taken(chosen.tolist()) for column in self.columns]))
