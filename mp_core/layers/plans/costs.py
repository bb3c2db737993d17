"""What a plan costs: its memory, and what each of its operations takes."""

from typing import NamedTuple

__all__ = ["ARITHMETICS", "Memory", "Operation"]


class Memory(NamedTuple):
    """Bytes of a plan: `arena` of each run that is under way, `constants` that all runs share with the layer.

    Examples
    --------
    >>> import numpy as np
    >>> import mp_core as mp
    >>> plan = mp.compile(mp.layers.Dense(2), np.ones((4, 3), np.float32))
    >>> plan.memory.arena  # one product, straight into the outputs: nothing in between
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
        What it took.
    arithmetic : str or None
        The type in which products multiply: float32 (float16 too), bfloat16 or int8. None: it is no product.
    operations : float
        Multiplications and additions of a product.
    moved : int
        Bytes read and written, weights included.
    tasks : int
        Into how many parts it is cut, which threads take one by one.

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
