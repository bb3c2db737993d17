"""Functions composed of other operations, under Keras' names.

float16 and bfloat16 are computed in float32 and rounded at the end, to the type of the arguments.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import F32, F64, Array, cast
from mp_core.arrays.dtypes import ALLOWED, is_float
from mp_core.arrays.products.matmul import matmul
from mp_core.ops import choosing_specs, elementwise, specs
from mp_core.ops.arrangement import array_of, ravel, reshape, squeeze, stop_gradient
from mp_core.ops.comparisons import equal, greater, less
from mp_core.ops.contraction import einsum
from mp_core.ops.functions import absolute, exp, log, max, min, negative, sqrt, square, where
from mp_core.ops.norms import length
from mp_core.ops.padding import folded, pad
from mp_core.ops.pairs import add, divide, multiply, subtract
from mp_core.ops.registry import operation
from mp_core.ops.sums import mean
from mp_core.ops.sums import sum as sum_of
from mp_core.utilities.arguments import axes_of, axis_of, integer

__all__ = ["abs", "ceil", "cumsum", "dot", "floor", "logsumexp", "norm", "prod", "reciprocal", "round", "sign", "std",
           "tril", "triu", "trunc", "var"]  # fmt: skip

Axes = int | Sequence[int] | None

abs = absolute  # Keras' other name


def _floating(x: ArrayLike) -> Array:
    array = array_of(x)
    return array if is_float(array.dtype) else cast(array, F32)


def _wide(x: ArrayLike) -> tuple[Array, np.dtype[np.generic]]:
    """Return an array in the type in which it is computed (float32 or float64), and its own type."""
    array = _floating(x)
    return (array if array.dtype == F64 else cast(array, F32)), array.dtype


@operation(specs.reduced_float, options="axis keepdims")
def var(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """Return the variance along axes: the mean of the squared deviations from the mean.

    Examples
    --------
    >>> var(np.float32([1, 3]))
    array(1., dtype=float32)
    """
    wide, kind = _wide(x)
    return cast(mean(square(subtract(wide, mean(wide, axis, keepdims=True))), axis, keepdims=keepdims), kind)


@operation(specs.reduced_float, options="axis keepdims")
def std(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """Return the standard deviation along axes: the square root of the variance.

    Examples
    --------
    >>> std(np.float32([1, 3]))
    array(1., dtype=float32)
    """
    wide, kind = _wide(x)
    return cast(sqrt(var(wide, axis, keepdims)), kind)


@operation(specs.reduced_float, options="axis keepdims", home="math")
def logsumexp(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
    """Return the logarithm of the sum of the exponentials along axes, without overflow.

    Examples
    --------
    >>> logsumexp(np.float32([1000, 1000])).round(3)
    np.float32(1000.693)
    """
    wide, kind = _wide(x)
    largest = max(wide, axis, keepdims=True)
    largest = where(equal(absolute(largest), np.inf), 0.0, largest)  # Inf - Inf would be NaN
    total = log(sum_of(exp(subtract(wide, largest)), axis, keepdims=True)) + largest
    return cast(total if keepdims else squeeze(total, axis), kind)


@operation(specs.floating)
def reciprocal(x: ArrayLike) -> Array:
    """Return ``1 / x``.

    Examples
    --------
    >>> reciprocal(np.float32([4]))
    array([0.25], dtype=float32)
    """
    return divide(1.0, _floating(x))


@operation(choosing_specs.accumulated, options="axis dtype")
def cumsum(x: ArrayLike, axis: int | None = None, dtype: DTypeLike | None = None) -> Array:
    """Return the cumulative sums along an axis, or of the flattened array.

    Floats are added in float32 in ``ceil(log2(n))`` steps: step t computes ``s[i] + s[i - 2**t]``. The last sums are
    rounded to the type of `x`. Integers are added exactly, in their own type.

    Parameters
    ----------
    x : array-like
        Booleans become int32.
    axis : int, optional
    dtype : dtype, optional
        The type of the result. Default: that of `x`.

    Examples
    --------
    >>> cumsum(np.float32([1, 2, 3]))
    array([1., 3., 6.], dtype=float32)
    """
    array = array_of(x)
    array = array if dtype is None else cast(array, dtype)
    if axis is None:
        array, axis = ravel(array), 0
    axis = axis_of(axis, array.ndim)
    array = cast(array, ALLOWED["int32"]) if array.dtype == np.bool_ else array
    wide, kind = _wide(array) if is_float(array.dtype) else (array, array.dtype)
    count, shift = array.shape[axis], 1
    before = (slice(None),) * axis
    while shift < count:
        widths = [(shift, 0) if place == axis else (0, 0) for place in range(array.ndim)]
        wide = add(wide, pad(wide[(*before, slice(count - shift))], widths))
        shift *= 2
    return cast(wide, kind)


@operation(specs.totalled, options="axis keepdims dtype")
def prod(x: ArrayLike, axis: Axes = None, keepdims: bool = False, dtype: DTypeLike | None = None) -> Array:
    """Return the product of the elements along axes; without elements it is 1.

    Both halves of an axis are multiplied element by element, until one element is left. Floats are multiplied in
    float32 and rounded at the end; integers are exact modulo 2^64.

    Parameters
    ----------
    x : array-like
    axis : int or sequence of int, optional
    keepdims : bool
    dtype : dtype, optional
        The type of the result. Default: the type of `x`; int64 or uint64 for integers and booleans.

    Examples
    --------
    >>> prod(np.float32([[1, 2], [3, 4]]), 0)
    array([3., 8.], dtype=float32)
    """
    array = array_of(x)
    if is_float(array.dtype):
        wide, kind = _wide(array)
    else:
        wide = cast(array, "uint64" if array.dtype.kind == "u" else "int64")
        kind = wide.dtype
    axes = tuple(range(wide.ndim)) if axis is None else tuple(axis_of(each, wide.ndim) for each in axes_of(axis))
    if len(set(axes)) < len(axes):
        raise ValueError(f"`axis` must not name an axis twice; received {axis}")
    kept = [1 if place in axes else n for place, n in enumerate(wide.shape)]
    found = reshape(folded(multiply, wide, axes, 1), kept if keepdims else np.delete(kept, axes).astype(int).tolist())
    wanted = kind if dtype is None else dtype
    return found if found.dtype == wanted else cast(found, wanted)


@operation(choosing_specs.dotted, "x1 x2")
def dot(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return NumPy's ``dot``, computed by :func:`mp_core.matmul`.

    Parameters
    ----------
    x1, x2 : array-like
        The last axis of `x1` is contracted with the last but one of `x2`. An array without axes is a factor.

    Examples
    --------
    >>> dot(np.float32([1, 2]), np.float32([3, 4]))
    array(11., dtype=float32)
    """
    one, two = array_of(x1), array_of(x2)
    if one.ndim == 0 or two.ndim == 0:
        return multiply(_floating(one), _floating(two))
    if two.ndim <= 2:
        return matmul(one, two)
    letters = "abcdefghijklmnopqrstuvwxyz"
    left, right = letters[: one.ndim - 1], letters[one.ndim - 1 : one.ndim + two.ndim - 2]
    return einsum(f"{left}z,{right[:-1]}z{right[-1]}->{left}{right}", one, two)


@operation(choosing_specs.normed, options="ord axis keepdims", home="linalg")
def norm(x: ArrayLike, ord: Any = None, axis: Axes = None, keepdims: bool = False) -> Array:
    """Return a norm of vectors along an axis, or of all elements; by default the Euclidean norm.

    Squares neither overflow nor underflow: see :func:`mp_core.ops.norms.squared`. The gradient of the Euclidean norm of
    zeros is 0.

    Parameters
    ----------
    x : array-like
        Integers become float32.
    ord : {None, "fro", 1, 2, inf, -inf}
        None and 2 are the Euclidean norm; "fro" is the same over two axes. 1, inf and -inf are norms of vectors.
    axis : int or pair of int, optional
    keepdims : bool

    Raises
    ------
    ValueError
        `ord` is another norm, for example one that needs singular values.

    Examples
    --------
    >>> norm(np.float32([[3, 4], [6, 8]]), axis=1)
    array([ 5., 10.], dtype=float32)
    """
    wide, kind = _wide(x)
    axes = range(wide.ndim) if axis is None else axes_of(axis)
    if ord == "fro" and len(axes) != 2:
        raise ValueError(f"`ord` must be of vectors along one axis; received 'fro' for {len(axes)} axes")
    if ord not in (None, "fro") and not (isinstance(ord, int | float) and len(axes) == 1 and ord in {2, *_NORMS}):
        raise ValueError(f"`ord` must be None, 'fro' of matrices, or 1, 2, inf or -inf of vectors; received {ord!r} "
                         f"for {len(axes)} axes: numpy.linalg.norm has the others")  # fmt: skip
    found = length(wide, axis) if ord in (None, "fro", 2) else _NORMS[ord](absolute(wide), axis, keepdims=True)
    return cast(found if keepdims else squeeze(found, axis), kind)


_NORMS: dict[float, Any] = {1: sum_of, np.inf: max, -np.inf: min}
"""Norm of vectors -> its reduction of the magnitudes; the Euclidean norm is not here."""


@operation(choosing_specs.cornered, options="k")
def tril(x: ArrayLike, k: int = 0) -> Array:
    """Return matrices with zeros above diagonal `k`; 0 is the main diagonal, positive numbers are above it.

    Examples
    --------
    >>> tril([[1.0, 2.0], [3.0, 4.0]])
    array([[1., 0.],
           [3., 4.]])
    """
    array = array_of(x)
    return where(_below(array, integer(k, "k")), array, np.zeros((), array.dtype))


def _below(array: Array, k: int) -> Array:
    """Return a mask of the elements on or below diagonal `k`."""
    rows, columns = array.shape[-2:]
    return np.tri(rows, columns, k, dtype=np.bool_)


@operation(choosing_specs.cornered, options="k")
def triu(x: ArrayLike, k: int = 0) -> Array:
    """Return matrices with zeros below diagonal `k`: see :func:`tril`.

    Examples
    --------
    >>> triu([[1.0, 2.0], [3.0, 4.0]])
    array([[1., 2.],
           [0., 4.]])
    """
    array = array_of(x)
    return where(_below(array, integer(k, "k") - 1), np.zeros((), array.dtype), array)


@operation(specs.kept)
def sign(x: ArrayLike) -> Array:
    """Return 1 for positive and -1 for negative elements; 0 and NaN stay as they are. No gradient flows through it.

    Examples
    --------
    >>> sign(np.float32([-2, 0, 3]))
    array([-1.,  0.,  1.], dtype=float32)
    """
    array = array_of(x)
    if not is_float(array.dtype):
        return elementwise.computed("sign", array, dtype=array.dtype)
    still = stop_gradient(array)
    return where(greater(still, 0.0), 1.0, where(less(still, 0.0), -1.0, still))


@operation(specs.floating)
def floor(x: ArrayLike) -> Array:
    """Return the largest whole number that is at most each element. No gradient flows through it.

    Examples
    --------
    >>> floor(np.float32([-1.5, 1.5]))
    array([-2.,  1.], dtype=float32)
    """
    return _whole("floor", x)


@operation(specs.floating)
def ceil(x: ArrayLike) -> Array:
    """Return the smallest whole number that is at least each element. No gradient flows through it.

    Examples
    --------
    >>> ceil(np.float32([-1.5, 1.5]))
    array([-1.,  2.], dtype=float32)
    """
    return negative(_whole("floor", negative(_floating(x))))


@operation(specs.kept)
def trunc(x: ArrayLike) -> Array:
    """Return the whole numbers next to the elements, towards 0. No gradient flows through it.

    Examples
    --------
    >>> trunc(np.float32([-1.5, 1.5]))
    array([-1.,  1.], dtype=float32)
    """
    array = array_of(x)
    return where(less(stop_gradient(array), 0), ceil(array), floor(array)) if is_float(array.dtype) else array


@operation(specs.kept, fixed={"decimals": (0,)})
def round(x: ArrayLike) -> Array:
    """Round each element to the nearest whole number, ties to even. No gradient flows through it.

    Examples
    --------
    >>> round(np.float32([0.5, 1.5, -1.2]))
    array([ 0.,  2., -1.], dtype=float32)
    """
    return _whole("rint", x) if is_float(array_of(x).dtype) else array_of(x)


def _whole(name: str, x: ArrayLike) -> Array:
    array = _floating(x)
    return stop_gradient(elementwise.computed(name, array, dtype=array.dtype))
