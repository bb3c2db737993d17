"""Random numbers of the process: the seed, and generators of keys (Philox4x64-10, counter-based)."""

from mp_core.layers.randomness import set_seed
from mp_core.layers.seeds import SeedGenerator

__all__ = ["SeedGenerator", "set_seed"]


def __dir__() -> list[str]:
    return __all__
