"""Exponentials, logarithms, trigonometric and related functions of each element.

In 16 and 8 bits every result is the exact one, rounded once. In float64 they are those of NumPy and of C.
"""

from numpy.typing import ArrayLike

from mp_core.arrays import Array
from mp_core.ops import specs
from mp_core.ops.activations import FLOATS
from mp_core.ops.functions import function_of
from mp_core.ops.registry import operation
from mp_core.utilities.docstrings import documented

__all__ = ["arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "cos", "cosh", "erf", "erfc", "exp2",
           "expm1", "log2", "log10", "log_sigmoid", "rsqrt", "selu", "sin", "sinh", "softsign", "tan"]  # fmt: skip

_ELEMENTS = documented(FLOATS)


@operation(specs.floating)
@_ELEMENTS
def expm1(x: ArrayLike) -> Array:
    """Return ``exp(x) - 1``, in the type of `x`, accurate also near 0.

    Examples
    --------
    >>> expm1([-200, 0, 2])
    array([-1.      ,  0.      ,  6.389056], dtype=float32)
    """
    return function_of("expm1", x)


@operation(specs.floating)
@_ELEMENTS
def exp2(x: ArrayLike) -> Array:
    """Return 2 to the power of `x`, in the type of `x`.

    Examples
    --------
    >>> exp2([-1, 0, 10])
    array([5.000e-01, 1.000e+00, 1.024e+03], dtype=float32)
    """
    return function_of("exp2", x)


@operation(specs.floating)
@_ELEMENTS
def log2(x: ArrayLike) -> Array:
    """Return the logarithm to base 2, in the type of `x`; -Inf at 0, NaN below.

    Examples
    --------
    >>> log2([0, 8, 10])
    array([    -inf, 3.      , 3.321928], dtype=float32)
    """
    return function_of("log2", x)


@operation(specs.floating)
@_ELEMENTS
def log10(x: ArrayLike) -> Array:
    """Return the logarithm to base 10, in the type of `x`; -Inf at 0, NaN below.

    Examples
    --------
    >>> log10([0, 2, 1000])
    array([   -inf, 0.30103, 3.     ], dtype=float32)
    """
    return function_of("log10", x)


@operation(specs.floating)
@_ELEMENTS
def sinh(x: ArrayLike) -> Array:
    """Return the hyperbolic sine, in the type of `x`.

    Examples
    --------
    >>> sinh([-1, 0, 100])
    array([-1.1752012,  0.       ,        inf], dtype=float32)
    """
    return function_of("sinh", x)


@operation(specs.floating)
@_ELEMENTS
def cosh(x: ArrayLike) -> Array:
    """Return the hyperbolic cosine, in the type of `x`.

    Examples
    --------
    >>> cosh([-1, 0, 100])
    array([1.5430807, 1.       ,       inf], dtype=float32)
    """
    return function_of("cosh", x)


@operation(specs.floating, home="math")
@_ELEMENTS
def erf(x: ArrayLike) -> Array:
    """Return the error function, ``2 / sqrt(pi)`` times the integral of ``exp(-t**2)`` from 0 to `x`.

    Examples
    --------
    >>> erf([-1, 0, 2])
    array([-0.8427008,  0.       ,  0.9953223], dtype=float32)
    """
    return function_of("erf", x)


@operation(specs.floating, home="math")
@_ELEMENTS
def erfc(x: ArrayLike) -> Array:
    """Return ``1 - erf(x)``, in the type of `x`, accurate also where that is small.

    Examples
    --------
    >>> erfc([-1, 0, 8])
    array([1.8427008e+00, 1.0000000e+00, 1.1224297e-29], dtype=float32)
    """
    return function_of("erfc", x)


@operation(specs.floating)
@_ELEMENTS
def sin(x: ArrayLike) -> Array:
    """Return the sine of angles in radians, in the type of `x`; NaN of an infinite angle.

    Examples
    --------
    >>> sin([0, 1, 10**18])
    array([ 0.        ,  0.84147096, -0.21673788], dtype=float32)
    """
    return function_of("sin", x)


@operation(specs.floating)
@_ELEMENTS
def cos(x: ArrayLike) -> Array:
    """Return the cosine of angles in radians, in the type of `x`; NaN of an infinite angle.

    Examples
    --------
    >>> cos([0, 1, 10**18])
    array([1.        , 0.5403023 , 0.97622985], dtype=float32)
    """
    return function_of("cos", x)


@operation(specs.floating)
@_ELEMENTS
def tan(x: ArrayLike) -> Array:
    """Return the tangent of angles in radians, in the type of `x`; NaN of an infinite angle.

    Examples
    --------
    >>> tan([0, 1, -1])
    array([ 0.       ,  1.5574077, -1.5574077], dtype=float32)
    """
    return function_of("tan", x)


@operation(specs.floating)
@_ELEMENTS
def arctan(x: ArrayLike) -> Array:
    """Return the angle in radians whose tangent is `x`, between ``-pi / 2`` and ``pi / 2``.

    Examples
    --------
    >>> arctan([-10, 0, 1])
    array([-1.4711276,  0.       ,  0.7853982], dtype=float32)
    """
    return function_of("arctan", x)


@operation(specs.floating)
@_ELEMENTS
def arcsin(x: ArrayLike) -> Array:
    """Return the angle in radians whose sine is `x`, between ``-pi / 2`` and ``pi / 2``; NaN beyond 1.

    Examples
    --------
    >>> arcsin([-1, 0, 0.5])
    array([-1.57079633,  0.        ,  0.52359878])
    """
    return function_of("arcsin", x)


@operation(specs.floating)
@_ELEMENTS
def arccos(x: ArrayLike) -> Array:
    """Return the angle in radians whose cosine is `x`, between 0 and ``pi``; NaN beyond 1.

    Examples
    --------
    >>> arccos([-1, 0, 1])
    array([3.1415927, 1.5707964, 0.       ], dtype=float32)
    """
    return function_of("arccos", x)


@operation(specs.floating)
@_ELEMENTS
def arcsinh(x: ArrayLike) -> Array:
    """Return the number whose hyperbolic sine is `x`, in the type of `x`.

    Examples
    --------
    >>> arcsinh([-1, 0, 100])
    array([-0.8813736,  0.       ,  5.298342 ], dtype=float32)
    """
    return function_of("arcsinh", x)


@operation(specs.floating)
@_ELEMENTS
def arccosh(x: ArrayLike) -> Array:
    """Return the number from 0 on whose hyperbolic cosine is `x`, in the type of `x`; NaN below 1.

    Examples
    --------
    >>> arccosh([1, 2, 100])
    array([0.      , 1.316958, 5.298292], dtype=float32)
    """
    return function_of("arccosh", x)


@operation(specs.floating)
@_ELEMENTS
def arctanh(x: ArrayLike) -> Array:
    """Return the number whose hyperbolic tangent is `x`, in the type of `x`; infinite at 1, NaN beyond.

    Examples
    --------
    >>> arctanh([-1, 0, 0.5])
    array([      -inf, 0.        , 0.54930614])
    """
    return function_of("arctanh", x)


@operation(specs.floating, home="math")
@_ELEMENTS
def rsqrt(x: ArrayLike) -> Array:
    """Return ``1 / sqrt(x)``, in the type of `x`; infinity at 0, NaN below.

    Examples
    --------
    >>> rsqrt([4, 0])
    array([0.5, inf], dtype=float32)
    """
    return function_of("rsqrt", x)


@operation(specs.floating, home="nn")
@_ELEMENTS
def selu(x: ArrayLike) -> Array:
    """Return the ELU with the two constants of self-normalizing networks.

    It is 1.0507009873554805 times ``x``, or times ``1.6732632423543772 * (exp(x) - 1)`` where ``x < 0``.

    Examples
    --------
    >>> selu([-1, 0, 1])
    array([-1.1113307,  0.       ,  1.050701 ], dtype=float32)
    """
    return function_of("selu", x)


@operation(specs.floating, home="nn")
@_ELEMENTS
def softsign(x: ArrayLike) -> Array:
    """Return ``x / (1 + abs(x))``, in the type of `x`.

    Examples
    --------
    >>> softsign([-1, 0, 3])
    array([-0.5 ,  0.  ,  0.75], dtype=float32)
    """
    return function_of("softsign", x)


@operation(specs.floating, home="nn")
@_ELEMENTS
def log_sigmoid(x: ArrayLike) -> Array:
    """Return the logarithm of the sigmoid, ``-log(1 + exp(-x))``, in the type of `x`, without overflow.

    Examples
    --------
    >>> log_sigmoid([-1000, 0, 10])
    array([-1.0000000e+03, -6.9314718e-01, -4.5398898e-05], dtype=float32)
    """
    return function_of("log_sigmoid", x)
