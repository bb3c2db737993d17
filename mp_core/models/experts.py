"""A mixture of experts [1]_: each token goes through the few perceptrons that a router chooses for it.

Which these are depends on the token, so there is no plan: texts run through the operations, expert by expert, each with
the tokens that chose it.

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
    """Which perceptrons of a network are mixtures, and of what.

    Attributes
    ----------
    experts : int
        How many each has.
    chosen : int
        How many each token goes through.
    every : int
        The blocks 1, 1 + every, 1 + 2 * every, ... have them.
    """

    experts: int
    chosen: int
    every: int

    def has(self, block: int) -> bool:
        """Whether the perceptron of a block is a mixture."""
        return block % self.every == 1


class ExpertRouter(Part):
    """The share of each expert in the outputs for a token, in float32 under every policy."""

    tensors = (("weight", "table"),)

    def __init__(self, settings: Settings, experts: int, **kwargs: Any) -> None:
        super().__init__(settings, **kwargs)
        self.experts = experts

    def build(self, input_shape: Shape) -> None:
        """Create the table."""
        self.table = self.add_weight((self.experts, self.settings.hidden_size), "zeros", autocast=False, name="table")

    def call(self, hidden: Array) -> Array:
        """Return the softmax of the products of tokens, shape (tokens, width), and the table."""
        wide = dtypes.result_type(self._compute, F32)
        columns = self.table.derived(("columns", wide), lambda stored: ops.cast(stored, wide).T)
        shares: Array = ops.softmax(ops.matmul(ops.cast(hidden, wide), columns))
        return shares


class Experts(Part):
    """Perceptrons of which each token goes through some: the sum of their outputs times their shares, and a bias.

    Attributes
    ----------
    router : ExpertRouter
    inner, outer : list of Dense
        The two products of each expert.
    bias : AutoCastVariable, shape (width,)
    """

    tensors = (("bias", "bias"),)

    def __init__(self, settings: Settings, routing: Routing, **kwargs: Any) -> None:
        super().__init__(settings, **kwargs)
        self.routing = routing

    def build(self, input_shape: Shape) -> None:
        """Create the router and the perceptrons."""
        s, numbers = self.settings, range(self.routing.experts)
        width, inner = s.hidden_size, s.intermediate_size
        self.router = self.part(ExpertRouter, s, self.routing.experts, name="router")
        self.inner = [self.dense(f"inner_{i}", inner, width, s.hidden_act, bias=False) for i in numbers]
        self.outer = [self.dense(f"outer_{i}", width, inner, bias=False) for i in numbers]
        self.bias = self.add_weight((width,), "zeros", autocast=False, name="bias")

    def call(self, hidden: Array) -> Array:
        """Return as many vectors as there are in `hidden`; the sums are added in float32, in the order of experts."""
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
