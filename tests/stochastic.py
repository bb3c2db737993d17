"""Stochastic rounding as docs/numerics.md states it, in NumPy and exact arithmetic."""

import ml_dtypes
import numpy as np

FORMATS = {  # name: mantissa bits, exponent of the smallest normal number, largest finite value, code of overflow
    "bfloat16": (7, -126, 3.3895313892515355e38, 0x7F80),
    "float16": (10, -14, 65504.0, 0x7C00),
    "float8_e4m3fn": (3, -6, 448.0, 0x7F),
    "float8_e5m2": (2, -14, 57344.0, 0x7C),
}


def random_bits(n, name, seed, draw, stream=(0, 0, 0), first=0):
    """Return the random integers of n elements from `first` on, and how many bits they have."""
    bits = 16 if name == "bfloat16" else 32
    generator = np.random.Philox(key=[seed, draw], counter=[0, *stream])
    words = generator.random_raw((first + n) * bits // 64 + 1)
    return words.astype("<u8").view(f"<u{bits // 8}")[first : first + n].astype(np.float64), bits


def rounded(x, name, random, bits, saturate=False):
    """Return float32 numbers rounded to a type by random integers of `bits` bits: floor(|x| / unit + random / 2^bits).

    The quotient is computed exactly in float64: it has at most 24 bits and the sum at most 53, since smaller quotients
    than 2^-bits cannot change it and are dropped.
    """
    mantissa, lowest, largest, over = FORMATS[name]
    x = np.asarray(x, np.float32)
    with np.errstate(all="ignore"):
        magnitude = np.abs(x.astype(np.float64))
        exponent = np.maximum(np.frexp(magnitude)[1] - 1, lowest)
        unit = np.ldexp(1.0, exponent - mantissa)
        fixed = np.floor(magnitude / unit * 2.0**bits)  # a multiple of 2^-bits; exact below 2^53
        value = np.floor((fixed + random) / 2.0**bits) * unit
    kind = np.dtype(getattr(ml_dtypes, name, None) or name)
    with np.errstate(over="ignore"):
        code = value.astype(kind)
    beyond = np.array(largest).astype(kind).view(f"u{kind.itemsize}") if saturate else over
    code = np.where(value > largest, np.array(beyond, f"u{kind.itemsize}").view(kind), code)
    code = np.where(np.isnan(x), np.array(np.nan).astype(kind), code)
    return np.copysign(code.astype(np.float32), x).astype(kind)
