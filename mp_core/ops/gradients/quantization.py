"""Rules of fake quantization: what is rounded passes straight through."""

import functools
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array, asarray, cast, dtypes
from mp_core.arrays.recorded import constant, recordable, with_numbers
from mp_core.ops.elementwise import compared, computed, concatenated, where
from mp_core.ops.fake_quant import fake_quant_with_min_max_vars, nudged_range
from mp_core.ops.float8 import delayed_float8, quantize_and_dequantize, with_float8_gradient
from mp_core.ops.gradients.registry import gradient_of

__all__ = ["fake_quant_gradients"]


@recordable
@with_numbers
def fake_quant_gradients(d: Array, *arguments: Any) -> tuple[Array, Array, Array]:
    """Return the gradients of fake quantization: within its nudged range, up to its lower end, from its upper end on.

    Parameters
    ----------
    d : ndarray of float
        The gradient of the result.
    *arguments : any
        All six of :func:`mp_core.quantizers.fake_quant_with_min_max_vars`.

    Returns
    -------
    tuple of three ndarrays
        Of the shape of `d`, in float32 (float64): its elements in each of these places, 0 elsewhere.

    Examples
    --------
    >>> x = np.array([-1, 1, 4], np.float32)
    >>> fake_quant_gradients(np.ones(3, np.float32), x, 0.0, 3.0, 2, False, None)[0]
    array([0., 1., 0.], dtype=float32)
    """
    x, least, most = nudged_range(asarray(arguments[0], "inputs"), *arguments[1:])
    d = cast(d, x.dtype)
    if x.dtype is not F32:
        parts = (least <= x) & (x <= most), x <= least, x >= most
        return tuple(np.where(part, d, 0.0) for part in parts)  # type: ignore[return-value]
    zero = constant(np.zeros((), F32))
    above = where(compared("less_equal", least, x, dtype=F32), d, zero, dtype=F32)
    return (
        where(compared("less_equal", x, most, dtype=F32), above, zero, dtype=F32),
        where(compared("less_equal", x, least, dtype=F32), d, zero, dtype=F32),
        where(compared("greater_equal", x, most, dtype=F32), d, zero, dtype=F32),
    )


@gradient_of(fake_quant_with_min_max_vars)
def _(
    d: Array, out: Array, inputs: Any, min_vals: Any, max_vals: Any, num_bits: int = 8, narrow_range: bool = False,
    axis: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    found = functools.cache(lambda: fake_quant_gradients(d, inputs, min_vals, max_vals, num_bits, narrow_range, axis))

    def of_bound(index: int) -> Array:
        x = found()[index]
        return x if axis is None else np.moveaxis(x, axis, -1)

    return {
        "inputs": lambda dtype: cast(found()[0], dtype),
        "min_vals": lambda dtype: cast(of_bound(1), dtype),
        "max_vals": lambda dtype: cast(of_bound(2), dtype),
    }


@gradient_of(quantize_and_dequantize)
def _(d: Array, out: Array, inputs: Any, scale: Any, quantized_dtype: Any, compute_dtype: Any) -> dict[str, Any]:
    return {"inputs": lambda dtype: cast(d, dtype)}


# ---- delayed scaling: what variables are overwritten with takes the place of their gradients


def _next_scale(scale: Any, history: Any, code_dtype: str) -> Any:
    """Return :func:`~mp_core.quantizers.compute_float8_scale` of the largest magnitude of a history."""
    most = constant(np.full(1, dtypes.finfo(code_dtype).max, F32))
    new, kept = computed("divide", ops.max(history).reshape(1), most, dtype=F32), scale.reshape(1)
    is_above = compared("greater", new, constant(np.zeros(1, F32)), dtype=F32)
    is_finite = compared("less", new, constant(np.full(1, np.inf, F32)), dtype=F32)
    return where(is_finite, where(is_above, new, kept, dtype=F32), kept, dtype=F32).reshape(scale.shape)


def _next_history(x: Any, history: Any) -> Any:
    """Return :func:`~mp_core.quantizers.compute_float8_amax_history`."""
    largest = cast(ops.max(computed("absolute", x, dtype=x.dtype)).reshape(1), F32)
    return largest if len(history) == 1 else concatenated(largest, history[2:], history[:1], axis=0)


@gradient_of(delayed_float8)
def _(d: Any, out: Any, x: Any, scale: Any, history: Any, compute_dtype: Any, training: bool) -> dict[str, Any]:
    straight = {"x": lambda dtype: cast(d, dtype)}
    if not training:
        return straight
    return straight | {
        "scale": lambda _: _next_scale(scale, history, "float8_e4m3fn"),
        "history": lambda _: _next_history(x, history),
    }


@gradient_of(with_float8_gradient)
def _(d: Any, out: Any, x: Any, scale: Any, history: Any) -> dict[str, Any]:
    return {
        "x": lambda dtype: cast(quantize_and_dequantize(d, scale, "float8_e5m2", d.dtype), dtype),
        "scale": lambda _: _next_scale(scale, history, "float8_e5m2"),
        "history": lambda _: _next_history(d, history),
    }
