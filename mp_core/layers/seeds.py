"""Seed generators: the source of random numbers of layers."""

from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.layers.randomness import next_seed
from mp_core.ops.random import key_after
from mp_core.policies.autocast import AutoCastVariable
from mp_core.utilities.arguments import integer
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["Seed", "SeedGenerator", "StateHolder", "generator_of", "given_seed"]


class StateHolder:
    """State that a layer keeps between calls, in (nested lists of) variables that are not among its weights.

    Examples
    --------
    >>> holder = StateHolder([AutoCastVariable(np.zeros((2, 3), np.float32), trainable=False)])
    >>> holder.assign([np.ones((2, 3), np.float32)])
    >>> holder.read()[0].sum()
    np.float32(6.0)
    """

    def __init__(self, variables: Any) -> None:
        self.variables = variables

    def read(self) -> Any:
        """Return the values."""
        return map_leaves(lambda variable: variable.read_value(), self.variables)

    def assign(self, values: Any) -> None:
        """Replace the values."""
        for variable, value in zip(leaves(self.variables), leaves(values), strict=True):
            variable.assign(value)


class SeedGenerator(StateHolder):
    """A generator of Philox keys for random numbers: (seed, 0), (seed, 1), (seed, 2), and so on.

    Parameters
    ----------
    seed : int, optional
        From 0 to 2**32 - 1. Default: drawn from the seed of the process, see :func:`mp_core.random.set_seed`.
    name : str, optional

    Attributes
    ----------
    state : AutoCastVariable of int32, shape (2,)
        The next key. It is not trained, and not among the weights of the layer that owns the generator.

    Notes
    -----
    In a recorded training step, the next key is an output of the plan. It is assigned to the state after each run, so
    that each run draws new numbers.

    Examples
    --------
    >>> generator = SeedGenerator(7)
    >>> generator.next(), generator.next()
    (array([7, 0], dtype=int32), array([7, 1], dtype=int32))
    """

    def __init__(self, seed: int | None = None, name: str | None = None) -> None:
        own = next_seed() if seed is None else integer(seed, "seed")
        if not 0 <= own < 2**32:
            raise ValueError(f"`seed` must be from 0 to 2**32 - 1; received {seed}")
        self.seed, self.name = own, name or "seed_generator"
        key = np.array([own, 0], np.uint32).view(np.int32)
        self.state = AutoCastVariable(key, trainable=False, autocast=False, name=f"{self.name}_state")
        super().__init__(self.state)

    def next(self, ordered: bool = True) -> Array:
        """Return the key of the next draw, and advance the state. `ordered` is ignored; Keras has this argument."""
        key = self.state.read_value()
        self.state.assign(key_after(key))
        return key

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"seed": self.seed, "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "SeedGenerator":
        """Return a generator with these arguments; it starts at its first key."""
        return cls(**config)


Seed = int | SeedGenerator | None
"""The type of the argument `seed` of layers."""


def generator_of(seed: Seed) -> SeedGenerator:
    """Return a generator unchanged; make a new one for a seed."""
    return seed if isinstance(seed, SeedGenerator) else SeedGenerator(seed)


def given_seed(seed: Seed) -> int | None:
    """Return the seed for a configuration: an integer or None; for a generator, its seed."""
    return seed.seed if isinstance(seed, SeedGenerator) else seed
