"""The costs of a plan: its memory, and time and traffic of each operation."""

from typing import NamedTuple

__all__ = ["ARITHMETICS", "Memory", "Operation"]


class Memory(NamedTuple):
    """Bytes of a plan: `arena` for each active run, and `constants`, which all runs share with the layer.

    Examples
    --------
    >>> import numpy as np
    >>> import mp_core as mp
    >>> plan = mp.compile(mp.layers.Dense(2), np.ones((4, 3), np.float32))
    >>> plan.memory.arena  # one product, which writes the outputs: there are no intermediate arrays
    0
    """

    arena: int
    constants: int


ARITHMETICS = {0: "float32", 1: "bfloat16", 2: "int8"}
"""Number of an arithmetic in the kernels -> the type in which it multiplies."""


class Operation(NamedTuple):
    """One step of a plan.

    Attributes
    ----------
    name : str
    seconds : float
        The time of the step.
    arithmetic : str or None
        The type in which a product multiplies: float32 (also for float16), bfloat16 or int8. None: not a product.
    operations : float
        The number of multiplications and additions of a product.
    moved : int
        The bytes read and written, weights included.
    tasks : int
        The number of tasks, which threads take one by one.

    Examples
    --------
    >>> import numpy as np
    >>> import mp_core as mp
    >>> plan = mp.compile(mp.layers.Dense(2), np.ones((4, 3), np.float32))
    >>> (product,) = plan.profile()
    >>> product.arithmetic, product.operations  # 2 * 4 * 3 * 2
    ('float32', 48.0)
    """

    name: str
    seconds: float
    arithmetic: str | None
    operations: float
    moved: int
    tasks: int
