"""Decoders with the product to the vocabulary, and the plan of a step of several sequences."""

from collections.abc import Iterable
from itertools import accumulate, chain
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.layers import Layer
from mp_core.layers.plans import ForwardPlan, UnseenError, is_eager
from mp_core.models.blocks import Shape
from mp_core.models.gated_blocks import GatedEncoder, GatedSettings
from mp_core.models.generation.cache import PAGE, PagedCache, Sequence
from mp_core.models.network import TextNetwork
from mp_core.models.past import Past
from mp_core.ops.paged import Pages

__all__ = ["CausalModel", "Steps", "decoder_of", "heads_of"]

_EXAMPLES = ((2, PAGE + 5), 8), ((1, 3, 2 * PAGE + 1), 9)
"""Two examples: the new tokens of sequences, and the pages of the cache. All sizes differ."""


class CausalModel(TextNetwork):
    """A decoder and the product to the vocabulary: the layer ``lm_head``."""

    def _build_parts(self, input_shape: Shape) -> None:
        super()._build_parts(input_shape)
        decoder_of(self)
        cap = self.config.get("final_logit_softcapping")
        if cap is not None and not (isinstance(cap, int | float) and 0 < cap < np.inf):
            raise ValueError(f"final_logit_softcapping is {cap!r}; expected null or a positive number")
        self.lm_head = self.encoder.dense("lm_head", self.settings.vocab_size, self.settings.hidden_size, bias=False)

    def logits(self, hidden: Array) -> Array:
        """Return the logits of the vocabulary after each vector, in float32."""
        logits = ops.cast(self.lm_head(hidden), F32)
        cap = self.config.get("final_logit_softcapping")
        capped: Array = logits if cap is None else ops.multiply(ops.tanh(ops.multiply(logits, 1 / cap)), float(cap))
        return capped

    def names(self, prefix: str) -> dict[str, str]:
        """Return the path of each layer -> the start of its tensor names; the prefix does not apply to the head."""
        return super().names(prefix) | {"lm_head": "lm_head"}

    def aliases(self, tensors: Iterable[str], prefix: str) -> dict[str, str]:
        """Return the name of the table of words for the matrix of the head, if the file lacks that."""
        table = f"{self.names(prefix)['embeddings/word']}.weight"
        return {} if "lm_head.weight" in tensors else {"lm_head.weight": table}


def decoder_of(model: TextNetwork) -> GatedEncoder:
    """Return the blocks of a network; raise ValueError if they cannot continue sequences."""
    decoder: Any = model.encoder
    own = decoder.settings
    if type(decoder) is not GatedEncoder or not own.is_causal or own.position_buckets or own.layout.slopes:
        raise ValueError(f"model_type is {model.config['model_type']!r}, which does not generate texts here")
    if any(rope is not None and rope.long is not None for rope in own.ropes):
        raise ValueError("rope_type is 'longrope', whose positions depend on the length of a whole text")
    found: GatedEncoder = decoder
    return found


def heads_of(settings: GatedSettings) -> list[tuple[int, int]]:
    """Return for each block the number of heads of keys, and their size."""
    return [settings.heads_of(block) for block in range(settings.num_hidden_layers)]


class _Step(Layer):
    """The logits after the last new token of each sequence, or after every new token."""

    def __init__(self, model: CausalModel, every: bool) -> None:
        super().__init__(autocast=False)
        self.model, self.every = model, every

    def call(
        self,
        ids: Array,
        offsets: Array,
        past: Array,
        pages: Array,
        starts: Array,
        places: Array,
        keys: list[Array],
        values: list[Array],
    ) -> Array:
        """Return the logits, float32 of shape (sequences, vocabulary) or (tokens, vocabulary)."""
        model = self.model
        earlier = Past(Pages(past, pages, starts, places), keys, values, PAGE)
        hidden = decoder_of(model).continued(model.embeddings(ids), offsets, earlier)
        if self.every:
            return model.logits(hidden)
        return model.logits(ops.ragged_pool(hidden, offsets, ("lasttoken",), 0, model.settings.max_length))


class Steps:
    """Computes new tokens of sequences by one plan, for any number of sequences and tokens.

    With `every`, it returns the logits after every new token.
    """

    def __init__(self, model: CausalModel, cache: PagedCache, every: bool = False) -> None:
        self._model, self._cache = model, cache
        (example, sizes), others = (self._example(*lengths) for lengths in _EXAMPLES)
        self._step = _Step(model, every)
        try:
            self._plan: ForwardPlan[Array] | None = ForwardPlan(self._step, example, {}, sizes, others)
        except UnseenError:
            self._plan = None

    def __call__(self, sequences: list[Sequence], counts: list[int]) -> Array:
        """Compute the next `counts` tokens of sequences; return the logits after the last or after every one.

        Their keys and values are stored in the pages of the sequences, which must be there already.
        """
        arrays = _inputs(sequences, counts)
        if self._plan is None or is_eager():
            found: Array = self._step(*arrays, self._cache.keys, self._cache.values)
        else:
            sizes = self._sizes(sum(counts), len(counts), len(arrays[3]), len(self._cache.keys[0]))
            found = self._plan.run_rows([*arrays, *self._cache.keys, *self._cache.values], sizes)
        for sequence, count in zip(sequences, counts, strict=True):
            self._cache.note(sequence, sequence.stored + count)
        return found

    def _sizes(self, tokens: int, sequences: int, pages: int, rows: int) -> tuple[int, ...]:
        return tokens, sequences, pages, rows, *(tokens * n for n in self._model.settings.rows_of_token)

    def _example(self, counts: tuple[int, ...], pages: int) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """Return example arguments for sequences of so many new tokens, and their sizes."""
        cache = PagedCache(heads_of(decoder_of(self._model).settings), self._cache.keys[0].dtype, pages)
        sequences = [Sequence([0] * count) for count in counts]
        for sequence, count in zip(sequences, counts, strict=True):
            cache.grow(sequence, count)
        arrays = _inputs(sequences, list(counts))
        sizes = self._sizes(sum(counts), len(counts), len(arrays[3]), len(cache.keys[0]))
        return (*arrays, cache.keys, cache.values), sizes


def _inputs(sequences: list[Sequence], counts: list[int]) -> tuple[Array, ...]:
    """Return ids, offsets, past, pages, starts and places for the next tokens of sequences."""
    spans = [range(s.stored, s.stored + count) for s, count in zip(sequences, counts, strict=True)]
    ids = chain.from_iterable(s.tokens[span.start : span.stop] for s, span in zip(sequences, spans, strict=True))
    places = chain.from_iterable(
        (s.pages[row // PAGE] * PAGE + row % PAGE for row in span) for s, span in zip(sequences, spans, strict=True)
    )
    pages = [s.pages[: -(-span.stop // PAGE)] for s, span in zip(sequences, spans, strict=True)]
    columns = (
        ids, accumulate(counts, initial=0), (span.start for span in spans), chain.from_iterable(pages),
        accumulate(map(len, pages), initial=0), places,
    )  # fmt: skip
    return tuple(np.array(list(column), np.int32) for column in columns)
