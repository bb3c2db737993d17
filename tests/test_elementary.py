"""Functions of ops.elementary: every number of 16 and 8 bits, errors in float32, the same bits everywhere, plans."""

import ml_dtypes
import numpy as np
import pytest
from exact import ALPHA, ENDS, SCALE, exact
from oracles import NARROW, assert_same_bits, codes, values
from scipy import special

import mp_core as mp
from mp_core import ops
from mp_core.core import cpu
from mp_core.ops import elementary

F32 = np.float32


def _mish(x):
    n = np.exp(np.minimum(x, 40.0)) * (np.exp(np.minimum(x, 40.0)) + 2.0)
    return np.maximum(x, -1e300) * (n / (n + 2.0))


FORMULAS = {
    "expm1": np.expm1, "exp2": np.exp2, "log2": np.log2, "log10": np.log10, "sinh": np.sinh, "cosh": np.cosh,
    "erf": special.erf, "erfc": special.erfc, "sin": np.sin, "cos": np.cos, "tan": np.tan, "arctan": np.arctan,
    "arcsin": np.arcsin, "arccos": np.arccos, "arcsinh": np.arcsinh, "arccosh": np.arccosh, "arctanh": np.arctanh,
    "rsqrt": lambda x: 1.0 / np.sqrt(x), "selu": lambda x: SCALE * np.where(x < 0.0, ALPHA * np.expm1(x), x),
    "softsign": lambda x: x / (1.0 + np.abs(x)), "log_sigmoid": lambda x: -np.logaddexp(-x, 0.0), "mish": _mish,
}  # fmt: skip
"""Name -> the formula in float64."""

BOUNDS = {"expm1": 1.3, "exp2": 1.1, "log2": 1.2, "log10": 1.3}
"""Of docs/numerics.md, in ULP of float32; 1 for all others."""

FUNCTIONS = {name: mp.activations.mish if name == "mish" else getattr(ops, name) for name in FORMULAS}


def test_every_function_is_here():
    assert FUNCTIONS.keys() == {*elementary.__all__, "mish"}


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_number_of_16_and_8_bits_is_rounded_correctly(isa, name, dtype):
    x, expected = exact(name.replace("arc", "a"), dtype)
    assert_same_bits(FUNCTIONS[name](x), expected)


def float32_numbers(step):
    """Every `step`-th float32 by code, infinities and NaN among them, and all numbers of 16 bits."""
    narrow = (codes(dtype).astype(F32) for dtype in ("float16", "bfloat16"))
    return np.concatenate([np.arange(0, 2**32, step, dtype=np.uint32).view(F32), *narrow])


def assert_error_in_ulp(name, x):
    with np.errstate(all="ignore"):
        wide = FORMULAS[name](x.astype(np.float64))
        nearest = wide.astype(F32)
    found, finite = FUNCTIONS[name](x), np.isfinite(nearest) & np.isfinite(x)
    rest = ~finite & ~np.isinf(x)
    np.testing.assert_array_equal(found[rest], nearest[rest])
    spacing = 2.0 ** (np.maximum(np.frexp(wide[finite])[1], -125) - 24)
    assert (np.abs(found[finite] - wide[finite]) / spacing).max(initial=0) <= BOUNDS.get(name, 1.0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_in_float32(name):
    assert_error_in_ulp(name, float32_numbers(65_521))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_on_every_257th_float32(name):
    for part in np.array_split(float32_numbers(257), 16):
        assert_error_in_ulp(name, part)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_set_number_of_threads_and_length_gives_the_same_bits(name, rng):
    x, before = float32_numbers(1_000_003), cpu.isa()
    rng.shuffle(x)
    expected = FUNCTIONS[name](x)
    try:
        for isa in mp.config.available_isas():
            cpu.set_isa(isa)
            assert_same_bits(FUNCTIONS[name](x), expected)
    finally:
        cpu.set_isa(before)
    with mp.config.num_threads(3):
        assert_same_bits(FUNCTIONS[name](np.tile(x, 2)), np.tile(expected, 2))
    for n in (1, 15, 17, 31, 33):
        assert_same_bits(FUNCTIONS[name](x[:n]), expected[:n])
    assert_same_bits(FUNCTIONS[name](x[::-3]), expected[::-3])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_zeros_infinities_and_nan(name):
    ends = ENDS[name.replace("arc", "a")]
    x = np.array([-np.inf, -0.0, 0.0, np.inf, np.nan])
    for dtype in ("float64", "float32"):
        found, expected = FUNCTIONS[name](x.astype(dtype)), np.array([*ends, np.nan]).astype(dtype)
        np.testing.assert_allclose(found, expected, rtol=1e-15 if dtype == "float64" else 0)
        assert_same_bits(np.signbit(found[:4])[~np.isnan(found[:4])], np.signbit(expected[:4])[~np.isnan(found[:4])])
    assert np.isnan(FUNCTIONS[name](np.array([np.nan], "bfloat16")))[0]


@pytest.mark.parametrize("dtype", ["float64", "float32", *NARROW])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_types_and_plans(name, dtype, rng):
    x = np.abs(values(rng, (3, 70), dtype, 1))
    found = FUNCTIONS[name](x)
    assert found.dtype == x.dtype and found.shape == x.shape
    if dtype == "float64":
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(found, FORMULAS[name](x), rtol=1e-14)
    if dtype in ("float32", "float16", "bfloat16"):
        assert_same_bits(mp.compile(FUNCTIONS[name], np.ones_like(x))(x), found)


@pytest.mark.parametrize("name", [name for name in FORMULAS if hasattr(np, name)])
def test_plans_record_functions_of_numpy(name, rng):
    x = np.abs(rng.standard_normal((3, 7), F32))
    with np.errstate(divide="ignore"):  # of the example
        plan = mp.compile(lambda x: getattr(np, name)(x), np.ones_like(x))
    assert_same_bits(plan(x), FUNCTIONS[name](x))


def test_integers_become_float32():
    assert_same_bits(ops.sin([0, 1, 10**9]), ops.sin(F32([0, 1, 10**9])))
    assert ops.erf(np.arange(3, dtype=np.uint8)).dtype == F32


def test_results_that_are_exact_stay_exact():
    assert_same_bits(ops.exp2(np.arange(-149, 128, dtype=F32)), F32(2.0) ** np.arange(-149, 128, dtype=F32))
    assert_same_bits(ops.log2(F32(2.0) ** np.arange(-149, 128, dtype=F32)), np.arange(-149, 128, dtype=F32))
    assert_same_bits(ops.log10(F32([1, 10, 100, 1000, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10])), np.arange(11, dtype=F32))
    large = F32([30, 1e3, 3e38])
    assert_same_bits(ops.erf(large), F32([1, 1, 1]))
    assert_same_bits(ops.expm1(-large), F32([-1, -1, -1]))


def test_no_function_takes_other_things():
    for function in (ops.sin, ops.erf, ops.selu):
        with pytest.raises(TypeError, match="`x`"):
            function(np.array(["a"]))
    assert ops.cos(np.zeros((0, 3), ml_dtypes.bfloat16)).shape == (0, 3)
