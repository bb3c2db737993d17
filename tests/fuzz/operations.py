"""Compare public operations with float64 formulas, for any shapes, strides, types, sets and threads; also in a plan.

A row of OPERATIONS draws a :class:`~fuzz.check.Case`. :func:`~fuzz.check.check` computes it on an instruction set, with
operands in some layout, and compares the result with the formula, with the bits of the portable set and of a plan.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
from exact import ALPHA, SCALE
from oracles import (
    ACTIVATIONS,
    FLOATS,
    exact_attention,
    exact_layer_norm,
    exact_softmax,
    gamma,
)
from scipy import special

import mp_core as mp
from fuzz.arrangements import ARRANGEMENTS
from fuzz.arrays import shape, values
from fuzz.check import UNIT, WIDE, Case, check, wide
from fuzz.integers import INTEGERS
from fuzz.products import PRODUCTS
from mp_core import ops
from mp_core.ops import piecewise

__all__ = ["COMPARISONS", "OPERATIONS", "UNDRAWN", "run"]


# ---- functions of elements


def pair(function, formula):
    """Two operands of one type that broadcast against each other."""

    def draw(rng):
        dtype, lengths = rng.choice(WIDE), shape(rng, int(rng.integers(0, 4)))
        x = values(rng, lengths, dtype, special=0.3)
        other = tuple(1 if rng.random() < 0.3 else length for length in lengths[int(rng.integers(len(lengths) + 1)) :])
        y = values(rng, other, dtype, special=0.3)
        exact = formula(wide(x), wide(y))
        return Case(function, (x, y), {}, exact, 0 if exact.dtype == np.bool_ else UNIT * np.abs(exact))

    return draw


def one(function, formula, ulps, positive=False):
    """One operand; the formula in float32 is that many units in the last place away, at most."""

    def draw(rng):
        x = values(rng, shape(rng, int(rng.integers(0, 4))), rng.choice(WIDE), special=0.3)
        x = np.abs(x) if positive else x
        exact = formula(wide(x))
        return Case(function, (x,), {}, exact, 2 * ulps * UNIT * np.abs(exact) + 2.0**-126)

    return draw


def gate(rng):
    dtype, lengths, name = rng.choice(WIDE), shape(rng, 2), str(rng.choice(sorted(ACTIVATIONS)))
    x, y = (values(rng, lengths, dtype).clip(-30, 30) for _ in range(2))
    exact = ACTIVATIONS[name](wide(x)) * wide(y)
    return Case(ops.gate, (x, y), {"activation": name}, exact, 16 * UNIT * np.abs(exact) + 2.0**-100)


def clip(rng):
    x = values(rng, shape(rng, 2), rng.choice(WIDE), special=0.3)
    low, high = sorted(float(x) for x in rng.integers(-4, 5, 2))
    return Case(ops.clip, (x,), {"low": low, "high": high}, np.clip(wide(x), low, high))


def where(rng):
    dtype, lengths = rng.choice(WIDE), shape(rng, int(rng.integers(1, 4)))
    mask, x, y = rng.random(lengths[-1:]) < 0.5, values(rng, lengths, dtype, special=0.3), values(rng, lengths, dtype)
    return Case(ops.where, (mask, x, y), {}, np.where(mask, wide(x), wide(y)))


def cast(rng):
    x = values(rng, shape(rng, int(rng.integers(0, 4))), rng.choice(("float64", *FLOATS)), special=0.3)
    return Case(mp.cast, (x,), {"dtype": str(rng.choice(FLOATS))}, wide(x))


def power(rng):
    x, exponent = (
        values(rng, shape(rng, 2), rng.choice(WIDE), special=0.3),
        float(rng.choice((-2, -1, 0, 0.5, 1, 1.5, 2, 3))),
    )
    exact = np.power(wide(x), np.full(x.shape, exponent))  # of a single 0.5, NumPy takes the square root of -inf: NaN
    return Case(ops.power, (x,), {"exponent": exponent}, exact, 8 * UNIT * np.abs(exact) + 2.0**-126)


# ---- along axes


def reduction(function, formula, bound):
    """A sum, mean or extreme over some axes."""

    def draw(rng):
        x = values(rng, shape(rng, int(rng.integers(1, 4)), empty=0), rng.choice(WIDE), special=0.2)
        axes = [axis for axis in range(x.ndim) if rng.random() < 0.6]
        options = {"axis": tuple(axes) if axes else None, "keepdims": bool(rng.integers(2))}
        exact, size = formula(wide(x), **options), np.sum(np.abs(wide(x)), **options)
        limit = bound(x.size // max(exact.size, 1))
        return Case(function, (x,), options, exact, limit * size if limit else 0)

    return draw


def place(function, formula):
    """Where the largest or the smallest element along an axis is; -0 is below +0."""

    def draw(rng):
        x = values(rng, shape(rng, int(rng.integers(1, 4)), empty=0), rng.choice(WIDE), special=0.2)
        axis = int(rng.integers(-x.ndim, x.ndim))
        below = np.where((x == 0) & np.signbit(x), -(2.0**-1074), wide(x))
        return Case(function, (x,), {"axis": axis}, formula(below, axis))

    return draw


def spread(function, formula, error):
    """A statistic of rows whose error follows from their largest magnitude."""

    def draw(rng):
        x = values(rng, shape(rng, int(rng.integers(1, 4)), empty=0), rng.choice(WIDE)).clip(-20, 20)
        options = {"axis": int(rng.integers(-x.ndim, x.ndim)), "keepdims": bool(rng.integers(2))}
        exact = formula(wide(x), **options)
        return Case(function, (x,), options, exact, error(exact, np.abs(wide(x)).max(initial=0)))

    return draw


def logsumexp(x, axis, keepdims):
    peak = x.max(axis, keepdims=True)
    total = np.log(np.exp(x - peak).sum(axis, keepdims=True)) + peak
    return total if keepdims else np.squeeze(total, axis)


def rows(function, formula, error):
    """Rows, normalized: formula(x, axis); error(x, exact)."""

    def draw(rng):
        x = values(rng, shape(rng, int(rng.integers(1, 4)), empty=0), rng.choice(WIDE)).clip(-20, 20)
        axis = int(rng.integers(-x.ndim, x.ndim))
        exact = formula(wide(x), axis)
        return Case(function, (x,), {"axis": axis}, exact, error(wide(x), exact, axis))

    return draw


def along_last(formula):
    def moved(x, axis):
        return np.moveaxis(formula(np.moveaxis(x, axis, -1)), -1, axis)

    return moved


def softmax_error(x, exact, axis):
    depth = np.abs(x - x.max(axis, keepdims=True))
    return exact * (1e-6 + UNIT * depth) + 2.0**-126


def log_softmax_error(x, exact, axis):
    return 1e-6 * (1 + np.abs(exact)) + 4 * UNIT * np.abs(x).max(axis, keepdims=True)


def norm_error(x, exact, axis):
    n, size = x.shape[axis], np.abs(x).max(axis, keepdims=True)
    spread = np.sqrt(x.var(axis, keepdims=True) + 1e-3)
    return 8 * gamma(min(n, 300) + 8) * (np.abs(exact) + (1 + np.abs(exact)) * size / spread * (1 + size / spread))


# ---- attention, positions, look-ups


def attention(rng):
    dtype = str(rng.choice(WIDE))
    n, targets, sources, size, width = (int(x) for x in rng.choice((1, 2, 3, 7, 16, 33), 5))
    shared, times = (int(x) for x in rng.choice((1, 2), 2))
    lengths = ((n, targets, shared * times, size), (n, sources, shared, size), (n, sources, shared, width))
    q, k, v = (values(rng, each, dtype).clip(-8, 8) for each in lengths)
    mask = rng.random((n, 1, targets, sources)) < 0.7 if rng.random() < 0.5 else None
    options = {"mask": mask, "is_causal": bool(rng.random() < 0.3), "softcap": drawn_cap(rng)}
    keep = True if mask is None else mask
    kept = keep & np.tri(targets, sources, dtype=bool) if options["is_causal"] else mask
    exact = exact_attention(q, k, v, mask=kept, softcap=options["softcap"])
    return Case(ops.dot_product_attention, (q, k, v), options, exact, attention_error(q, k, v))


def drawn_cap(rng):
    """Return what the scores of attention are capped to, if they are."""
    return float(rng.choice((0.5, 30))) if rng.random() < 0.3 else None


def sequences(rng):
    """Return where one to four sequences begin and end."""
    return np.cumsum([0, *rng.choice((1, 2, 3, 17, 33), int(rng.integers(1, 5)))]).astype(np.int32)


def ragged_attention(rng):
    """The tokens of each sequence attend to each other."""
    dtype, offsets, size = str(rng.choice(WIDE)), sequences(rng), int(rng.choice((1, 7, 16)))
    shared, times = (int(x) for x in rng.choice((1, 2), 2))
    heads = (shared * times, shared, shared)
    q, k, v = (values(rng, (int(offsets[-1]), count, size), dtype).clip(-8, 8) for count in heads)
    parts = [tuple(wide(x)[np.newaxis, begin:end] for x in (q, k, v)) for begin, end in itertools.pairwise(offsets)]
    options = {"softcap": drawn_cap(rng)}
    exact = np.concatenate([exact_attention(*part, **options)[0] for part in parts])
    return Case(ops.ragged_attention, (q, k, v, offsets), options, exact, attention_error(q, k, v))


def attention_error(q, k, v):
    scores = np.abs(wide(q)).max(initial=0) * np.abs(wide(k)).max(initial=0) * math.sqrt(q.shape[-1])
    rounding = {"float32": 0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[q.dtype.name]  # of the weights
    return np.abs(wide(v)).max(initial=0) * (2e-6 * (1 + scores) + 4 * rounding)


def turned(x, angles, places):
    """Return vectors, each turned by the angles of its place, and the sizes of the terms."""
    half = x.shape[-1] // 2
    cos, sin = (wide(part)[places, np.newaxis] for part in (angles[:, :half], angles[:, half:]))
    a, b = wide(x[..., :half]), wide(x[..., half:])
    exact = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return exact, np.concatenate([np.abs(a * cos) + np.abs(b * sin), np.abs(b * cos) + np.abs(a * sin)], axis=-1)


def drawn_angles(rng, length, half):
    turns = rng.uniform(0, 6, (length, half))
    return np.concatenate([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)


def rotary(rng):
    half, length, heads = (int(x) for x in rng.choice((1, 2, 7, 16, 33), 3))
    x, angles = values(rng, (2, length, heads, 2 * half), rng.choice(WIDE)), drawn_angles(rng, length, half)
    exact, size = turned(x, angles, np.arange(length))
    return Case(ops.rotary, (x, angles), {}, exact, 2 * UNIT * size)


def ragged_rotary(rng):
    offsets, half, heads = sequences(rng), *(int(x) for x in rng.choice((1, 2, 7, 16), 2))
    x, angles = values(rng, (int(offsets[-1]), heads, 2 * half), rng.choice(WIDE)), drawn_angles(rng, 33, half)
    few = int(rng.choice((0, 0, 3, 17)))
    angles = np.concatenate([drawn_angles(rng, few, half), angles]) if few else angles
    places = np.concatenate([np.arange(length) + (few if length > few else 0) for length in np.diff(offsets)])
    exact, size = turned(x, angles, places)
    return Case(ops.ragged_rotary, (x, angles, offsets), {"few": few}, exact, 2 * UNIT * size)


def take_rows(rng):
    table, dtype = values(rng, shape(rng, 2, empty=0), rng.choice(WIDE), special=0.3), str(rng.choice(WIDE))
    indices = rng.integers(0, len(table), shape(rng, int(rng.integers(0, 3)), most=300))
    exact = wide(table)[indices]
    return Case(ops.take_rows, (table, indices), {"dtype": mp.dtypes.parse(dtype)}, exact)


def pool(rng):
    """The mean, the largest or the first of the rows of each sequence."""
    offsets, how = sequences(rng), str(rng.choice(("mean", "max", "cls")))
    x = values(rng, (int(offsets[-1]), int(rng.choice((1, 7, 16, 33)))), rng.choice(WIDE))
    of = {"mean": lambda part: part.mean(0), "max": lambda part: part.max(0), "cls": lambda part: part[0]}[how]
    parts = [wide(x)[begin:end] for begin, end in itertools.pairwise(offsets)]
    exact = np.stack([of(part) for part in parts])
    size = np.stack([np.abs(part).max(0) for part in parts])
    return Case(ops.ragged_pool, (x, offsets), {"pooling": how}, exact, gamma(40) * size * (how == "mean"))


COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or",
               "logical_xor")  # fmt: skip
ELEMENTARY = ("expm1", "exp2", "sinh", "cosh", "sin", "cos", "tan", "arctan", "arcsin", "arccos", "arcsinh", "arccosh",
              "arctanh")  # fmt: skip
OPERATIONS: dict[str, Callable[[np.random.Generator], Case]] = {
    "add": pair(ops.add, np.add),
    "subtract": pair(ops.subtract, np.subtract),
    "multiply": pair(ops.multiply, np.multiply),
    "divide": pair(ops.divide, np.divide),
    "maximum": pair(ops.maximum, np.maximum),
    "minimum": pair(ops.minimum, np.minimum),
    "absolute": one(ops.absolute, np.abs, 0),
    "negative": one(ops.negative, np.negative, 0),
    "square": one(ops.square, np.square, 1),
    "sqrt": one(ops.sqrt, np.sqrt, 1),
    "exp": one(ops.exp, np.exp, 2),
    "log": one(ops.log, np.log, 4, positive=True),
    "log1p": one(ops.log1p, np.log1p, 4, positive=True),
    **{
        name: one(getattr(ops, name), ACTIVATIONS[name], 8) for name in ("relu", "relu6", "sigmoid", "tanh", "softplus")
    },
    **{name: one(getattr(ops, name), ACTIVATIONS[name], 16) for name in ("gelu", "silu")},
    "abs": one(ops.abs, np.abs, 0),
    "floor": one(ops.floor, np.floor, 0),
    "ceil": one(ops.ceil, np.ceil, 0),
    "round": one(ops.round, np.rint, 0),
    "sign": one(ops.sign, np.sign, 0),
    "reciprocal": one(ops.reciprocal, np.reciprocal, 1),
    "rsqrt": one(ops.rsqrt, lambda x: 1 / np.sqrt(x), 1, positive=True),
    **{name: one(getattr(ops, name), getattr(np, name), 1) for name in ELEMENTARY},
    **{name: one(getattr(ops, name), getattr(np, name), 1, positive=True) for name in ("log2", "log10")},
    "erf": one(ops.erf, special.erf, 1),
    "erfc": one(ops.erfc, special.erfc, 1),
    "selu": one(ops.selu, lambda x: SCALE * np.where(x < 0, ALPHA * np.expm1(np.minimum(x, 0)), x), 1),
    "softsign": one(ops.softsign, lambda x: np.where(np.isinf(x), np.sign(x), x / (1 + np.abs(x))), 1),
    "log_sigmoid": one(ops.log_sigmoid, lambda x: -np.logaddexp(-x, 0), 1),
    **{name: pair(getattr(ops, name), getattr(np, name)) for name in COMPARISONS},
    "logsumexp": spread(ops.logsumexp, logsumexp, lambda exact, size: 2e-6 * (1 + size)),
    "var": spread(ops.var, np.var, lambda exact, size: 1e-5 * exact + 1e-6 * size**2),
    "std": spread(ops.std, np.std, lambda exact, size: 1e-5 * exact + 2e-3 * size),
    "gate": gate,
    "clip": clip,
    "where": where,
    "cast": cast,
    "power": power,
    "sum": reduction(ops.sum, np.sum, lambda n: gamma(n + 8)),
    "mean": reduction(ops.mean, np.mean, lambda n: gamma(n + 8) / n),
    "max": reduction(ops.max, np.max, lambda n: 0),
    "min": reduction(ops.min, np.min, lambda n: 0),
    "argmax": place(ops.argmax, np.argmax),
    "argmin": place(ops.argmin, np.argmin),
    "softmax": rows(ops.softmax, exact_softmax, softmax_error),
    "log_softmax": rows(ops.log_softmax, lambda x, axis: np.log(exact_softmax(x, axis)), log_softmax_error),
    "layer_norm": rows(ops.layer_norm, along_last(lambda x: exact_layer_norm(x, 1e-3)), norm_error),
    "rms_norm": rows(
        ops.rms_norm,
        lambda x, axis: x / np.sqrt((x * x).mean(axis, keepdims=True) + 1e-6),
        lambda x, exact, axis: 3e-6 * np.abs(exact),
    ),
    "normalize": rows(
        ops.normalize,
        lambda x, axis: x / np.maximum(np.sqrt((x * x).sum(axis, keepdims=True)), 1e-6),  # the root of epsilon
        lambda x, exact, axis: 3e-6 * np.abs(exact),
    ),
    "dot_product_attention": attention,
    "ragged_attention": ragged_attention,
    "rotary": rotary,
    "ragged_rotary": ragged_rotary,
    "take_rows": take_rows,
    "ragged_pool": pool,
    **PRODUCTS,
    **ARRANGEMENTS,
    **INTEGERS,
}

UNDRAWN = {
    "PackedMatrix": 'a class: "pack" and all that multiplies packed matrices make and read it',
    "QuantizedArray": 'a class: "quantize", "dequantize" and "qlinear_matmul" make and read it',
    "shape": "returns a tuple of numbers, not an array",
    "convert_to_numpy": "returns its argument",
    "convert_to_tensor": 'returns its argument, or what "cast" returns',
    "logical_not": '"equal" with 0, of one operand',
    "true_divide": '"divide" by another name',
    "top_k": 'returns two arrays: the ends of "argsort" and "sort"',
    **dict.fromkeys(("bitwise_invert", "bitwise_not"), '"bitwise_xor" with -1'),
    **dict.fromkeys(("bitwise_left_shift", "bitwise_right_shift"), '"left_shift" and "right_shift" by other names'),
    **dict.fromkeys(("gather_nd", "slice"), 'made of "take"'),
    **dict.fromkeys(("scatter", "scatter_update", "slice_update"), 'made of "put_along_axis"'),
    **dict.fromkeys(("arange", "eye", "full", "full_like", "linspace", "ones", "zeros"), "reads no elements"),
    **dict.fromkeys(("all", "any", "isfinite", "isinf", "isnan", "one_hot"), "made of comparisons and sums"),
    **dict.fromkeys(piecewise.__all__, "made of comparisons, choices and functions, which are drawn"),
    "resize": "made of look-ups, products and sums, which are drawn",
    **dict.fromkeys(
        ("batch_normalization", "group_normalization", "local_response_normalization"),
        "made of means, sums and powers, which are drawn",
    ),
    **dict.fromkeys(
        ("dequantize_linear", "dynamic_quantize_linear", "matmul_integer", "quantize_linear"),
        "made of products and functions of elements, which are drawn",
    ),
    **dict.fromkeys(("gru", "lstm", "simple_rnn"), "made of products and gates, which are drawn"),
    **dict.fromkeys(("average_pool", "max_pool"), '"window_maxima" and "window_sums" with padding'),
    **dict.fromkeys(("dot", "norm", "tril", "triu"), "made of sums, products and choices, which are drawn"),
    **dict.fromkeys(("repeat", "roll", "tile"), "made of arrangements and look-ups, which are drawn"),
}
"""Public operations without a row, and why."""


def run(memory, rng):
    """Check one case of a row."""
    memory.again()
    with np.errstate(all="ignore"):
        check(OPERATIONS[str(rng.choice(list(OPERATIONS)))](rng), memory, rng)
