"""Keras' layer of any function, which is refused."""

from typing import Any, NoReturn

from mp_core.layers.layer import Layer
from mp_core.utilities.absent import reason_for

__all__ = ["Lambda"]


class Lambda(Layer):
    """Keras' layer of any function: it cannot be made, nor loaded from a file.

    A file of Keras holds the code of the function, which would run when the file is loaded. Write what it computes as
    the ``call`` of a :class:`Layer`, name a function of elements in :class:`Activation`, or use functions of
    :mod:`mp_core.ops` between symbolic arrays, which are layers.

    Raises
    ------
    NotImplementedError
        Always.

    Examples
    --------
    >>> import numpy as np
    >>> import mp_core as mp
    >>> x = mp.Input((3,))
    >>> mp.Model(x, mp.ops.square(x) + 1.0)(np.float32([[1, 2, 3]]))  # in the place of Lambda(lambda x: x ** 2 + 1)
    array([[ 2.,  5., 10.]], dtype=float32)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse()

    def call(self, inputs: Any) -> NoReturn:
        """Raise NotImplementedError."""
        _refuse()

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> NoReturn:
        """Raise NotImplementedError."""
        _refuse()


def _refuse() -> NoReturn:
    raise NotImplementedError(f"Lambda is no layer of mp_core: {reason_for('Lambda', 'layers')}")
