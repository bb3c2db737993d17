"""Functions of elements in ops: accuracy in ULP, special values, the same bits everywhere, plans."""

import ml_dtypes
import numpy as np
import pytest
from oracles import NARROW, assert_same_bits, codes, values

import mp_core as mp
from mp_core import ops
from mp_core.arrays.recorded import UnseenError
from mp_core.core import cpu

F32 = np.float32
POWERS = (2, 3, -1, -2, 0.5, 1.5, 2.2, 1 / 3, -0.75, 7, 1)
FUNCTIONS = {"log": (ops.log, np.log, 1), "log1p": (ops.log1p, np.log1p, 1)} | {
    f"power {p:.3g}": (
        lambda x, p=p: ops.power(x, p),
        lambda x, p=p: np.power(x, np.full_like(x, F32(p))),  # by a number, 0.5 is a root, which is another function
        1.4,
    )
    for p in POWERS
}
"""Name -> function, its formula in float64, the bound of docs/numerics.md in ULP."""


def float32_numbers(step):
    """Every `step`-th float32 by code, both infinities and NaN among them, and all numbers of 16 bits."""
    narrow = (codes(dtype).astype(F32) for dtype in ("float16", "bfloat16"))
    return np.concatenate([np.arange(0, 2**32, step, dtype=np.uint32).view(F32), *narrow])


def assert_error_in_ulp(name, x):
    function, formula, bound = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        exact = formula(x.astype(np.float64))
        nearest = exact.astype(F32)
    found, finite = function(x), np.isfinite(nearest)
    assert_same_bits(found[~finite], nearest[~finite])
    spacing = 2.0 ** (np.maximum(np.frexp(exact[finite])[1], -125) - 24)
    assert (np.abs(found[finite] - exact[finite]) / spacing).max(initial=0) <= bound


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_in_ulp(isa, name):
    assert_error_in_ulp(name, float32_numbers(262_139))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_in_ulp_on_every_257th_float32(name):
    for part in np.array_split(float32_numbers(257), 16):
        assert_error_in_ulp(name, part)


def test_powers_of_many_bases_and_exponents(isa, rng):
    for low, high, most in ((1e-30, 1e30, 30), (0.5, 2, 600), (1e-44, 1e-38, 30)):
        x = np.exp(rng.uniform(np.log(low), np.log(high), 2000)).astype(F32)
        for p in rng.uniform(-most, most, 20).astype(F32):
            with np.errstate(all="ignore"):
                exact = x.astype(np.float64) ** float(p)
                nearest = exact.astype(F32)
            found, finite = ops.power(x, float(p)), np.isfinite(nearest)
            np.testing.assert_array_equal(found[~finite], nearest[~finite])
            found, exact = found[finite], exact[finite]
            spacing = 2.0 ** (np.maximum(np.frexp(exact)[1], -125) - 24)
            assert (np.abs(found - exact) / spacing).max(initial=0) <= 1.4


def test_ends():
    x = F32([0, -0.0, 1, -1, np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(ops.log(x), [-np.inf, -np.inf, 0, np.nan, np.inf, np.nan, np.nan])
    np.testing.assert_array_equal(ops.log1p(x)[[0, 3, 4, 5, 6]], [0, -np.inf, np.inf, np.nan, np.nan])
    assert np.signbit(ops.log1p(F32([-0.0])))
    np.testing.assert_array_equal(ops.power(x, 0), np.ones(7))
    np.testing.assert_array_equal(ops.power(x, 3), [0, -0.0, 1, -1, np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(ops.power(x, -2), [np.inf, np.inf, 1, 1, 0, 0, np.nan])
    np.testing.assert_array_equal(ops.power(x, 0.5), [0, 0, 1, np.nan, np.inf, np.inf, np.nan])
    np.testing.assert_array_equal(ops.power(F32([-2, -3]), 2.0**25 + 4), [np.inf, np.inf])


@pytest.mark.parametrize("dtype", ["float64", "float32", *NARROW])
def test_types_shapes_and_plans(dtype, rng):
    x, y = np.abs(values(rng, (3, 700), dtype, 1)), values(rng, (700,), dtype, 1)
    functions = [
        (ops.log, np.log, (x,)), (ops.log1p, np.log1p, (x,)), (ops.exp, np.exp, (y,)), (ops.sqrt, np.sqrt, (x,)),
        (ops.square, np.square, (y,)), (ops.absolute, np.abs, (y,)), (ops.negative, np.negative, (y,)),
        (ops.subtract, np.subtract, (x, y)), (ops.divide, np.divide, (y, x)), (ops.maximum, np.maximum, (x, y)),
        (ops.minimum, np.minimum, (x, y)), (lambda x: ops.power(x, 1.5), lambda x: x**1.5, (x,)),
        (ops.softplus, lambda x: np.log1p(np.exp(x)), (y,)),
    ]  # fmt: skip
    for function, formula, arrays in functions:
        found = function(*arrays)
        with np.errstate(all="ignore"):
            exact = formula(*(a.astype(np.float64) for a in arrays))
            expected = mp.cast(exact.astype(F32) if dtype != "float64" else exact, dtype)
        assert found.dtype == x.dtype
        eps = float(mp.dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=2 * eps + 1e-14,
                                   atol=float(mp.dtypes.finfo(dtype).smallest_subnormal))  # fmt: skip
        if dtype in ("float32", "float16", "bfloat16"):
            plan = mp.compile(function, *(np.ones_like(a) for a in arrays))
            for threads in (1, 3):
                with mp.config.num_threads(threads):
                    assert_same_bits(plan(*arrays), found)
    assert_same_bits(ops.log(x[:, ::-2]), ops.log(x)[:, ::-2])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_set_gives_the_same_bits(name, rng):
    x, before = float32_numbers(1_000_003), cpu.isa()
    found = []
    for isa in cpu.available_isas():
        cpu.set_isa(isa)
        found.append(FUNCTIONS[name][0](x))
    cpu.set_isa(before)
    for other in found[1:]:
        assert_same_bits(other, found[0])


def test_choices_clips_and_lengths(rng):
    x = rng.standard_normal((4, 5)).astype(F32)
    np.testing.assert_array_equal(ops.where(x > 0, x, 0), np.maximum(x, 0))
    np.testing.assert_array_equal(ops.where([[1], [0], [1], [0]], 1.0, x)[1], x[1])
    np.testing.assert_array_equal(ops.clip(x, -0.5, 0.5), np.clip(x, -0.5, 0.5))
    np.testing.assert_allclose(ops.normalize(x), x / np.linalg.norm(x, axis=-1, keepdims=True), rtol=1e-6)
    np.testing.assert_array_equal(ops.normalize(np.zeros((2, 3), "bfloat16"), 0).astype(F32), np.zeros((2, 3)))
    plan = mp.compile(lambda x: ops.normalize(ops.where(x > 0, x, ops.clip(x, -1, 1))), x)
    assert_same_bits(plan(-x), ops.normalize(ops.where(-x > 0, -x, ops.clip(-x, -1, 1))))


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), [1]])
@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 7, 2), (6, 1, 9)])
def test_largest_and_smallest_along_axes(axis, shape, rng):
    x = rng.standard_normal(shape).astype(F32)
    where = tuple(axis) if isinstance(axis, list) else axis
    for function, formula in ((ops.max, np.max), (ops.min, np.min)):
        for keepdims in (False, True):
            expected = formula(x, where, keepdims=keepdims)
            np.testing.assert_array_equal(function(x, axis, keepdims=keepdims), expected)
            plan = mp.compile(lambda x, f=function, k=keepdims: f(x, axis, keepdims=k), x)
            np.testing.assert_array_equal(plan(-x), formula(-x, where, keepdims=keepdims))
    x.reshape(-1)[1] = np.nan
    assert np.isnan(ops.max(x)) and np.isnan(ops.min(x))


@pytest.mark.parametrize("function", [ops.max, ops.min])
def test_an_extreme_has_the_bits_of_a_plan_where_there_are_nan(function):
    x = np.where(np.arange(24).reshape(4, 6) % 5 == 0, -np.float32(np.nan), np.arange(24).reshape(4, 6)).astype(F32)
    x[2, 3] = np.nan
    for dtype in (F32, np.float16, ml_dtypes.bfloat16):
        for axis in (None, 0, 1):
            plan = mp.compile(lambda x, axis=axis: function(x, axis), np.ones((4, 6), dtype))
            assert_same_bits(plan(x.astype(dtype)), function(x.astype(dtype), axis))


def test_results_without_axes_are_operands(rng):
    x = rng.standard_normal((3, 4)).astype(F32)

    def loss(x):
        total = ops.mean(ops.square(x))
        return ops.log(ops.add(ops.multiply(total, 2.0), ops.power(total, 0.5)))

    assert_same_bits(mp.compile(loss, x)(-x), loss(-x))


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: ops.power(np.ones(3, F32), np.inf), ValueError, "`exponent` must be finite"),
    (lambda: ops.power(np.ones(3, F32), "2"), ValueError, "`exponent` must be"),
    (lambda: ops.where([0.5, 1.0], 1.0, np.ones(2, F32)), TypeError, "bool"),
    (lambda: ops.subtract(np.ones(3, F32), np.ones(2, F32)), ValueError, "broadcast"),
    (lambda: ops.where([True, False], np.ones(3, F32), np.ones(2, F32)), ValueError, "broadcast"),
    (lambda: ops.log(np.array(["a"])), TypeError, "`x`"),
    (lambda: ops.log_softmax(np.ones(3, F32), axis=1), ValueError, "`axis` must lie in"),
    (lambda: ops.max(np.ones((2, 0)), 1), ValueError, "axis 1 of `x` must have elements"),
    (lambda: ops.min(np.ones((2, 3)), 2), ValueError, "`axis` must lie in"),
    (lambda: ops.max(np.ones((1, 3)), (0, -2)), ValueError, "`axis` must not name an axis twice"),
    (lambda: ops.log_softmax(F32(1)), ValueError, "`axis` must lie in"),
])  # fmt: skip
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_numpy_functions_without_an_operation_are_refused():
    with pytest.raises(UnseenError, match=r"numpy\.cbrt "):
        mp.compile(lambda x: np.cbrt(x), np.ones(3, F32))
