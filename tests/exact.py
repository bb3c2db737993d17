"""Functions of 16-bit and 8-bit types, correctly rounded: what every kernel must return, for every input of a type.

The formulas are evaluated in float64 first. Its functions have relative errors of a few 2^-53, and no formula magnifies
them more than 2^11 times (``erfc(u)`` magnifies the rounding of u by 2 u^2, and is 0 from u = 28 on). So a value whose
distance to the nearest rounding boundary is more than 2^-38 of it is rounded correctly. All others are computed again
with 600 bits.
"""

import functools
import math

import mpmath
import numpy as np
from oracles import codes, exactly, nearest

UNCERTAIN = 2.0**-38
"""A generous bound of the relative error of the formulas in float64."""

BITS = 600
"""Of the second evaluation: gelu(2^-133) = 2^-134 (1 + 2^-133) is a tie up to a relative difference of 2^-133."""

SAME = 2.0**-500
"""Of the second evaluation: values that differ by less are equal, as 36^1.5 and 216, which is a tie."""

SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772  # of selu


def _sigmoid(m, x):
    return 1 / (1 + m.exp(-x)) if x > 0 else m.exp(x) / (1 + m.exp(x))


def _softplus(m, x):
    return x + m.log1p(m.exp(-x)) if x > 0 else m.log1p(m.exp(x))


def _mish(m, x):
    if x > 0:
        e = m.exp(-x)
        return x * (1 + 2 * e) / (1 + 2 * e + 2 * e * e)
    e = m.exp(x)
    return x * e * (e + 2) / (e * (e + 2) + 2)


def _elu(m, x):
    return x if x > 0 else m.expm1(x)


FORMULAS = {
    "exp": lambda m, x: m.exp(x),
    "expm1": lambda m, x: m.expm1(x),
    "exp2": lambda m, x: 2**x,
    "log": lambda m, x: m.log(x),
    "log1p": lambda m, x: -math.inf if x == -1 else m.log1p(x),
    "log2": lambda m, x: m.log(x, 2),
    "log10": lambda m, x: m.log(x, 10),
    "sqrt": lambda m, x: m.sqrt(x),
    "rsqrt": lambda m, x: 1 / m.sqrt(x),
    "reciprocal": lambda m, x: 1 / x,
    "square": lambda m, x: x * x,
    "tanh": lambda m, x: m.tanh(x),
    "sinh": lambda m, x: m.sinh(x),
    "cosh": lambda m, x: m.cosh(x),
    "sigmoid": _sigmoid,
    "log_sigmoid": lambda m, x: -_softplus(m, -x),
    "erf": lambda m, x: m.erf(x),
    "erfc": lambda m, x: m.erfc(x),
    "sin": lambda m, x: m.sin(x),
    "cos": lambda m, x: m.cos(x),
    "tan": lambda m, x: m.tan(x),
    "atan": lambda m, x: m.atan(x),
    "asin": lambda m, x: m.asin(x) if abs(x) <= 1 else math.nan,
    "acos": lambda m, x: m.acos(x) if abs(x) <= 1 else math.nan,
    "asinh": lambda m, x: m.asinh(x),
    "acosh": lambda m, x: m.acosh(x) if x >= 1 else math.nan,
    "atanh": lambda m, x: m.atanh(x) if abs(x) < 1 else math.copysign(math.inf, x) if abs(x) == 1 else math.nan,
    "gelu": lambda m, x: x * m.erfc(-x / m.sqrt(2)) / 2,
    "gelu_tanh": lambda m, x: x * _sigmoid(m, m.sqrt(8 / m.pi) * (x + type(x)(44715) / 1000000 * x**3)),
    "silu": lambda m, x: x * _sigmoid(m, x),
    "softplus": _softplus,
    "mish": _mish,
    "elu": _elu,
    "selu": lambda m, x: SCALE * (x if x > 0 else ALPHA * m.expm1(x)),
    "softsign": lambda m, x: x / (1 + abs(x)),
    "relu": lambda m, x: x if x > 0 else abs(x) * 0,
    "relu6": lambda m, x: min(x, x * 0 + 6) if x > 0 else abs(x) * 0,
}
"""Name -> the formula over a module of functions (math or mpmath) and a finite number other than 0."""

HALF_PI = math.pi / 2
ENDS = {
    "exp": (0.0, 1.0, 1.0, math.inf),
    "expm1": (-1.0, -0.0, 0.0, math.inf),
    "exp2": (0.0, 1.0, 1.0, math.inf),
    "log": (math.nan, -math.inf, -math.inf, math.inf),
    "log1p": (math.nan, -0.0, 0.0, math.inf),
    "log2": (math.nan, -math.inf, -math.inf, math.inf),
    "log10": (math.nan, -math.inf, -math.inf, math.inf),
    "sqrt": (math.nan, -0.0, 0.0, math.inf),
    "rsqrt": (math.nan, -math.inf, math.inf, 0.0),
    "reciprocal": (-0.0, -math.inf, math.inf, 0.0),
    "square": (math.inf, 0.0, 0.0, math.inf),
    "tanh": (-1.0, -0.0, 0.0, 1.0),
    "sinh": (-math.inf, -0.0, 0.0, math.inf),
    "cosh": (math.inf, 1.0, 1.0, math.inf),
    "sigmoid": (0.0, 0.5, 0.5, 1.0),
    "log_sigmoid": (-math.inf, -math.log(2), -math.log(2), -0.0),
    "erf": (-1.0, -0.0, 0.0, 1.0),
    "erfc": (2.0, 1.0, 1.0, 0.0),
    "sin": (math.nan, -0.0, 0.0, math.nan),
    "cos": (math.nan, 1.0, 1.0, math.nan),
    "tan": (math.nan, -0.0, 0.0, math.nan),
    "atan": (-HALF_PI, -0.0, 0.0, HALF_PI),
    "asin": (math.nan, -0.0, 0.0, math.nan),
    "acos": (math.nan, HALF_PI, HALF_PI, math.nan),
    "asinh": (-math.inf, -0.0, 0.0, math.inf),
    "acosh": (math.nan, math.nan, math.nan, math.inf),
    "atanh": (math.nan, -0.0, 0.0, math.nan),
    "gelu": (-0.0, -0.0, 0.0, math.inf),
    "gelu_tanh": (-0.0, -0.0, 0.0, math.inf),
    "silu": (-0.0, -0.0, 0.0, math.inf),
    "softplus": (0.0, math.log(2), math.log(2), math.inf),
    "mish": (-0.0, -0.0, 0.0, math.inf),
    "elu": (-1.0, -0.0, 0.0, math.inf),
    "selu": (-SCALE * ALPHA, -0.0, 0.0, math.inf),
    "softsign": (-1.0, -0.0, 0.0, 1.0),
    "relu": (0.0, -0.0, 0.0, math.inf),
    "relu6": (0.0, -0.0, 0.0, 6.0),
}
"""Name -> the values at -Inf, -0, +0 and +Inf: the limits, with the sign that the function has there. NaN gives NaN."""


def _evaluated(formula, x):
    """Return formula(x); NaN outside of its domain, infinity where it overflows."""
    try:
        return formula(math, x)
    except ValueError:
        return math.nan
    except OverflowError:
        return _of_overflow(formula, x)


def _of_overflow(formula, x):
    """Return infinity of the sign of formula(x), which is beyond float64."""
    with mpmath.workprec(60):
        return math.inf if formula(mpmath.mp, mpmath.mpf(x)) > 0 else -math.inf


def boundaries_of(dtype):
    """Return the positive boundaries of rounding to a type in order, the one of overflow at the end."""
    positive = codes(dtype)[: 2 ** (8 * np.dtype(dtype).itemsize - 1)]
    values = exactly(positive, np.float64)
    values = values[np.isfinite(values)]
    return np.append((values[:-1] + values[1:]) / 2, values[-1] + (values[-1] - values[-2]) / 2)


def _moved(formula, x, boundary):
    """Return the float64 beside `boundary` on the side of formula(x), or `boundary` in a tie: it rounds likewise."""
    with mpmath.workprec(BITS):
        y = abs(formula(mpmath.mp, mpmath.mpf(x)))
        if abs(y - boundary) <= SAME * boundary:
            return boundary
        return float(np.nextafter(boundary, math.inf if y > boundary else 0.0))


def _rounded(formula, x, y, dtype):
    """Return formula(x), whose value in float64 is y, rounded once."""
    boundaries, size = boundaries_of(dtype), np.abs(y)
    at = np.searchsorted(boundaries, size).clip(1, boundaries.size - 1)
    for near in (at - 1, at):
        for i in np.flatnonzero(np.abs(size - boundaries[near]) <= UNCERTAIN * boundaries[near]):
            y[i] = math.copysign(_moved(formula, float(x[i]), float(boundaries[near[i]])), y[i])
    return nearest(y, dtype)


def values_of(formula, ends, x):
    """Return formula(x) of each element in float64."""
    return np.array([
        math.nan if math.isnan(v)
        else ends[0 if v < 0 else 3] if math.isinf(v)
        else ends[1 if math.copysign(1, v) < 0 else 2] if v == 0
        else _evaluated(formula, v)
        for v in x.tolist()
    ])  # fmt: skip


def power(exponent):
    """Return the formula of x to a power, and its values at the ends: those of C's pow, and its NaN for x < 0."""
    p = float(np.float32(exponent))

    def formula(m, x):
        if x < 0 and not p.is_integer():
            return math.nan
        return x**p if m is math else x ** m.mpf(p)

    with np.errstate(all="ignore"):
        return formula, [float(np.float64(x) ** np.float64(p)) for x in (-math.inf, -0.0, 0.0, math.inf)]


@functools.cache
def exact(name, dtype):
    """Return all numbers of a type of 8 or 16 bits, and the correctly rounded values of a function of them.

    `name` is a key of FORMULAS, or "power" and an exponent: ``exact("power 0.5", "float16")``.
    """
    x = codes(dtype)
    wide = exactly(x, np.float64)
    formula, ends = power(float(name.split()[1])) if name.startswith("power ") else (FORMULAS[name], ENDS[name])
    return x, _rounded(formula, wide, values_of(formula, ends, wide), dtype)
