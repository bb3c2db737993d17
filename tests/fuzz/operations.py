"""Public operations beside formulas in float64, whatever shapes, strides, types, sets, threads; also in a plan.

A row of OPERATIONS draws a :class:`Case`. :func:`check` computes it on an instruction set, with operands in some
layout, and holds the result to the formula, to the bits of the portable set and to those of a plan.
"""

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from gradients import by_rules
from oracles import (
    ACTIVATIONS,
    FLOATS,
    assert_same_bits,
    exact_attention,
    exact_layer_norm,
    exact_softmax,
    gamma,
    onnx_quantize,
    product_bound,
    scaled_bound,
)

import mp_core as mp
from fuzz.arrays import contiguous, shape, values
from mp_core import ops
from mp_core.core import cpu
from mp_core.plans import UnseenError

__all__ = ["DIFFERENTIABLE", "OPERATIONS", "Case", "check", "near", "run", "run_gradients"]

WIDE = ("float32", "float16", "bfloat16")
UNIT = 2.0**-24  # half a unit in the last place of float32, relative


class Case(NamedTuple):
    """A call ``function(*arrays, **options)``, what it gives in float64, and how far from that it may be.

    Rounding to the type of the result comes on top. Without `exact`, only bits are compared. `out`: the operation takes
    the array of the result.
    """

    function: Callable[..., np.ndarray]
    arrays: tuple[np.ndarray, ...]
    options: dict[str, Any]
    exact: np.ndarray | None
    error: Any = 0.0
    out: bool = False


def wide(x):
    return x.astype(np.float64)


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


def moved(function, formula, draw_options):
    """The elements of an array in other places."""

    def draw(rng):
        x = values(rng, shape(rng, int(rng.integers(1, 4))), rng.choice(WIDE), special=0.3)
        options = draw_options(rng, x.ndim)
        return Case(function, (x,), options, formula(wide(x), **options))

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


# ---- products


def product(rng):
    """A matrix product with some of: packed B, bias, activation, residual, batch."""
    dtype = str(rng.choice(FLOATS))
    m, k, n = (int(x) for x in rng.choice((1, 2, 3, 5, 7, 13, 16, 17, 33, 64, 65, 130), 3))
    batch = (2,) if rng.random() < 0.2 else ()
    a, b = values(rng, (*batch, m, k), dtype), values(rng, (*batch, k, n), dtype)
    exact, bound = wide(a) @ wide(b), product_bound(a, b, dtype, "float32")
    options, packs = {"out_dtype": "float32"}, rng.random() < 0.4
    if rng.random() < 0.3:
        options["bias"] = rng.standard_normal(n).astype(np.float32)
        bound, exact = bound + UNIT * (np.abs(exact) + bound + 2 * np.abs(options["bias"])), exact + options["bias"]
    if rng.random() < 0.3:
        options["activation"] = "relu"
        exact = np.maximum(exact, 0)

    def multiply(a, b, **options):
        return mp.matmul(a, mp.pack(b) if packs else b, **options)

    return Case(multiply, (a, b), options, exact, bound, out=not packs)


def quantized(rng):
    """A float product by int8 codes, scaled by column or in groups along K."""
    dtype = str(rng.choice(WIDE))
    m, k, n = (int(x) for x in rng.choice((1, 2, 3, 7, 17, 33, 65), 3))
    group = int(rng.choice((8, 16))) if rng.random() < 0.5 else None
    k = k * group if group else k
    a, codes = values(rng, (m, k), dtype), rng.integers(-127, 128, (k, n)).astype(np.int8)
    scale = rng.uniform(0.5, 1, (k // group if group else 1, n)).astype(np.float32)
    exact = wide(a) @ (wide(codes) * np.repeat(scale, group or k, 0))
    bound = scaled_bound(a, codes, scale, dtype == "bfloat16", group).astype(np.float64)
    right = mp.QuantizedArray(codes, scale, None, (1,), group)
    right = mp.pack(right) if rng.random() < 0.5 else right
    return Case(lambda a, **out: mp.matmul(a, right, out_dtype="float32", **out), (a,), {}, exact, bound)


def dynamic(rng):
    """Rows that become int8 during the product, each by its own scale."""
    m, k, n = (int(x) for x in rng.choice((1, 2, 3, 7, 17, 33, 65, 130), 3))
    a = values(rng, (m, k), rng.choice(WIDE))
    q = mp.quantize(rng.standard_normal((k, n)), axis=1)
    packed = mp.pack(q)
    amax = np.abs(a.astype(np.float32)).max(-1, keepdims=True)
    scale = np.where(amax > 0, amax / np.float32(127), np.float32(1)).astype(np.float32)
    codes = onnx_quantize(a.astype(np.float32), scale, 0, -127, 127)
    exact = (wide(codes) @ wide(q.values)) * wide(scale) * wide(q.scale)
    return Case(lambda a: mp.dynamic_matmul(a, packed, out_dtype="float32"), (a,), {}, exact, 8 * UNIT * np.abs(exact))


# ---- attention, positions, look-ups


def attention(rng):
    dtype = str(rng.choice(WIDE))
    n, targets, sources, size, width = (int(x) for x in rng.choice((1, 2, 3, 7, 16, 33), 5))
    shared, times = (int(x) for x in rng.choice((1, 2), 2))
    lengths = ((n, targets, shared * times, size), (n, sources, shared, size), (n, sources, shared, width))
    q, k, v = (values(rng, each, dtype).clip(-8, 8) for each in lengths)
    mask = rng.random((n, 1, targets, sources)) < 0.7 if rng.random() < 0.5 else None
    exact = exact_attention(q, k, v, mask=mask)
    scores = np.abs(wide(q)).max(initial=0) * np.abs(wide(k)).max(initial=0) * math.sqrt(size)
    rounding = {"float32": 0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]  # of the weights
    error = np.abs(wide(v)).max(initial=0) * (2e-6 * (1 + scores) + 4 * rounding)
    return Case(ops.dot_product_attention, (q, k, v), {"mask": mask}, exact, error)


def rotary(rng):
    half, length, heads = (int(x) for x in rng.choice((1, 2, 7, 16, 33), 3))
    x = values(rng, (2, length, heads, 2 * half), rng.choice(WIDE))
    turns = rng.uniform(0, 6, (length, half))
    angles = np.concatenate([np.cos(turns), np.sin(turns)], axis=1).astype(np.float32)
    cos, sin = (wide(part)[:, np.newaxis] for part in (angles[:, :half], angles[:, half:]))
    a, b = wide(x[..., :half]), wide(x[..., half:])
    exact = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    size = np.concatenate([np.abs(a * cos) + np.abs(b * sin), np.abs(b * cos) + np.abs(a * sin)], axis=-1)
    return Case(ops.rotary, (x, angles), {}, exact, 2 * UNIT * size)


def take_rows(rng):
    table, dtype = values(rng, shape(rng, 2, empty=0), rng.choice(WIDE), special=0.3), str(rng.choice(WIDE))
    indices = rng.integers(0, len(table), shape(rng, int(rng.integers(0, 3)), most=300))
    exact = wide(table)[indices]
    return Case(ops.take_rows, (table, indices), {"dtype": mp.dtypes.parse(dtype)}, exact)


def pool(rng):
    """The mean, the largest or the first of the rows of each sequence."""
    lengths = rng.choice((1, 2, 3, 17, 33), int(rng.integers(1, 5)))
    offsets, how = np.cumsum([0, *lengths]).astype(np.int32), str(rng.choice(("mean", "max", "cls")))
    x = values(rng, (int(offsets[-1]), int(rng.choice((1, 7, 16, 33)))), rng.choice(WIDE))
    of = {"mean": lambda part: part.mean(0), "max": lambda part: part.max(0), "cls": lambda part: part[0]}[how]
    parts = [wide(x)[begin:end] for begin, end in itertools.pairwise(offsets)]
    exact = np.stack([of(part) for part in parts])
    size = np.stack([np.abs(part).max(0) for part in parts])
    return Case(ops.ragged_pool, (x, offsets), {"pooling": how}, exact, gamma(40) * size * (how == "mean"))


COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
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
    "reciprocal": one(ops.reciprocal, np.reciprocal, 1),
    "rsqrt": one(ops.rsqrt, lambda x: 1 / np.sqrt(x), 3, positive=True),
    **{name: pair(getattr(ops, name), getattr(np, name)) for name in COMPARISONS},
    "flip": moved(ops.flip, np.flip, lambda rng, axes: {"axis": int(rng.integers(-axes, axes))}),
    "transpose": moved(ops.transpose, np.transpose, lambda rng, axes: {"axes": tuple(map(int, rng.permutation(axes)))}),
    "swapaxes": moved(
        ops.swapaxes,
        lambda x, axis1, axis2: x.swapaxes(axis1, axis2),
        lambda rng, axes: {"axis1": int(rng.integers(axes)), "axis2": int(rng.integers(-axes, axes))},
    ),
    "logsumexp": spread(ops.logsumexp, logsumexp, lambda exact, size: 2e-6 * (1 + size)),
    "var": spread(ops.var, np.var, lambda exact, size: 1e-5 * exact + 1e-6 * size**2),
    "std": spread(ops.std, np.std, lambda exact, size: 1e-5 * exact + 2e-3 * size),
    "gate": gate,
    "clip": clip,
    "where": where,
    "cast": cast,
    "sum": reduction(ops.sum, np.sum, lambda n: gamma(n + 8)),
    "mean": reduction(ops.mean, np.mean, lambda n: gamma(n + 8) / n),
    "max": reduction(ops.max, np.max, lambda n: 0),
    "min": reduction(ops.min, np.min, lambda n: 0),
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
        lambda x, axis: x / np.maximum(np.sqrt((x * x).sum(axis, keepdims=True)), 1e-12),
        lambda x, exact, axis: 3e-6 * np.abs(exact),
    ),
    "matmul": product,
    "matmul by codes": quantized,
    "dynamic_matmul": dynamic,
    "dot_product_attention": attention,
    "rotary": rotary,
    "take_rows": take_rows,
    "ragged_pool": pool,
}


DIFFERENTIABLE = (
    *("add", "subtract", "multiply", "maximum", "minimum", "absolute", "square", "relu", "sigmoid", "tanh", "softplus"),
    *("gelu", "silu", "gate", "sum", "mean", "softmax", "log_softmax", "layer_norm", "rms_norm"),
)


# ---- one case


def near(found, exact, error):
    """Hold a result to float64: as many units of its type as one rounding takes, and the error that the case allows."""
    assert found.shape == exact.shape, (found.shape, exact.shape)
    if found.dtype == np.bool_:
        np.testing.assert_array_equal(found, exact)
        return
    limits, received = ml_dtypes.finfo(found.dtype), wide(found)
    with np.errstate(all="ignore"):
        allowed = error + np.abs(exact) * float(limits.eps) * 0.5000001 + float(limits.smallest_subnormal) / 2
        largest = float(limits.max) * (1 + float(limits.eps) / 4)
        is_huge = np.abs(exact) + allowed >= largest  # may become infinite, or NaN where a type has no infinity
        is_nan = np.isnan(exact)
        fine = np.where(is_nan, np.isnan(received), np.abs(received - exact) <= allowed) | is_huge
        fine |= np.isinf(exact) & (received == exact)
    wrong = np.argwhere(~fine)
    if len(wrong):
        place = tuple(wrong[0])
        bound = np.broadcast_to(allowed, exact.shape)[place]
        raise AssertionError(
            f"{len(wrong)} elements; the first at {place}: {received[place]} is not {exact[place]} +- {bound}"
        )


def by_plan(case, arrays):
    """Return what a plan of the call gives, or None if it cannot be recorded."""
    try:
        plan = mp.compile(lambda *given: case.function(*given, **case.options), *map(contiguous, case.arrays))
    except UnseenError:
        return None
    return plan(*arrays)


def check(case, memory, rng):
    """Compute a case on one instruction set, by some threads, in some layout; raise where it is wrong."""
    arrays = [memory.laid(rng, x) for x in case.arrays]
    isa, threads = str(rng.choice(cpu.available_isas())), int(rng.integers(1, 4))
    with _isa(isa), mp.config.num_threads(threads):
        found = case.function(*arrays, **case.options)
        planned = by_plan(case, arrays) if rng.random() < 0.2 else None
        if case.out:
            given = memory.laid(rng, np.zeros_like(found))
            assert case.function(*arrays, **case.options, out=given) is given
            assert_same_bits(given, found)
    for given, original in zip(arrays, case.arrays, strict=True):
        assert_same_bits(given, original)
    with _isa("scalar"), mp.config.num_threads(1):
        assert_same_bits(found, case.function(*map(contiguous, case.arrays), **case.options))
    if planned is not None:
        assert_same_bits(planned, found)
    if case.exact is not None:
        near(found, np.asarray(case.exact), case.error)


@contextlib.contextmanager
def _isa(name):
    before = cpu.isa()
    cpu.set_isa(name)
    try:
        yield
    finally:
        cpu.set_isa(before)


def run(memory, rng):
    """Check one case of a row."""
    memory.again()
    with np.errstate(all="ignore"):
        check(OPERATIONS[str(rng.choice(list(OPERATIONS)))](rng), memory, rng)


def run_gradients(memory, rng):
    """Hold the gradients of one call to those in float64, and to the bits of the portable set."""
    case = OPERATIONS[str(rng.choice(DIFFERENTIABLE))](rng)
    arrays = [x.astype(np.float32) if x.dtype != np.float32 else x for x in case.arrays]
    if not all(x.size and np.isfinite(x).all() for x in arrays):
        return

    def function(*given):
        return case.function(*given, **case.options)

    with np.errstate(all="ignore"):
        expected = by_rules(function, *(x.astype(np.float64) for x in arrays))
        with _isa(str(rng.choice(cpu.available_isas()))), mp.config.num_threads(int(rng.integers(1, 4))):
            found = by_rules(function, *arrays)
        with _isa("scalar"), mp.config.num_threads(1):
            plain = by_rules(function, *arrays)
        for gradient, same, exact in zip(found, plain, expected, strict=True):
            assert_same_bits(gradient, same)
            near(gradient, exact, 1e-4 * (np.abs(exact) + np.abs(exact).max()) + 1e-5)
