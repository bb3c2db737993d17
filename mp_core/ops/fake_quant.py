"""Keras' ``fake_quant_with_min_max_vars``: round floats to the values that integers of few bits can represent."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, Array, asarray, cast, dtypes
from mp_core.arrays.recorded import constant, current_recording, recordable, with_numbers
from mp_core.ops.elementwise import compared, computed
from mp_core.ops.elementwise import where as chosen
from mp_core.utilities.arguments import axis_of, integer
from mp_core.utilities.docstrings import shown

__all__ = ["fake_quant_with_min_max_vars", "nudged_range"]


@recordable
@with_numbers
@shown("{}([-1.0, 0.3, 9.0], 0.0, 3.0, num_bits=2).tolist()", "[0.0, 0.0, 3.0]")
def fake_quant_with_min_max_vars(
    inputs: ArrayLike,
    min_vals: ArrayLike,
    max_vals: ArrayLike,
    num_bits: int = 8,
    narrow_range: bool = False,
    axis: int | None = None,
) -> Array:
    """Round `inputs` to the values of `num_bits`-bit integers that cover the range from `min_vals` to `max_vals`.

    The range is nudged so that 0 is represented exactly. In float32 (float64 for float64 inputs)::

        low, high = (1 if narrow_range else 0), 2**num_bits - 1
        scale, inverse = (max - min) / (high - low), (high - low) / (max - min)
        zero = clip(round(low - min / scale), low, high)
        least, most = (low - zero) * scale, (high - zero) * scale
        result = floor((clip(x, least, most) - least) * inverse - floor(-least * inverse + 0.5) + 0.5) * scale

    Parameters
    ----------
    inputs : array-like
        Integers become Keras' floatx.
    min_vals, max_vals : array-like
        One number each; with `axis`, one number for each index along it.
    num_bits : int
        From 2 to 16.
    narrow_range : bool
        Do not use the lowest integer.
    axis : int, optional
        The axis along which the range varies.

    Returns
    -------
    ndarray
        In the dtype of `inputs`; 0 where ``min_vals == max_vals``. NaN stays NaN. The gradient passes straight through
        where ``least <= x <= most``. The gradient of `min_vals` is the sum of the gradients where ``x <= least``, that
        of `max_vals` the sum where ``x >= most``.

    Raises
    ------
    ValueError
        ``min_vals > max_vals``, or a range is too wide or too narrow for the dtype of the computation.
    """
    given = asarray(inputs, "inputs")
    if not dtypes.is_float(given.dtype):
        given = cast(given, dtypes.floatx())
    x, start, end, scale, inverse, wide = _nudged(given, min_vals, max_vals, num_bits, narrow_range, axis)
    half, zero, apply = _number(0.5, x), _number(0.0, x), _applier(x)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inside = apply("subtract", apply("minimum", apply("maximum", x, start), end), start)
        shift = apply("floor", apply("add", apply("multiply", apply("negative", start), inverse), half))
        scaled = apply("subtract", apply("multiply", inside, inverse), shift)
        result = apply("multiply", apply("floor", apply("add", scaled, half)), scale)
        nothing = _where(_compare("not_equal", x, x), x, zero)
        result = _where(wide, result, nothing)
    return cast(result, given.dtype)


@shown("{}(np.zeros(1), -0.1, 3.0, 2, False, None)[1:]", "(array([0.]), array([3.1]))")
def nudged_range(
    inputs: Array, min_vals: ArrayLike, max_vals: ArrayLike, num_bits: int, narrow_range: bool, axis: int | None
) -> tuple[Array, Array, Array]:
    """Return the inputs in the computation dtype, and `least` and `most` of :func:`fake_quant_with_min_max_vars`."""
    x, start, end, *_ = _nudged(inputs, min_vals, max_vals, num_bits, narrow_range, axis)
    return x, start, end


def _nudged(
    given: Array, min_vals: ArrayLike, max_vals: ArrayLike, num_bits: int, narrow_range: bool, axis: int | None
) -> tuple[Array, ...]:
    """Return (x, least, most, scale, 1 / scale, max > min), with `x` the inputs in the computation dtype."""
    num_bits = integer(num_bits, "num_bits")
    if not 2 <= num_bits <= 16:
        raise ValueError(f"`num_bits` should be in the range [2, 16]. Received: num_bits={num_bits}")
    compute = given.dtype if given.dtype.name == "float64" else dtypes.parse("float32")
    shape = [1] * given.ndim
    if axis is not None:
        axis = axis_of(axis, given.ndim)
        shape[axis] = given.shape[axis]
    x = cast(given, compute)
    least, most = (
        _bounds(value, compute, shape, name) for name, value in (("min_vals", min_vals), ("max_vals", max_vals))
    )
    low, high, apply = _number(float(bool(narrow_range)), x), _number(float(2**num_bits - 1), x), _applier(x)
    if current_recording() is None:  # a recording has examples of values only
        _check_range(least, most, float(high - low), compute)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        width, levels = apply("subtract", most, least), apply("subtract", high, low)
        scale, inverse = apply("divide", width, levels), apply("divide", levels, width)
        zero = apply("rint", apply("subtract", low, apply("divide", least, scale)))
        zero = apply("minimum", apply("maximum", zero, low), high)
        ends = (apply("multiply", apply("subtract", code, zero), scale) for code in (low, high))
        return x, *ends, scale, inverse, _compare("greater", most, least)


def _check_range(least: Array, most: Array, levels: float, compute: np.dtype[Any]) -> None:
    """Raise ValueError unless ``least <= most`` and the width and its reciprocal are finite in the dtype."""
    if not np.all(least <= most):
        raise ValueError(f"`min_vals` must not be greater than `max_vals`; received {least} and {most}")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = compute.type(levels) / (most - least)
        if not np.all((least == most) | (inverse > 0) & (inverse < np.inf)):
            raise ValueError(
                f"`max_vals` - `min_vals` must be finite and have a reciprocal in {compute}; received {most - least}"
            )


def _number(value: float, beside: Array) -> Array:
    """Return a number as an array that recordings treat as a constant."""
    return constant(np.full((), value, beside.dtype))


def _applier(x: Array) -> Callable[..., Array]:
    """Return a function that applies an elementwise function by name: NumPy's in float64, else a recordable one."""
    if x.dtype is F32:
        return lambda name, *operands: computed(name, *operands, dtype=F32)
    return lambda name, *operands: getattr(np, name)(*operands)


def _compare(name: str, x: Array, y: Array) -> Array:
    return compared(name, x, y, dtype=F32) if x.dtype is F32 else getattr(np, name)(x, y)


def _where(mask: Array, x: Array, y: Array) -> Array:
    return chosen(mask, x, y, dtype=F32) if x.dtype is F32 else np.where(mask, x, y)


def _bounds(value: ArrayLike, dtype: np.dtype[Any], shape: list[int], argument: str) -> Array:
    """Return bounds, one number or one per index of `axis`, in a shape that broadcasts to the inputs."""
    given = isinstance(value, np.ndarray)
    bounds = cast(value, dtype) if given else constant(np.asarray(asarray(value, argument), dtype))
    if bounds.size == 1:
        return bounds.reshape([1] * len(shape))
    if bounds.shape != (prod(shape),):
        raise ValueError(f"`{argument}` must be one number, or with `axis` one for each index; received {bounds.shape}")
    return bounds.reshape(shape)
