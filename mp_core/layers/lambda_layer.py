"""Keras' Lambda layer, which mp_core rejects."""

from typing import Any, NoReturn

from mp_core.layers.layer import Layer
from mp_core.utilities.absent import reason_for

__all__ = ["Lambda"]


class Lambda(Layer):
    """Keras' layer for arbitrary functions: it can neither be created nor loaded from a file.

    Keras' files contain the code of the function, which would run when the file is loaded. Instead define ``call`` of a
    :class:`Layer`, pass an elementwise function to :class:`Activation`, or apply functions of :mod:`mp_core.ops` to
    symbolic arrays.

    Examples
    --------
    >>> import numpy as np
    >>> import mp_core as mp
    >>> x = mp.Input((3,))
    >>> mp.Model(x, mp.ops.square(x) + 1.0)(np.float32([[1, 2, 3]]))  # instead of Lambda(lambda x: x ** 2 + 1)
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
    raise NotImplementedError(f"Lambda is not a layer of mp_core: {reason_for('Lambda', 'layers')}")
