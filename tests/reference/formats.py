"""Storage formats and casts, by the sections "Storage formats" and "Casts" of docs/numerics.md."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from .fused import add_to_odd


@dataclass(frozen=True)
class Format:
    """A float type of at most 16 bits: fields of a code, the bias of exponents, and codes that are not numbers."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest: int  # the code of the largest finite number
    nan: int | None  # a code of NaN without its sign; None: NaN becomes a zero
    signed: bool = True
    infinity: bool = False
    signed_zero: bool = True

    @property
    def sign(self):
        """The sign bit of a code."""
        return 1 << (self.exponent_bits + self.mantissa_bits)


FORMATS = {
    "float16": Format(5, 10, 15, 0x7BFF, 0x7E00, infinity=True),
    "bfloat16": Format(8, 7, 127, 0x7F7F, 0x7FC0, infinity=True),
    "float8_e5m2": Format(5, 2, 15, 0x7B, 0x7E, infinity=True),
    "float8_e4m3fn": Format(4, 3, 7, 0x7E, 0x7F),
    "float8_e4m3fnuz": Format(4, 3, 8, 0x7F, 0x80, signed_zero=False),
    "float8_e5m2fnuz": Format(5, 2, 16, 0x7F, 0x80, signed_zero=False),
    "float8_e4m3b11fnuz": Format(4, 3, 11, 0x7F, 0x80, signed_zero=False),
    "float8_e8m0fnu": Format(8, 0, 127, 0xFE, 0xFF, signed=False),
    "float4_e2m1fn": Format(2, 1, 1, 0x7, None),
}
INTEGERS = {"int4": (4, True), "uint4": (4, False)} | {
    f"{sign}int{bits}": (bits, not sign) for sign in ("", "u") for bits in (8, 16, 32, 64)
}


@cache
def magnitudes(name):
    """Return the values of the codes 0 to `largest`, and of the code above as if it were the next number."""
    f = FORMATS[name]
    codes = np.arange(f.largest + 2)
    exponent, mantissa = codes >> f.mantissa_bits, codes & ((1 << f.mantissa_bits) - 1)
    if not f.signed:
        return np.ldexp(1.0, codes - f.bias)  # float8_e8m0fnu has no subnormal numbers and no zero
    hidden = np.where(exponent == 0, 0, 1 << f.mantissa_bits)
    return np.ldexp((hidden + mantissa).astype(np.float64), np.maximum(exponent, 1) - f.bias - f.mantissa_bits)


def nearest_code(x, name):
    """Return the code nearest to the positive float64 numbers x, ties to the even code, and `largest` + 1 beyond."""
    values = magnitudes(name)
    middles = (values[1:] + values[:-1]) / 2
    code = np.searchsorted(middles, x)  # the number of middles below x
    tie = middles[np.minimum(code, len(middles) - 1)] == x
    up = True if name == "float8_e8m0fnu" else code % 2 == 1
    return code + (tie & up & (code < len(middles)))


def to_float(x, name, saturate=False):
    """Return the codes of the float64 numbers x (rounded to odd if they were not exact) in a narrow float type."""
    f = FORMATS[name]
    x = np.asarray(x, np.float64)
    negative, size, invalid = np.signbit(x), np.abs(x), np.isnan(x)
    if not f.signed:
        invalid, negative = invalid | negative | (x == 0), np.zeros_like(negative)
    code = nearest_code(np.where(invalid, 1.0, size), name)
    beyond = f.largest if saturate or f.nan is None else f.largest + 1 if f.infinity else f.nan
    code = np.where(code > f.largest, beyond, code)
    code = np.where(invalid, 0 if f.nan is None else f.nan, code)
    if f.signed and f.signed_zero:
        code = code | np.where(negative, f.sign, 0)
    elif f.signed:
        code = code | np.where(negative & (code != 0), f.sign, 0)
    return code


def to_integer(x, name, saturate=False):
    """Return the values of x (floats or integers) in an integer type."""
    bits, signed = INTEGERS[name]
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    flat = [0 if v != v else low if v < low else high if v > high else int(v) for v in x.ravel().tolist()]
    if not saturate:
        flat = [((int(v) - low) % (1 << bits)) + low for v in x.ravel().tolist()]
    return np.array(flat, np.int64 if signed else np.uint64).reshape(x.shape)


def exact(x):
    """Return x as float64: exact, but 64-bit integers are rounded to odd."""
    if x.dtype.kind not in "iu" or x.itemsize < 8:
        return x.astype(np.float64)
    high = x >> 32
    return add_to_odd(high.astype(np.float64) * 2.0**32, (x - (high << 32)).astype(np.float64))


def cast(x, name, saturate=False):
    """Return the values of x, floats or integers, in type `name`: float32 values, or int64 and uint64 for integers."""
    x = np.asarray(x)
    if name in INTEGERS:
        return to_integer(x, name, saturate)
    if name == "float64":
        return x.astype(np.float64)
    if name == "float32":
        y = exact(x).astype(np.float32)
        largest = np.finfo(np.float32).max
        return np.clip(y, -largest, largest) if saturate else y
    return decode(to_float(exact(x), name, saturate), name)


def rounded(x, name):
    """Return float32 values rounded to type `name`."""
    return np.asarray(x, np.float32) if name == "float32" else cast(x, name)


def decode(codes, name):
    """Return the float32 values of codes."""
    f = FORMATS[name]
    size = codes & (f.sign - 1) if f.signed else codes
    value = magnitudes(name)[np.minimum(size, f.largest)].astype(np.float32)
    if f.infinity:
        value = np.where(size == f.largest + 1, np.float32(np.inf), value)
    value = np.where(size > f.largest + f.infinity, np.float32(np.nan), value)
    if not f.signed_zero:
        value = np.where(codes == f.nan, np.float32(np.nan), value)
    return np.where(codes & f.sign != 0, -value, value) if f.signed else value


def codes(x, name):
    """Return the bits of values x in type `name`, as unsigned integers; NaN has one code for each sign."""
    if name in INTEGERS:
        return np.asarray(x).astype(np.int64) & ((1 << INTEGERS[name][0]) - 1)
    if name in ("float32", "float64"):
        x = np.asarray(x, name)
        return np.where(np.isnan(x), np.copysign(np.array(np.nan, x.dtype), x), x).view(f"u{x.itemsize}")
    return to_float(x, name)
