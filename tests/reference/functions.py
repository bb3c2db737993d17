"""Functions, by docs/functions.md: float32 executes its formulas, narrower types round the exact result once."""

import functools
import math
import re
from pathlib import Path

import mpmath
import numpy as np

from .formats import cast
from .fused import add_to_odd, flushed, fma, fma_flushed, round_and_flush

PAGE = Path(__file__).parents[2] / "docs" / "functions.md"
HEXADECIMAL = re.compile(r"0x1(?:\.[0-9a-f]+)?p[+-]\d+")


def where(condition, a, b):
    """Choose between two float32 arrays."""
    return np.where(condition, np.float32(a), np.float32(b))


def polynomial(fused, x, *coefficients):
    """Return the polynomial with the highest coefficient first, by Horner's rule with the multiply-add `fused`."""
    p = coefficients[0]
    for c in coefficients[1:]:
        p = fused(p, x, c)
    return p


def power_of_2(n):
    """Return 2^n, and 0 for n <= -127."""
    whole = np.nan_to_num(n).astype(np.int32)
    return np.where(whole < -126, np.float32(0), np.ldexp(np.float32(1), whole))


def split(u):
    """Return n and f with u = 2^n (1 + f), 2/3 <= 1 + f < 4/3."""
    m, n = np.frexp(u)
    low = m < np.float32(float.fromhex("0x1.555556p-1"))
    return (n - low).astype(np.float32), np.where(low, m * 2, m) - np.float32(1)


class Flushing(np.ndarray):
    """float32 whose operations treat subnormal operands and results as zeros."""

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        """Apply `ufunc` to the flushed inputs. A quotient rounded to 53 bits and then to 24 is rounded once."""
        plain = [flushed(np.asarray(x, np.float32)) for x in inputs]
        if ufunc in (np.add, np.subtract, np.multiply, np.divide):
            wide = [x.astype(np.float64) for x in plain]
            exact_sum = ufunc in (np.add, np.subtract)
            y = add_to_odd(wide[0], wide[1] if ufunc is np.add else -wide[1]) if exact_sum else ufunc(*wide)
            return round_and_flush(y).view(Flushing)
        y = getattr(ufunc, method)(*plain, **kwargs)
        return y.view(Flushing) if isinstance(y, np.ndarray) and y.dtype == np.float32 else y


def flushing(function):
    """Let a function of the notation return arrays whose operations flush."""

    def wrapped(*args):
        y = function(*(np.asarray(x) for x in args))
        return tuple(np.asarray(x).view(Flushing) for x in y) if isinstance(y, tuple) else np.asarray(y).view(Flushing)

    return wrapped


def formulas(text, flush=False):
    """Return name -> function of the formulas on the page."""
    blocks = [block for block in re.findall(r"```text\n(.*?)```", text, re.S) if block.startswith("def ")]
    code = HEXADECIMAL.sub(lambda found: f"f32({float.fromhex(found[0])!r})", "\n".join(blocks))
    names = {
        "fma": fma_flushed if flush else fma, "where": where, "power_of_2": power_of_2, "split": split,
        "with_sign": np.copysign, "max": lambda a, x: where(x < a, a, x), "min": lambda a, x: where(x > a, a, x),
    }  # fmt: skip
    names = {name: flushing(function) if flush else function for name, function in names.items()}
    names |= {"f32": np.float32, "abs": np.abs, "rint": np.rint, "floor": np.floor, "inf": np.inf, "nan": np.nan}
    names["polynomial"] = functools.partial(polynomial, names["fma"])
    exec(code, names)
    return {name: names[name] for name in re.findall(r"^def (\w+)", code, re.M)}


def functions(flush=False):
    """Return name -> function of float32."""
    found = formulas(PAGE.read_text(), flush)
    found["relu"] = lambda x: where(x < 0, 0, x)
    found["relu6"] = lambda x: where(x > 6, 6, where(x < 0, 0, x))
    found["linear"] = lambda x: x
    return found


FLOAT32 = functions() | {"sqrt": np.sqrt}
IN_PAIRS = functions(flush=True)
"""Name -> function in the epilogue of a product in pairs: its steps flush."""


def exact(name, x, m):
    """Return a function of a finite number in the arithmetic of `m`, which is `math` or `mpmath.mp`."""
    if name in ("sigmoid", "silu"):
        s = 1 / (1 + m.exp(-x)) if x > -700 else m.exp(x)
        return s if name == "sigmoid" else x * s
    if name == "gelu":
        return x * m.erfc(-x / m.sqrt(2)) / 2
    if name == "gelu_tanh":
        w = 2 * m.sqrt(2 / m.pi) * (x + (mpmath.mpf(44715) / 10**6 if m is mpmath.mp else 0.044715) * x**3)
        return x * exact("sigmoid", w, m)
    if name == "elu":
        return x if x > 0 else m.expm1(x)
    if name == "softplus":
        return max(x, 0) + m.log1p(m.exp(-abs(x)))
    return getattr(m, {"exponential": "exp"}.get(name, name))(x)


LIMITS = {
    "sigmoid": (0, 1),
    "silu": (-0.0, np.inf),
    "gelu": (-0.0, np.inf),
    "gelu_tanh": (-0.0, np.inf),
    "elu": (-1, np.inf),
}
LIMITS |= {"softplus": (0, np.inf), "exponential": (0, np.inf), "tanh": (-1, 1), "sqrt": (np.nan, np.inf)}
LIMITS |= {"log": (np.nan, np.inf), "log1p": (np.nan, np.inf)}


def rounded_once(name, x, kind):
    """Return a function of float32 values, correctly rounded to the narrow type `kind`."""
    flat = np.empty(x.size)
    for i, v in enumerate(x.ravel().tolist()):
        pole = {"log": 0.0, "log1p": -1.0}.get(name)
        if not math.isfinite(v):
            flat[i] = v if v != v else LIMITS[name][int(v > 0)]
        elif (pole is not None and v <= pole) or (name == "sqrt" and v < 0):
            flat[i] = -np.inf if v == pole else np.nan
        elif v == 0 and name in ("silu", "gelu", "gelu_tanh", "elu", "tanh", "log1p", "sqrt"):
            flat[i] = v
        else:
            flat[i] = in_double(name, v)
    low, high = (cast(flat * (1 + side * 2.0**-40), kind) for side in (-1, 1))
    for i in np.flatnonzero((low != high) & np.isfinite(flat)):  # near a tie
        with mpmath.workprec(200):
            y = exact(name, mpmath.mpf(float(x.ravel()[i])), mpmath.mp)
            high[i] = cast(to_odd(y), kind).item()
    return high.reshape(x.shape)


def in_double(name, v):
    """Return a function in float64: its relative error is far below 2^-40."""
    try:
        return exact(name, v, math)
    except OverflowError:
        return math.inf


def to_odd(y):
    """Return a number of mpmath in float64, rounded to odd."""
    s = float(y)
    if mpmath.mpf(s) == y or np.array(s).view(np.int64) & 1:
        return np.array(s)
    return np.nextafter(s, np.inf if y > s else -np.inf)


def activate(name, x, kind="float32"):
    """Return a function of values of type `kind`, rounded to this type."""
    if kind == "float32" or name in ("relu", "relu6", "linear"):
        return FLOAT32[name](np.asarray(x, np.float32))
    return rounded_once(name, x, kind)
