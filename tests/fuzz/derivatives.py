"""Compare gradients of the public operations with those in float64, for all shapes, sets and threads.

Every row of :data:`fuzz.operations.OPERATIONS` is drawn, or UNGRADED has the reason why not.
"""

import itertools

import numpy as np
from gradients import by_rules
from oracles import assert_same_bits

import mp_core as mp
from fuzz.check import near, on_isa
from fuzz.integers import INTEGERS
from fuzz.operations import COMPARISONS, OPERATIONS
from mp_core import ops
from mp_core.core import cpu
from mp_core.plans import UnseenError

__all__ = ["DIFFERENTIABLE", "UNGRADED", "run"]

UNGRADED = {
    **dict.fromkeys(COMPARISONS, "gives truth values"),
    **dict.fromkeys(("stop_gradient", "ones_like", "zeros_like"), "its result does not depend on its operand"),
    **dict.fromkeys(("quantize", "dequantize", "qlinear_matmul"), "has codes, which have no gradient"),
    **dict.fromkeys(("argmax", "argmin"), "gives places"),
    **dict.fromkeys(("ceil", "floor", "round", "sign"), "has steps: no gradient passes"),
    **dict.fromkeys(INTEGERS, "draws integers; tests/test_indexing.py compares the gradients of floats"),
    "token_places": "has integers",
    "pack": 'gives no array: "matmul" draws packed operands',
}
"""Operations without a gradient, and why."""

DIFFERENTIABLE = [name for name in OPERATIONS if name not in UNGRADED]


# ---- what takes no float64, by operations that do


def matmul(a, b, **options):
    return mp.matmul(a, b, **options)


def _parts(x, offsets):
    return ops.split(x, [int(end) for end in offsets[1:-1]], axis=0)


def ragged_attention(q, k, v, offsets, softcap):
    each = zip(*(_parts(x, offsets) for x in (q, k, v)), strict=True)
    attended = [ops.dot_product_attention(*(ops.expand_dims(x, 0) for x in part), softcap=softcap) for part in each]
    return ops.squeeze(ops.concatenate(attended, axis=1), 0)


def _largest(part):
    """Return the largest of each column; of several, the first one has the whole gradient, as in ragged_pool."""
    places = np.arange(len(part)).reshape(-1, 1)
    chosen = ops.equal(places, ops.argmax(part, axis=0, keepdims=True))
    return ops.sum(ops.where(chosen, part, 0.0), axis=0, keepdims=True)


def ragged_pool(x, offsets, pooling):
    how = {
        "mean": lambda part: ops.mean(part, axis=0, keepdims=True),
        "max": _largest,
        "cls": lambda part: ops.split(part, [1], axis=0)[0] if len(part) > 1 else part,
    }[pooling]
    return ops.concatenate([how(part) for part in _parts(x, offsets)], axis=0)


def ragged_rotary(x, angles, offsets, few=0):
    lengths = [end - begin for begin, end in itertools.pairwise(offsets)]
    places = np.concatenate([np.arange(length) + (few if length > few else 0) for length in lengths])
    return ops.squeeze(ops.rotary(ops.expand_dims(x, 0), angles[places]), 0)


IN_FLOAT64 = {function.__name__: function for function in (matmul, ragged_attention, ragged_pool, ragged_rotary)}
UNSEEN = {
    "matmul": "packs while it is recorded, in some cases",
    "matmul by codes": "has codes that are not packed, in some cases",
    "dot_product_attention": "joins a mask and causality while it is recorded, if targets and sources are not as many",
}
"""Operations that a recording refuses in some cases, and which."""
FIRST_ONLY = ("rotary", "ragged_rotary")  # their angles are constants
LARGEST = np.finfo(np.float32).max
STRETCHED = ("multiply", "divide")
"""Operations whose gradients are sums of terms of any sign, where an operand is stretched: such sums may cancel."""


# ---- a case


def _varied(name, case):
    """Return the places of the operands by which a case is differentiated."""
    places = [i for i, x in enumerate(case.arrays) if mp.dtypes.is_float(x.dtype)]
    return places[:1] if name in FIRST_ONLY else places


def _errors(name, function, exact, arrays):
    """Return how far each gradient in float32 may be from the one in float64."""
    terms = [0.0] * len(exact)
    if name in STRETCHED:  # of absolute values, no term cancels another
        terms = by_rules(function, *(np.abs(x).astype(np.float64) for x in arrays))
    return [_error(name, each, arrays) + 1e-6 * np.abs(size) for each, size in zip(exact, terms, strict=True)]


def _error(name, exact, arrays):
    size = np.abs(exact)
    error = 1e-4 * (size + size[np.isfinite(size)].max(initial=0)) + 1e-5
    if name == "normalize":  # terms as large as the inverse of a norm cancel
        error += 1e-6 / np.abs(arrays[0][arrays[0] != 0]).min(initial=1)
    return error


def run(_memory, rng):
    """Hold the gradients of one call to those in float64, and to the bits of the portable set."""
    name = str(rng.choice(DIFFERENTIABLE))
    case = OPERATIONS[name](rng)
    places = _varied(name, case)
    arrays = [case.arrays[i].astype(np.float32) for i in places]
    if not all(x.size and np.isfinite(x).all() for x in arrays):
        return

    def called(function, given):
        operands = dict(zip(places, given, strict=True))
        return function(*(operands.get(i, x) for i, x in enumerate(case.arrays)), **case.options)

    result = called(case.function, arrays)
    if result.size == 0 or "float8" in result.dtype.name:  # which no weights of a sum multiply
        return
    isa, threads = str(rng.choice(cpu.available_isas())), int(rng.integers(1, 4))
    with np.errstate(all="ignore"):
        try:
            expected = by_rules(
                lambda *given: called(IN_FLOAT64.get(name, case.function), given),
                *(x.astype(np.float64) for x in arrays),
            )
            with on_isa(isa), mp.config.num_threads(threads):
                found = by_rules(lambda *given: called(case.function, given), *arrays)
        except UnseenError:
            if name not in UNSEEN:
                raise
            return
        with on_isa("scalar"), mp.config.num_threads(1):
            plain = by_rules(lambda *given: called(case.function, given), *arrays)
        if any((np.abs(exact) > LARGEST).any() for exact in expected):
            return  # a term overflows float32: infinity, or NaN if it is multiplied by zero
        errors = _errors(name, case.function, expected, arrays)
    for gradient, same, exact, error in zip(found, plain, expected, errors, strict=True):
        assert_same_bits(gradient, same)
        near(gradient, exact, error)
