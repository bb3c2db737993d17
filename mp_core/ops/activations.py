"""Elementwise activations."""

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F64, FORMATS, Array, as_float, check_out, imported_out, in_order_of, memory_order
from mp_core.arrays.products import float64
from mp_core.arrays.products.operands import ACTIVATIONS
from mp_core.arrays.recorded import recordable, with_numbers
from mp_core.core import pointwise as _pointwise
from mp_core.core.convert import copy_into
from mp_core.ops import specs
from mp_core.ops.registry import operation
from mp_core.ops.rows import contiguous_rows
from mp_core.utilities.arguments import boolean
from mp_core.utilities.docstrings import documented

__all__ = ["FLOATS", "OF_ELEMENTS", "activate", "gelu", "relu", "relu6", "sigmoid", "silu", "tanh"]

OF_ELEMENTS = """
    Parameters
    ----------
    x : array-like
        {kinds}

    Returns
    -------
    ndarray
        The shape of `x`.

    Raises
    ------
    TypeError
        `x` is not numeric.
"""
FLOATS = OF_ELEMENTS.format(kinds="Float, any shape; integers become float32.")
"""Docstring sections of elementwise functions; format OF_ELEMENTS with the `kinds` of arrays that they take."""

_ACTIVATION = documented(FLOATS, last="""
    out : ndarray or tensor, optional
        Where to put the result: writeable, of the shape and type of `x`. It may be `x` itself.
""")  # fmt: skip


@operation(specs.floating, options="approximate", home="nn", defaults={"approximate": True})
@_ACTIVATION
def gelu(x: ArrayLike, approximate: bool = False, *, out: Array | None = None) -> Array:
    """Return ``x * Phi(x)`` in the type of `x`; Phi is the cumulative normal distribution.

    Parameters
    ----------
    approximate : bool
        Use ``(1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2`` as ``Phi(x)``, for models trained with it.

    Examples
    --------
    >>> gelu(np.array([-1.0, 0.0, 1.0], np.float32))
    array([-0.15865526,  0.        ,  0.8413447 ], dtype=float32)
    >>> gelu(np.array([-1.0, 0.0, 1.0], np.float32), approximate=True)
    array([-0.15880801,  0.        ,  0.841192  ], dtype=float32)
    """
    return activate("gelu_tanh" if boolean(approximate, "approximate") else "gelu", x, out)


@operation(specs.floating, home="nn")
@_ACTIVATION
def relu(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return ``max(x, 0)``, in the type of `x`; NaN stays NaN.

    Examples
    --------
    >>> relu(np.array([-1.0, 2.0], np.float32))
    array([0., 2.], dtype=float32)
    """
    return activate("relu", x, out)


@operation(specs.floating, home="nn")
@_ACTIVATION
def relu6(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return ``min(max(x, 0), 6)``, in the type of `x`; NaN stays NaN.

    Examples
    --------
    >>> relu6(np.array([-1.0, 2.0, 7.0], np.float32))
    array([0., 2., 6.], dtype=float32)
    """
    return activate("relu6", x, out)


@operation(specs.floating, home="nn")
@_ACTIVATION
def sigmoid(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return ``1 / (1 + exp(-x))``, in the type of `x`.

    Examples
    --------
    >>> sigmoid(np.array([-100.0, 0.0, 1.0], np.float32))
    array([3.783506e-44, 5.000000e-01, 7.310586e-01], dtype=float32)
    """
    return activate("sigmoid", x, out)


@operation(specs.floating, home="nn")
@_ACTIVATION
def silu(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return ``x / (1 + exp(-x))``, in the type of `x`.

    Examples
    --------
    >>> silu(np.array([0.0, 1.0], np.float32))
    array([0.       , 0.7310586], dtype=float32)
    """
    return activate("silu", x, out)


@operation(specs.floating)
@_ACTIVATION
def tanh(x: ArrayLike, *, out: Array | None = None) -> Array:
    """Return the hyperbolic tangent, in the type of `x`.

    Examples
    --------
    >>> tanh(np.array([-1.0, 0.0, 20.0], np.float32))
    array([-0.7615942,  0.       ,  1.       ], dtype=float32)
    """
    return activate("tanh", x, out)


@recordable
@with_numbers
def activate(name: str, x: ArrayLike, out: Array | None = None) -> Array:
    """Return the activation called `name`, a key of ``ACTIVATIONS``, of each element, in the type of `x`."""
    held = imported_out(out)
    x = as_float(x)
    order = memory_order(x) if held is None else None
    if order is not None:
        return in_order_of(order, activate(name, x.transpose(order)))
    result = np.empty(x.shape, x.dtype) if held is None else check_out(held, x.shape, x.dtype)
    if x.dtype is F64:
        np.copyto(result, float64.ACTIVATIONS[name](x))
        return result if out is None else out
    x, work = contiguous_rows(x, result)
    fmt = FORMATS[x.dtype]
    _pointwise.activate(fmt, x, work, ACTIVATIONS[name])
    if work is not result:
        copy_into(result, work)
    return result if out is None else out
