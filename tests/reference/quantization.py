"""Quantization and products of codes, by the section "Quantization" of docs/numerics.md."""

import numpy as np

from .formats import INTEGERS, cast, rounded
from .fused import fma
from .products import epilogue, integer_sums

F32 = np.float32
LARGEST = {"float8_e4m3fn": 448, "float8_e5m2": 57344}
HALF_A_CODE = {"float8_e4m3fn": 16, "float8_e5m2": 4096}
LARGEST_FINITE = np.finfo(F32).max


def ends(kind):
    """Return the smallest and largest code of an integer type."""
    bits, signed = INTEGERS[kind]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def next_float(scale, up):
    """Return the neighbouring float32 number."""
    return np.nextafter(scale, F32(np.inf if up else 0))


def in_range(scale, largest_code):
    """Decrease scales whose product with the largest code is infinite."""
    return np.where(np.isinf(scale * F32(largest_code)), next_float(scale, False), scale)


def symmetric_scales(x, kind):
    """Return the scales of slices, the last axis of x."""
    finite = np.where(np.isfinite(x), x, F32(0))
    signed = kind in LARGEST or INTEGERS[kind][1]
    top = F32(LARGEST.get(kind) or ends(kind)[1])
    size = np.max(np.abs(finite) if signed else np.maximum(finite, 0), -1, initial=0)
    scale = np.where(size == 0, F32(1), np.maximum(size / top, F32(2.0**-149)))
    half = F32(HALF_A_CODE.get(kind, 0.5))
    beyond = (scale < F32(2.0**-126)) & (size / scale > top + half)
    scale = np.where(beyond, next_float(scale, True), scale)
    return in_range(scale, top)


def asymmetric_scales(x, kind):
    """Return the scales and zero points of slices, the last axis of x."""
    finite = np.where(np.isfinite(x), x, F32(0))
    low, high = (np.minimum(finite.min(-1, initial=0), 0), np.maximum(finite.max(-1, initial=0), 0))
    least, most = ends(kind)
    width = F32(most - least)
    scale = (high - low) / width
    scale = np.where(np.isinf(scale), high / width - low / width, scale)
    scale = np.where((low == 0) & (high == 0), F32(1), np.maximum(scale, F32(2.0**-149)))

    def zero_points():
        return np.clip(np.rint(least - low / scale), least, most)

    zero = zero_points()
    half = F32(0.5)
    beyond = (high / scale + zero > most + half) | (low / scale + zero < least - half)
    scale = np.where((scale < F32(2.0**-126)) & beyond, next_float(scale, True), scale)
    return scale, zero_points().astype(np.int64)


def quantize(x, kind, scale, zero_point=0, low=None):
    """Return the codes of x: integers, or float32 values of a float8 type. `low` is another smallest code."""
    x = np.asarray(x, F32)
    if kind in LARGEST:
        top = F32(LARGEST[kind])
        return np.where(np.isnan(x), F32(0), cast(np.clip(x / scale, -top, top), kind))
    least, most = ends(kind)
    least = least if low is None else low
    q = np.rint(x / scale).astype(np.float64) + zero_point
    return np.where(np.isnan(x), zero_point, np.clip(np.nan_to_num(q), least, most)).astype(np.int64)


def dequantize(q, scale, zero_point=0, kind="float32"):
    """Return the values of codes."""
    return rounded((q - zero_point).astype(F32) * scale, kind)


def quantized_matmul(a, b, a_scale, b_scale, a_zero=0, b_zero=0, **steps):
    """Return the product of two arrays of 8-bit codes: scales per row (rows, 1) and per column, or one."""
    total = cast(integer_sums(a, b, a_zero, b_zero), "float32")
    return epilogue(total, "integers", row_scale=a_scale, column_scale=b_scale, **steps)


def dynamic_matmul(a, b, b_scale, b_zero=0, group=None, a_scale=None, **steps):
    """Return the product of a, its rows quantized to int8, and codes b with scales per column or (groups, columns)."""
    q_low = None if a_scale is not None else -127
    a_scale = symmetric_scales(np.asarray(a, F32), "int8")[:, None] if a_scale is None else F32(a_scale)
    q = quantize(a, "int8", a_scale, low=q_low)
    if group is None:
        return quantized_matmul(q, b, a_scale, b_scale, b_zero=b_zero, **steps)
    c = None
    for g, first in enumerate(range(0, len(b), group)):
        zero = b_zero[g] if np.ndim(b_zero) else b_zero
        s = cast(integer_sums(q[:, first : first + group], b[first : first + group], 0, zero), "float32")
        c = s * b_scale[g] if g == 0 else fma(s, b_scale[g], c)
    return epilogue(c, "integers", row_scale=a_scale, **steps)


def qlinear_matmul(a, b, a_scale, b_scale, out_scale, a_zero=0, b_zero=0, out_zero=0, kind="int8"):
    """Return the codes of ONNX QLinearMatMul."""
    factor = F32(a_scale) * F32(b_scale) / F32(out_scale)
    x = integer_sums(a, b, a_zero, b_zero) * factor.astype(np.float64)
    return np.clip(np.rint(x + out_zero), *ends(kind)).astype(np.int64)
