"""Accuracy on the same charts as speed: errors in units in the last place (ULP) and as shares of the proved bound."""

import math
import sys
from operator import attrgetter

import numpy as np

import mp_core as mp

from .common import ISAS, PerIsa, normal

UNIT = 2.0**-24
BLOCK = {"float32": 1024, "float16": 1024, "bfloat16": 2048}


def every(step, low, high):
    """Return every `step`-th float32 number from `low` to `high` in the order of their bits, each sign from 0 on."""

    def magnitudes(near, far):
        first, last = np.array([near, max(near, far)], np.float32).view(np.uint32)
        return np.arange(first, last, step, dtype=np.uint32).view(np.float32)

    return np.concatenate([-magnitudes(max(-high, 0.0), -low), magnitudes(max(low, 0.0), high)])


def ulps(y, exact):
    """Return |y - exact| in units in the last place of float32 at `exact`."""
    return np.abs(y.astype(np.float64) - exact) / np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)


def exp(x):
    """Return e^x for x < -19.5, by softmax: with a 0 and 15 such terms, the sum of the row is exactly 1."""
    rows = np.zeros((len(x) // 15, 16), np.float32)
    rows[:, 1:] = x.reshape(-1, 15)
    return mp.softmax(rows)[:, 1:].reshape(-1)


def exact_gelu(x):
    return x * [0.5 * math.erfc(v) for v in x * -math.sqrt(0.5)]


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def gelu_tanh(x):
    return mp.gelu(x, approximate=True)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def mish(x):
    n = np.exp(x) * (np.exp(x) + 2)
    return x * (n / (n + 2))


def each(function):
    """Return a function of arrays that calls one of numbers."""
    return lambda x: np.array([function(v) for v in x.tolist()])


TINY, LARGE = 1e-45, 3.4e38  # the smallest float32 number, and almost the largest
SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772  # of selu

# Function or its name in mp_core, float64 reference, first and last argument; beyond them the result is 0, 1, infinite
# or the argument. Names, since commits lack some of the functions.
FUNCTIONS = {
    "exp": (exp, np.exp, -87.33, -19.5),
    "gelu": ("gelu", exact_gelu, -15.0, 15.0),
    "gelu_tanh": (gelu_tanh, lambda x: x * sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)), -12.0, 12.0),
    "silu": ("silu", lambda x: x * sigmoid(x), -112.0, 100.0),
    "sigmoid": ("sigmoid", sigmoid, -105.0, 100.0),
    "tanh": ("tanh", np.tanh, -12.0, 12.0),
    "softplus": ("activations.softplus", softplus, -105.0, 100.0),
    "elu": ("activations.elu", lambda x: np.where(x < 0, np.expm1(x), x), -30.0, 30.0),
    "selu": ("ops.selu", lambda x: SCALE * np.where(x < 0, ALPHA * np.expm1(x), x), -30.0, 30.0),
    "mish": ("activations.mish", mish, -110.0, 50.0),
    "softsign": ("ops.softsign", lambda x: x / (1 + np.abs(x)), -LARGE, LARGE),
    "log_sigmoid": ("ops.log_sigmoid", lambda x: -softplus(-x), -100.0, 105.0),
    "exponential": ("ops.exp", np.exp, -105.0, 88.7),
    "expm1": ("ops.expm1", np.expm1, -20.0, 88.7),
    "exp2": ("ops.exp2", np.exp2, -150.0, 127.9),
    "log": ("ops.log", np.log, TINY, LARGE),
    "log1p": ("ops.log1p", np.log1p, -0.9999999, LARGE),
    "log2": ("ops.log2", np.log2, TINY, LARGE),
    "log10": ("ops.log10", np.log10, TINY, LARGE),
    "rsqrt": ("ops.rsqrt", lambda x: 1 / np.sqrt(x), TINY, LARGE),
    "sinh": ("ops.sinh", np.sinh, -89.0, 89.0),
    "cosh": ("ops.cosh", np.cosh, -89.0, 89.0),
    "erf": ("ops.erf", each(math.erf), -4.0, 4.0),
    "erfc": ("ops.erfc", each(math.erfc), -4.0, 10.2),
    "sin": ("ops.sin", np.sin, -LARGE, LARGE),
    "cos": ("ops.cos", np.cos, -LARGE, LARGE),
    "tan": ("ops.tan", np.tan, -LARGE, LARGE),
    "arctan": ("ops.arctan", np.arctan, -LARGE, LARGE),
}


def max_ulp(name, step, low=None, high=None):
    """Return the largest error of a function and the argument where it occurs, on every `step`-th float32."""
    function, reference, first, last = FUNCTIONS[name]
    function = attrgetter(function)(mp) if isinstance(function, str) else function
    x = every(step, first if low is None else low, last if high is None else high)
    x = x[: len(x) // 15 * 15]
    errors = ulps(function(x), reference(x.astype(np.float64)))
    return float(errors.max()), float(x[errors.argmax()])


class Functions(PerIsa):
    params = (ISAS, tuple(FUNCTIONS))
    param_names = ("isa", "function")

    def track_max_ulp(self, isa, function):
        return max_ulp(function, 65521)[0]

    track_max_ulp.unit = "ULP"


def error_over_bound(dtype, k):
    """Return the largest |C - A B| / (gamma |A| |B|) of a product: 1 is the bound of docs/numerics.md."""
    a, b = normal(8, k, dtype=dtype, seed=1), normal(k, 32, dtype=dtype, seed=2)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    block = BLOCK[dtype]
    roundings = min(k, block) + math.ceil(k / block) - 1
    gamma = roundings * UNIT / (1 - roundings * UNIT)
    errors = np.abs(mp.matmul(a, b, out_dtype="float32") - wide_a @ wide_b)
    return float((errors / (gamma * (np.abs(wide_a) @ np.abs(wide_b)))).max())


class ProductError(PerIsa):
    params = (ISAS, ("float32", "float16", "bfloat16"), (64, 1024, 4096))
    param_names = ("isa", "type", "k")

    def track_error_over_bound(self, isa, dtype, k):
        return error_over_bound(dtype, k)

    track_error_over_bound.unit = "of the bound"


if __name__ == "__main__":  # [FUNCTION STEP LOW HIGH]
    chosen = [(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:5]))] if sys.argv[1:] else []
    for arguments in chosen or [(name, 257) for name in FUNCTIONS]:
        error, where = max_ulp(*arguments)
        print(f"{arguments[0]}: {error:.2f} ULP at {where!r}")
