"""Fused multiply-adds in NumPy, by the section "Fused without FMA" of docs/numerics.md."""

import numpy as np

SMALLEST_NORMAL = np.float32(2.0**-126)


def add_to_odd(x, y):
    """Return x + y of float64 rounded to odd: if it is inexact, the neighbour whose last bit is 1."""
    s = np.asarray(x + y)
    part = s - x
    error = (x - (s - part)) + (y - part)  # Knuth's two-sum: exact
    inexact = (error != 0) & np.isfinite(s) & ((s.view(np.int64) & 1) == 0)
    return np.where(inexact, np.nextafter(s, np.copysign(np.inf, error)), s)


def exact_product(a, b):
    """Return the product of two float32 arrays, exact in float64."""
    return np.asarray(a, np.float64) * np.asarray(b, np.float64)


def fma(a, b, c):
    """Return a b + c of float32 arrays, rounded once."""
    return add_to_odd(exact_product(a, b), np.asarray(c, np.float64)).astype(np.float32)


def flushed(x):
    """Replace subnormal float32 numbers by zeros of the same sign."""
    return np.where(np.abs(x) < SMALLEST_NORMAL, np.copysign(np.float32(0), x), x)


def round_and_flush(s):
    """Round float64 to 24 bits. If the result is subnormal in float32, return a zero of its sign."""
    small = np.abs(s) < 2.0**-100
    t = np.where(small, s * 2.0**100, s).astype(np.float32)  # 24 bits also below 2^-126
    t = np.where(small & (np.abs(t) < np.float32(2.0**-26)), np.copysign(np.float32(0), t), t)
    return np.where(small, t * np.float32(2.0**-100), t)


def fma_flushed(a, b, c):
    """Return a b + c, rounded once, with subnormal operands and results as zeros."""
    p = exact_product(flushed(a), flushed(b))
    return round_and_flush(add_to_odd(p, flushed(np.asarray(c, np.float32)).astype(np.float64)))
