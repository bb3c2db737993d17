"""A mixture of experts [1]_: a router chooses a few perceptrons for each token.

The choice depends on the data, so there is no plan. The operations run expert by expert, each on the tokens that were
routed to it.

.. [1] Z. Nussbaum, B. Duderstadt, "Training Sparse Mixture Of Experts Text Embedding Models", 2025, arXiv:2502.07972.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array, dtypes
from mp_core.arrays.recorded import UnseenError, is_recorded
from mp_core.models.blocks import Part, Shape
from mp_core.models.settings import Settings

__all__ = ["ExpertRouter", "Experts", "Routing"]


@dataclass(frozen=True, slots=True)
class Routing:
    """The routing of a network: which blocks have experts, and how many."""

    experts: int  # The number of experts of a block.
    chosen: int  # The number of experts that compute each token.
    every: int  # The blocks 1, 1 + every, 1 + 2 * every, ... have experts.

    def has(self, block: int) -> bool:
        """Return whether a block has experts."""
        return block % self.every == 1


class ExpertRouter(Part):
    """Computes the weight of each expert for each token, in float32 under every policy."""

    tensors = (("weight", "table"),)

    def __init__(self, settings: Settings, experts: int, **kwargs: Any) -> None:
        super().__init__(settings, **kwargs)
        self.experts = experts

    def build(self, input_shape: Shape) -> None:
        self.table = self.add_weight((self.experts, self.settings.hidden_size), "zeros", autocast=False, name="table")

    def call(self, hidden: Array) -> Array:
        """Return ``softmax(hidden @ table')``, shape (tokens, experts), for `hidden` of shape (tokens, width)."""
        wide = dtypes.result_type(self._compute, F32)
        columns = self.table.derived(("columns", wide), lambda stored: ops.cast(stored, wide).T)
        shares: Array = ops.softmax(ops.matmul(ops.cast(hidden, wide), columns))
        return shares


class Experts(Part):
    """A mixture of perceptrons: the sum over the chosen experts of output times weight, plus a bias, shape (width,)."""

    tensors = (("bias", "bias"),)

    def __init__(self, settings: Settings, routing: Routing, **kwargs: Any) -> None:
        super().__init__(settings, **kwargs)
        self.routing = routing

    def build(self, input_shape: Shape) -> None:
        s, numbers = self.settings, range(self.routing.experts)
        width, inner = s.hidden_size, s.intermediate_size
        self.router = self.part(ExpertRouter, s, self.routing.experts, name="router")
        self.inner = [self.dense(f"inner_{i}", inner, width, s.hidden_act, bias=False) for i in numbers]
        self.outer = [self.dense(f"outer_{i}", width, inner, bias=False) for i in numbers]
        self.bias = self.add_weight((width,), "zeros", autocast=False, name="bias")

    def call(self, hidden: Array) -> Array:
        """Return the output vectors, in the shape of `hidden`; sums are in float32, in the order of the experts."""
        if is_recorded(hidden):
            raise UnseenError("a mixture of experts is neither planned nor trained: its steps depend on the tokens")
        tokens = hidden.reshape(-1, hidden.shape[-1])
        shares = self.router(tokens)
        chosen = np.argsort(-shares, axis=1, kind="stable")[:, : self.routing.chosen]
        outputs = np.zeros(tokens.shape, shares.dtype)
        for expert, (inner, outer) in enumerate(zip(self.inner, self.outer, strict=True)):
            rows = np.flatnonzero((chosen == expert).any(axis=1))
            if len(rows):
                found = ops.cast(outer(inner(tokens[rows])), shares.dtype)
                outputs[rows] += found * shares[rows, expert, np.newaxis]
        outputs += ops.cast(self.bias.read_value(), shares.dtype)
        result: Array = ops.cast(outputs, self._compute).reshape(hidden.shape)
        return result
