"""Keras' functions ``add``, ``concatenate`` ...: create a merging layer and call it."""

from collections.abc import Sequence
from typing import Any

from mp_core.layers.merging import Add, Average, Concatenate, Dot, Maximum, Minimum, Multiply, Subtract

__all__ = ["add", "average", "concatenate", "dot", "maximum", "minimum", "multiply", "subtract"]


def add(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Call a new layer :class:`Add` with `inputs`; `kwargs` are the arguments of the layer.

    Examples
    --------
    >>> import numpy as np
    >>> add([np.float32([[1, 2]]), np.float32([[3, 4]]), np.float32([[5, 6]])])
    array([[ 9., 12.]], dtype=float32)
    """
    return Add(**kwargs)(inputs)


def average(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Call a new layer :class:`Average` with `inputs`; `kwargs` are the arguments of the layer.

    Examples
    --------
    >>> import numpy as np
    >>> average([np.float32([[1, 2]]), np.float32([[3, 6]])])
    array([[2., 4.]], dtype=float32)
    """
    return Average(**kwargs)(inputs)


def concatenate(inputs: Sequence[Any], axis: int = -1, **kwargs: Any) -> Any:
    """Call a new layer :class:`Concatenate` with `inputs`; `axis` and `kwargs` are the arguments of the layer.

    Examples
    --------
    >>> import numpy as np
    >>> concatenate([np.float32([[1, 2]]), np.float32([[3, 4, 5]])])
    array([[1., 2., 3., 4., 5.]], dtype=float32)
    """
    return Concatenate(axis=axis, **kwargs)(inputs)


def dot(inputs: Sequence[Any], axes: Any = -1, **kwargs: Any) -> Any:
    """Call a new layer :class:`Dot` with `inputs`; `axes` and `kwargs` are the arguments of the layer.

    Examples
    --------
    >>> import numpy as np
    >>> dot([np.float32([[1, 2], [3, 0]]), np.float32([[3, 4], [5, 6]])])  # 1 * 3 + 2 * 4, 3 * 5 + 0 * 6
    array([[11.],
           [15.]], dtype=float32)
    """
    return Dot(axes=axes, **kwargs)(inputs)


def maximum(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Call a new layer :class:`Maximum` with `inputs`; `kwargs` are the arguments of the layer.

    Examples
    --------
    >>> import numpy as np
    >>> maximum([np.float32([[1, 5]]), np.float32([[3, 4]])])
    array([[3., 5.]], dtype=float32)
    """
    return Maximum(**kwargs)(inputs)


def minimum(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Call a new layer :class:`Minimum` with `inputs`; `kwargs` are the arguments of the layer.

    Examples
    --------
    >>> import numpy as np
    >>> minimum([np.float32([[1, 5]]), np.float32([[3, 4]])])
    array([[1., 4.]], dtype=float32)
    """
    return Minimum(**kwargs)(inputs)


def multiply(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Call a new layer :class:`Multiply` with `inputs`; `kwargs` are the arguments of the layer.

    Examples
    --------
    >>> import numpy as np
    >>> multiply([np.float32([[2, 3]]), np.float32([[4, 5]])])
    array([[ 8., 15.]], dtype=float32)
    """
    return Multiply(**kwargs)(inputs)


def subtract(inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Call a new layer :class:`Subtract` with `inputs`; `kwargs` are the arguments of the layer.

    Examples
    --------
    >>> import numpy as np
    >>> subtract([np.float32([[5, 2]]), np.float32([[3, 4]])])
    array([[ 2., -2.]], dtype=float32)
    """
    return Subtract(**kwargs)(inputs)
