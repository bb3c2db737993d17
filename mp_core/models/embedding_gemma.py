"""EmbeddingGemma 2: Gemma 3 with other head sizes in blocks of full attention, and per-layer signals.

A signal is a projection of the word embeddings, one for each block. After its perceptron, block i computes::

    hidden = factor * (hidden + norm(output(gate(hidden) * signal[i])))
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from mp_core import ops
from mp_core.arrays import F32, Array, dtypes
from mp_core.models.blocks import Part, Shape
from mp_core.models.gated_blocks import GatedBlock, GatedEncoder, GatedSettings

__all__ = ["EmbeddingGemmaEncoder", "EmbeddingGemmaSettings", "Factor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingGemmaSettings(GatedSettings):
    """The settings of EmbeddingGemma 2."""

    signal_size: int  # The length of a signal.
    output_size: int  # The length of the vectors after the final projection.
    heads: tuple[tuple[int, int], ...]  # (number of key and value heads, head size) of each block.

    @property
    def vector_size(self) -> int:
        return self.output_size

    @property
    def rows_of_token(self) -> tuple[int, ...]:
        """The numbers of rows per token in norms of heads and signals."""
        return (self.num_attention_heads, *sorted({shared for shared, _ in self.heads}), self.num_hidden_layers)

    def heads_of(self, index: int) -> tuple[int, int]:
        return self.heads[index]


class Factor(Part):
    """A layer that multiplies vectors by one stored number."""

    tensors = (("weight", "table"),)

    def build(self, input_shape: Shape) -> None:
        self.table = self.add_weight((1,), "ones", autocast=False, trainable=False, name="table")

    def call(self, hidden: Array) -> Array:
        """Return `hidden` times the number, in the dtype of `hidden`."""
        factor = self.table.derived(("factor", hidden.dtype), lambda stored: ops.cast(stored, hidden.dtype))
        outputs: Array = ops.multiply(hidden, factor)
        return outputs


class EmbeddingGemmaBlock(GatedBlock):
    """A block of Gemma 3, followed by a bottleneck gated by the signal, and a final factor."""

    settings: EmbeddingGemmaSettings

    def build(self, input_shape: Shape) -> None:
        GatedBlock.build(self, input_shape)
        s = self.settings
        self.signal_gate = self.dense("signal_gate", s.signal_size, s.hidden_size, s.hidden_act, bias=False)
        self.signal_output = self.dense("signal_output", s.hidden_size, s.signal_size, bias=False)
        self.signal_norm = self.norm_of("signal_norm")
        self.factor = self.part(Factor, s, shape=input_shape, name="factor")

    def call(
        self, hidden: Array, keep: Array | None = None, bias: Array | None = None, offsets: Array | None = None,
        signal: Any = None,
    ) -> Array:  # fmt: skip
        """Return the output vectors, in the shape of `hidden`; the other arguments are those of :class:`GatedBlock`.

        `signal` has one vector for each vector of `hidden`, in the compute dtype.
        """
        hidden = GatedBlock.call(self, hidden, keep, bias, offsets)
        opened = ops.multiply(self.signal_gate(ops.cast(hidden, self.signal_gate.compute_dtype)), signal)
        scaled: Array = self.factor(ops.add(hidden, self.signal_norm(self.signal_output(opened))))
        return scaled


class EmbeddingGemmaEncoder(GatedEncoder):
    """Blocks of EmbeddingGemma 2, and a projection after the final norm."""

    settings: EmbeddingGemmaSettings
    block_kind = EmbeddingGemmaBlock

    def build(self, input_shape: Shape) -> None:
        """Create the blocks, the projection to their signals, and the final projection."""
        GatedEncoder.build(self, input_shape)
        s = self.settings
        self.signals = self.dense("signals", s.num_hidden_layers * s.signal_size, s.hidden_size, bias=False)
        self.signals_norm = self.norm_of("signals_norm", s.signal_size)
        self.projection = self.dense("projection", s.output_size, s.hidden_size, bias=False)

    def call(self, hidden: Array, keep: Array | None = None, offsets: Array | None = None) -> Array:
        """Return the vectors after the final projection; `keep` and `offsets` are those of :func:`attend`."""
        s = self.settings
        products = ops.multiply(self.signals(hidden), s.hidden_size**-0.5)
        signals = self.signals_norm(products.reshape(*hidden.shape[:-1], s.num_hidden_layers, s.signal_size))
        hidden = ops.cast(hidden, dtypes.result_type(hidden.dtype, F32))
        blocks: Any = [partial(block, signal=signals[..., i, :]) for i, block in enumerate(self.blocks)]
        outputs: Array = self.projection(self.through(blocks, hidden, self.norm, keep=keep, offsets=offsets))
        return outputs
