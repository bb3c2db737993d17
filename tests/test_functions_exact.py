"""Functions of 16-bit and 8-bit types: every number of the type gives the correctly rounded result, on every set."""

import numpy as np
import pytest
from exact import ENDS, FORMULAS, boundaries_of, exact, values_of
from oracles import NARROW, assert_same_bits, codes, exactly

import mp_core as mp
from mp_core import ops
from mp_core.layers import activations

FUNCTIONS = {
    "exp": ops.exp,
    "log": ops.log,
    "log1p": ops.log1p,
    "sqrt": ops.sqrt,
    "rsqrt": ops.rsqrt,
    "reciprocal": ops.reciprocal,
    "square": ops.square,
    "tanh": ops.tanh,
    "sigmoid": ops.sigmoid,
    "gelu": ops.gelu,
    "gelu_tanh": activations.gelu_tanh,
    "silu": ops.silu,
    "softplus": activations.softplus,
    "elu": activations.elu,
    "relu": ops.relu,
    "relu6": ops.relu6,
}
TABLES = ("gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "softplus", "exp", "log", "log1p")
EXPONENTS = (0.5, -0.5, 1 / 3, -1 / 3, 2 / 3, 0.25, 0.1, 1.5, 2.2, -0.75, 2, 3, 4, 7, -1, -2, -3)


def call(function, x):
    with np.errstate(all="ignore"):
        return function(x)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_number_of_the_type_gives_the_correctly_rounded_result(isa, name, dtype):
    x, expected = exact(name, dtype)
    assert_same_bits(call(FUNCTIONS[name], x), expected)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_powers_are_correctly_rounded(exponent, dtype):
    x, expected = exact(f"power {exponent}", dtype)
    assert_same_bits(call(lambda x: ops.power(x, exponent), x), expected)


@pytest.mark.parametrize("dtype", NARROW)
def test_powers_are_correctly_rounded_for_exponents_at_random(dtype, rng):
    for exponent in rng.uniform(-4, 4, 4).astype(np.float32).tolist():
        x, expected = exact(f"power {exponent!r}", dtype)
        assert_same_bits(call(lambda x, p=exponent: ops.power(x, p), x), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", TABLES)
def test_float64_decides_every_result_of_a_table(name, dtype):
    """No result is so close to a boundary of rounding that the error of a C library could decide; see tables.c."""
    x = exactly(codes(dtype), np.float64)
    x = x[np.isfinite(x) & (x != 0) & ~((np.abs(x) < 2.0**-60) & (name in ("gelu", "gelu_tanh", "silu")))]
    y = np.abs(values_of(FORMULAS[name], ENDS[name], x))
    boundaries = boundaries_of(dtype)
    at = np.searchsorted(boundaries, y).clip(1, boundaries.size - 1)
    for near in (boundaries[at - 1], boundaries[at]):
        assert not (np.abs(y - near) <= 2.0**-38 * near).any()


def test_tables_read_any_layout_and_write_in_place(rng):
    x = rng.standard_normal((40, 33)).astype(np.float16)
    for function in (ops.gelu, ops.log1p, ops.tanh):
        expected = function(np.ascontiguousarray(x[::2, ::-3]))
        assert_same_bits(function(x[::2, ::-3]), expected)
        assert_same_bits(function(x.T).T, function(x))
        for threads in (1, 2):
            with mp.config.num_threads(threads):
                assert_same_bits(function(np.tile(x, (200, 1)))[:40], function(x))
        plan = mp.compile(function, x)
        assert_same_bits(plan(-np.abs(x)), function(-np.abs(x)))
    expected = ops.gelu(x)
    assert ops.gelu(x, out=x) is x
    assert_same_bits(x, expected)


@pytest.mark.parametrize("dtype", ["float32", *NARROW])
def test_zeros_have_the_sign_of_the_exact_result(isa, dtype):
    x = np.array([-20, -300, -np.inf, -0.0, 0.0]).astype(dtype)
    for function in (ops.gelu, activations.gelu_tanh, ops.silu):
        found = function(x[[0, 1, 2, 3]] if dtype != "float8_e4m3fn" else x[[0, 3]])
        assert np.signbit(found.astype(np.float32)).all()
        assert not np.signbit(function(x[4:]).astype(np.float32)).any()
