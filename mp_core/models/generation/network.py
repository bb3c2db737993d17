"""Decoders with the product to the vocabulary, and the plan of a step of several sequences."""

from collections.abc import Iterable
from collections.abc import Sequence as Listed
from itertools import accumulate, chain
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array, dtypes
from mp_core.layers import Dense, Layer
from mp_core.layers.plans import ForwardPlan, UnseenError, is_eager
from mp_core.models.blocks import Shape
from mp_core.models.gated_blocks import GatedEncoder, GatedSettings
from mp_core.models.generation.cache import PAGE, PagedCache, Sequence
from mp_core.models.network import TextNetwork
from mp_core.models.past import Past
from mp_core.ops.paged import Pages
from mp_core.utilities.tree import leaves

__all__ = ["CausalModel", "Steps", "decoder_of", "heads_of"]

_EXAMPLES = ((PAGE + 5, 2), 8), ((3, 1, 4, 2), 9)
"""Two examples: the new tokens of sequences, and the pages of the cache. To sequence i, i tokens are proposed. All
sizes differ, and the numbers of pages and sequences do not differ by the same number in both."""


class Head(Dense):
    """The product to the vocabulary. Its sums, in float32, are not rounded to the compute dtype."""

    _matrix_name = "kernel"
    _out_dtype = F32


class CausalModel(TextNetwork):
    """A decoder and the product to the vocabulary: the layer ``lm_head``."""

    def _build_parts(self, input_shape: Shape) -> None:
        super()._build_parts(input_shape)
        decoder_of(self)
        cap = self.config.get("final_logit_softcapping")
        if cap is not None and not (isinstance(cap, int | float) and 0 < cap < np.inf):
            raise ValueError(f"final_logit_softcapping is {cap!r}; expected null or a positive number")
        shape = None, None, self.settings.hidden_size
        self.lm_head = self.encoder.part(
            Head, self.settings.vocab_size, use_bias=False, kernel_initializer="zeros", shape=shape, name="lm_head"
        )

    def logits(self, hidden: Array) -> Array:
        """Return the logits of the vocabulary after each vector, in float32."""
        logits: Array = self.lm_head(hidden)
        cap = self.config.get("final_logit_softcapping")
        return logits if cap is None else ops.multiply(ops.tanh(ops.multiply(logits, 1 / cap)), float(cap))

    def tie(self) -> None:
        """Let the table of words be the matrix of the head, in whose packed codes words are looked up."""
        if self.embeddings.word.share_codes(self.lm_head):
            self.lm_head.form.product_for(dtypes.parse(self.lm_head.compute_dtype))

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
    """The logits after the last token of each piece of the new tokens."""

    def __init__(self, model: CausalModel) -> None:
        super().__init__(autocast=False)
        self.model = model

    def call(
        self, ids: Array, offsets: Array, pages: Pages, ends: Array, keys: list[Array], values: list[Array]
    ) -> Array:
        """Return the logits, float32 of shape (pieces, vocabulary); `ends` are the offsets of pieces of `ids`."""
        model, earlier = self.model, Past(pages, keys, values, PAGE)
        hidden = decoder_of(model).continued(model.embeddings(ids), offsets, earlier)
        return model.logits(ops.ragged_pool(hidden, ends, ("lasttoken",), 0, model.settings.max_length))


class Steps:
    """Computes new tokens of sequences by one plan, for any number of sequences and tokens."""

    def __init__(self, model: CausalModel, cache: PagedCache) -> None:
        self._model, self._cache = model, cache
        (example, sizes), others = (self._example(*lengths) for lengths in _EXAMPLES)
        self._step = _Step(model)
        try:
            self._plan: ForwardPlan[Array] | None = ForwardPlan(self._step, example, {}, sizes, others)
        except UnseenError:
            self._plan = None

    def __call__(
        self, sequences: list[Sequence], counts: list[int], proposals: Listed[list[int]] | None = None
    ) -> Array:
        """Compute the next `counts` tokens of sequences, and after them the tokens that are proposed to follow.

        Return the logits after the last of the `counts` tokens and after each proposed one, for one sequence after the
        other. All keys and values are stored in the pages of the sequences, which must be there already; those of
        proposed tokens do not count as stored until the caller notes them in the cache.
        """
        arrays = _inputs(sequences, counts, [[] for _ in counts] if proposals is None else proposals, self._cache.rows)
        keys, values = self._cache.keys, self._cache.values
        if self._plan is None or is_eager():
            found: Array = self._step(*arrays, keys, values)
        else:
            found = self._plan.run_rows([*leaves(arrays), *keys, *values], self._sizes(arrays, keys))
        for sequence, count in zip(sequences, counts, strict=True):
            self._cache.note(sequence, sequence.stored + count)
        return found

    def _sizes(self, arrays: "_Arrays", keys: list[Array]) -> tuple[int, ...]:
        ids, _, paged, ends = arrays
        tokens = (len(ids) * n for n in self._model.settings.rows_of_token)
        rows = dict.fromkeys(map(len, keys))  # one number if all blocks have as many heads
        return len(ids), len(paged.past), len(paged.pages), *rows, len(ends) - 1, *tokens

    def _example(self, counts: tuple[int, ...], pages: int) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """Return example arguments for sequences of so many new tokens, and their sizes."""
        cache = PagedCache(heads_of(decoder_of(self._model).settings), self._cache.keys[0].dtype, pages)
        counts = tuple(min(count, self._model.settings.max_length) for count in counts)
        sequences, proposals = [Sequence([0] * count) for count in counts], [[0] * n for n in range(len(counts))]
        for sequence, count, proposed in zip(sequences, counts, proposals, strict=True):
            cache.grow(sequence, count + len(proposed))
        arrays = _inputs(sequences, list(counts), proposals, cache.rows)
        return (*arrays, cache.keys, cache.values), self._sizes(arrays, cache.keys)


_Arrays = tuple[Array, Array, Pages, Array]
"""Token ids, the offsets of sequences in them, where keys and values are, and the offsets of the pieces of tokens."""


def _inputs(sequences: list[Sequence], counts: list[int], proposals: Listed[list[int]], rows: int) -> _Arrays:
    """Return the arrays for the next tokens of sequences and the tokens proposed to follow them."""
    new, spans, ends = [], [], [0]
    for s, count, proposed in zip(sequences, counts, proposals, strict=True):
        end = s.stored + count
        new.append([*s.tokens[s.stored : end], *proposed])
        spans.append(range(s.stored, end + len(proposed)))
        ends += range(ends[-1] + count, ends[-1] + count + len(proposed) + 1)
    pages = [s.pages[: -(-span.stop // PAGE)] for s, span in zip(sequences, spans, strict=True)]
    places = (
        [s.pages[row // PAGE] * PAGE + row % PAGE for row in span] for s, span in zip(sequences, spans, strict=True)
    )
    paged = Pages(
        _integers([span.start for span in spans]), _integers(chain.from_iterable(pages)),
        _integers(accumulate(map(len, pages), initial=0)), _integers(chain.from_iterable(places)), _integers([rows]),
    )  # fmt: skip
    offsets = accumulate(map(len, new), initial=0)
    return _integers(chain.from_iterable(new)), _integers(offsets), paged, _integers(ends)


def _integers(column: Iterable[int]) -> Array:
    return np.fromiter(column, np.int32)
