"""EmbeddingGemma 2: heads of other lengths in blocks of far attention, and a signal for each block beside the sum.

The signals are products of the vectors of tokens before the first block. Behind its perceptron, each block adds what a
small bottleneck makes of the sum, multiplied by its signal.
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
    """What ``config.json`` says about such a network.

    Attributes
    ----------
    signal_size : int
        The length of a signal.
    output_size : int
        The length of the vectors behind the last product.
    heads : tuple of (int, int)
        How many heads keys and values have, and the length of their vectors, for each block.
    """

    signal_size: int
    output_size: int
    heads: tuple[tuple[int, int], ...]

    @property
    def vector_size(self) -> int:
        """The length of the vectors of the network."""
        return self.output_size

    @property
    def rows_of_token(self) -> tuple[int, ...]:
        """How many rows the norms of heads and of signals have for each token."""
        return (self.num_attention_heads, *sorted({shared for shared, _ in self.heads}), self.num_hidden_layers)

    def heads_of(self, index: int) -> tuple[int, int]:
        """Return how many heads keys and values of a block have, and the length of their vectors."""
        return self.heads[index]


class Factor(Part):
    """One number by which vectors are multiplied.

    Attributes
    ----------
    table : AutoCastVariable, shape (1,)
    """

    tensors = (("weight", "table"),)

    def build(self, input_shape: Shape) -> None:
        """Create the number, which training leaves as it is."""
        self.table = self.add_weight((1,), "ones", autocast=False, trainable=False, name="table")

    def call(self, hidden: Array) -> Array:
        """Return the vectors times the number, in their own type."""
        factor = self.table.derived(("factor", hidden.dtype), lambda stored: ops.cast(stored, hidden.dtype))
        outputs: Array = ops.multiply(hidden, factor)
        return outputs


class EmbeddingGemmaBlock(GatedBlock):
    """A block of Gemma 3, a bottleneck that is multiplied by a signal, and a number that scales the sum."""

    settings: EmbeddingGemmaSettings

    def build(self, input_shape: Shape) -> None:
        """Create the layers."""
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
        """Return as many vectors as there are in `hidden`; the other arguments are those of :class:`GatedBlock`.

        `signal` has a vector for each of `hidden`, in the compute dtype.
        """
        hidden = GatedBlock.call(self, hidden, keep, bias, offsets)
        opened = ops.multiply(self.signal_gate(ops.cast(hidden, self.signal_gate.compute_dtype)), signal)
        scaled: Array = self.factor(ops.add(hidden, self.signal_norm(self.signal_output(opened))))
        return scaled


class EmbeddingGemmaEncoder(GatedEncoder):
    """Such blocks, and a product behind the norm of their sum."""

    settings: EmbeddingGemmaSettings
    block_kind = EmbeddingGemmaBlock

    def build(self, input_shape: Shape) -> None:
        """Create the blocks, the product that makes their signals, and the last one."""
        GatedEncoder.build(self, input_shape)
        s = self.settings
        self.signals = self.dense("signals", s.num_hidden_layers * s.signal_size, s.hidden_size, bias=False)
        self.signals_norm = self.norm_of("signals_norm", s.signal_size)
        self.projection = self.dense("projection", s.output_size, s.hidden_size, bias=False)

    def call(self, hidden: Array, keep: Array | None = None, offsets: Array | None = None) -> Array:
        """Return the vectors behind the last product; `keep` and `offsets` are those of :func:`attend`."""
        s = self.settings
        products = ops.multiply(self.signals(hidden), s.hidden_size**-0.5)
        signals = self.signals_norm(products.reshape(*hidden.shape[:-1], s.num_hidden_layers, s.signal_size))
        hidden = ops.cast(hidden, dtypes.result_type(hidden.dtype, F32))
        blocks: Any = [partial(block, signal=signals[..., i, :]) for i, block in enumerate(self.blocks)]
        outputs: Array = self.projection(self.through(blocks, hidden, self.norm, keep=keep, offsets=offsets))
        return outputs
