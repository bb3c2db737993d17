"""Gradients of functions of elements: central differences, formulas bit for bit, sets, plans, types."""

import math

import numpy as np
import pytest
from oracles import assert_same_bits, values
from rules import assert_follows_differences, gradients
from scipy import special

import mp_core as mp
from mp_core import ops
from mp_core.arrays.products.operands import ACTIVATIONS
from mp_core.core import cpu
from mp_core.layers import activations
from mp_core.ops import elementwise
from mp_core.ops.activations import activate
from mp_core.ops.gradients.elementwise import FROM_RESULT, activation_gradient

NAMES = [name for name in ACTIVATIONS if name]
TWO = (ops.add, ops.subtract, ops.multiply, ops.divide, ops.maximum, ops.minimum)
POSITIVE = ("sqrt", "log", "log1p", "log2", "log10", "rsqrt")
ONE = (
    "negative", "absolute", "square", "expm1", "exp2", "sinh", "cosh", "erf", "erfc", "sin", "cos", "tan", "arctan",
    "selu", "softsign", "log_sigmoid", "mish", *POSITIVE,
)  # fmt: skip
F32 = np.dtype(np.float32)


def numbers(rng, *shape):
    """Away from the kinks at 0 and 6."""
    x = rng.uniform(0.2, 3, shape)
    return x * np.where(rng.random(shape) < 0.5, -1, 1)


@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 4), (4,)), ((2, 1, 3), (4, 1)), ((), (3,))])
def test_powers_quotients_and_remainders_follow_differences(shapes, rng):
    x, y = (numbers(rng, *shape) for shape in shapes)
    d = rng.standard_normal(np.broadcast_shapes(*shapes))
    assert_follows_differences(ops.power, d, np.abs(x), y)
    assert_follows_differences(ops.power, d, 1.7, y) if y.shape == d.shape else None
    assert_follows_differences(ops.mod, d, x, y)
    assert not gradients(ops.floor_divide, d, x, y)


def test_powers_have_gradients_where_bases_and_exponents_are_zero():
    """The formulas are those of JAX: no slope where the exponent is 0, none along the exponent where the base is."""
    x, p = np.float32([0, 0, 2, -2]), np.float32([0, 2, 0, 3])
    of_x, of_p = gradients(ops.power, np.ones(4, np.float32), x, p).values()
    np.testing.assert_array_equal(of_x, [0, 0, 0, 12])
    np.testing.assert_array_equal(of_p[:3], [0, 0, np.log(np.float32(2))])
    assert np.isnan(of_p[3])


@pytest.mark.parametrize("operation", TWO)
@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 4), (4,)), ((2, 1, 3), (4, 1)), ((4,), (2, 4)), ((), (3,))])
def test_two_operands_follow_differences(operation, shapes, rng):
    x, y = (numbers(rng, *shape) for shape in shapes)
    d = rng.standard_normal(np.broadcast_shapes(*shapes))
    assert_follows_differences(operation, d, x, y)
    assert_follows_differences(operation, d, x, 0.7) if x.shape == d.shape else None
    name = operation.__name__
    assert_follows_differences(elementwise.computed, d, name, x, y, dtype=np.dtype(np.float64))


@pytest.mark.parametrize("name", ONE)
def test_one_operand_follows_differences(name, rng):
    x = rng.uniform(0.2, 3, (3, 4)) if name in POSITIVE else numbers(rng, 3, 4)
    d = rng.standard_normal((3, 4))
    assert_follows_differences(ops.functions.function_of, d, name, x)
    assert_follows_differences(elementwise.computed, d, name, x, dtype=np.dtype(np.float64))


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -1, 2.2, 1, 0])
def test_powers_follow_differences(exponent, rng):
    d = rng.standard_normal(7)
    assert_follows_differences(ops.power, d, rng.uniform(0.2, 3, 7), exponent)


def test_choices_follow_differences(rng):
    mask, d = rng.random((3, 4)) < 0.5, rng.standard_normal((3, 4))
    x, y = numbers(rng, 3, 4), numbers(rng, 4)
    assert_follows_differences(ops.where, d, mask, x, y)
    assert_follows_differences(elementwise.where, d, mask, x, y, dtype=np.dtype(np.float64))


@pytest.mark.parametrize("name", NAMES)
def test_activations_and_gates_follow_differences(name, rng):
    x, d = numbers(rng, 40), rng.standard_normal(40)
    assert_follows_differences(activate, d, name, x)
    assert_follows_differences(ops.gate, d, x, numbers(rng, 40), name)


def test_a_linear_gate_is_a_product(rng):
    x, y, d = (rng.standard_normal(9) for _ in range(3))
    assert_follows_differences(ops.gate, d, x, y, "linear")


def test_ties_are_shared_and_kinks_have_no_slope():
    x, y, d = np.float32([1, 2, 3, np.nan]), np.float32([1, 3, 2, 0]), np.float32([8, 8, 8, 8])
    for operation, of_x in ((ops.maximum, [4, 0, 8, 0]), (ops.minimum, [4, 8, 0, 0])):
        found = gradients(operation, d, x, y)
        np.testing.assert_array_equal(found["x"], of_x)
        np.testing.assert_array_equal(found["y"], np.where(np.isnan(x), 0, 8 - np.float32(of_x)))
    kinks = np.float32([-1, 0, 6, 7])
    ones = np.ones(4, np.float32)
    np.testing.assert_array_equal(gradients(activate, ones, "relu", kinks)["x"], [0, 0, 1, 1])
    np.testing.assert_array_equal(gradients(activate, ones, "relu6", kinks)["x"], [0, 0, 0, 0])
    np.testing.assert_array_equal(gradients(ops.functions.function_of, ones, "absolute", kinks)["x"], [-1, 0, 1, 1])


# ---- the derivatives: float32 beside float64, to the bounds of docs/numerics.md


def gated(x, w, rise):
    return special.expit(w) * (1 + rise * special.expit(-w))


SLOPES = {
    "relu": lambda y: (y > 0) * 1.0,
    "relu6": lambda y: ((y > 0) & (y < 6)) * 1.0,
    "sigmoid": lambda y: y * (1 - y),
    "tanh": lambda y: 1 - y * y,
    "elu": lambda y: np.minimum(y, 0) + 1,
    "softplus": lambda y: -np.expm1(-y),
    "exponential": lambda y: y,
    "gelu": lambda x: special.ndtr(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "silu": lambda x: gated(x, x, x),
    "gelu_tanh": lambda x: gated(x, math.sqrt(8 / math.pi) * (x + 0.044715 * x**3),
                                 math.sqrt(8 / math.pi) * (x + 3 * 0.044715 * x**3)),
}  # fmt: skip
"""Of the argument, or of the result."""
RANGES = {"sigmoid": (0, 1), "tanh": (-1, 1), "elu": (-1, 1), "softplus": (0, 100), "exponential": (0, 1e30)}
ABSOLUTE = {"gelu": 3, "gelu_tanh": 4, "silu": 4}
"""In units of 2^-24; the others are relative: two roundings and that of the last multiplication."""


def test_every_activation_has_a_derivative():
    assert SLOPES.keys() == set(NAMES)
    assert SLOPES.keys() - ABSOLUTE.keys() == FROM_RESULT


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_are_within_their_bounds(isa, name):
    low, high = RANGES.get(name, (-30, 30))
    x = np.linspace(low, high, 200_003).astype(np.float32)
    found = activation_gradient(name, np.ones_like(x), x, np.float32).astype(np.float64)
    exact = SLOPES[name](x.astype(np.float64))
    bound = ABSOLUTE[name] * 2.0**-24 if name in ABSOLUTE else 3 * 2.0**-24 * np.abs(exact) + 2.0**-149
    assert np.all(np.abs(found - exact) <= bound)


@pytest.mark.parametrize("name", sorted(ABSOLUTE))
def test_tails_of_derivatives_keep_their_relative_precision(isa, name):
    x = np.linspace(-12 if name == "silu" else -9, -3, 100_003).astype(np.float32)
    found = activation_gradient(name, np.ones_like(x), x, np.float32)
    np.testing.assert_allclose(found, SLOPES[name](x.astype(np.float64)), rtol=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_at_the_ends(isa, name):
    x = np.float32([np.inf, -np.inf, 3e38, -3e38, np.nan])
    ones = np.ones_like(x)
    found = gradients(activate, ones, name, x)["x"]
    up = 0 if name in ("relu6", "sigmoid", "tanh") else np.inf if name == "exponential" else 1
    np.testing.assert_array_equal(found[:4], [up, 0, up, 0])
    assert found[4] == 0 if "relu" in name else np.isnan(found[4])
    np.testing.assert_array_equal(gradients(activate, ones.astype(float), name, x.astype(float))["x"][[1]], [0])


# ---- bits


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_derivatives_have_the_same_bits_everywhere(name, dtype, rng):
    d, x = values(rng, (5, 1700), dtype, 1), values(rng, (5, 1700), dtype, 3)
    before, found = cpu.isa(), []
    for isa in cpu.available_isas():
        cpu.set_isa(isa)
        for threads in (1, 3):
            with mp.config.num_threads(threads):
                found.append(activation_gradient(name, d, x, dtype))
    cpu.set_isa(before)
    for other in found[1:]:
        assert_same_bits(other, found[0])
    wide = activation_gradient(name, mp.cast(d, "float32"), mp.cast(x, "float32"), np.float32)
    assert_same_bits(found[0], mp.cast(wide, dtype))
    assert_same_bits(activation_gradient(name, d[:, ::-2], x[:, ::-2], np.float32), wide[:, ::-2])
    plan = mp.compile(lambda d, x: activation_gradient(name, d, x, F32), d, x)
    assert_same_bits(plan(d, x), wide)


def test_simple_derivatives_are_their_formulas(isa, rng):
    d, y = rng.standard_normal(999).astype(np.float32), rng.uniform(0, 1, 999).astype(np.float32)
    wide = y.astype(np.float64)
    fused = {"sigmoid": wide - wide * wide, "tanh": 1 - wide * wide}  # exact in float64, so one rounding
    for name, exact in fused.items():
        assert_same_bits(activation_gradient(name, d, y, F32), d * exact.astype(np.float32))
    assert_same_bits(activation_gradient("elu", d, -y, F32), d * (np.float32(1) - y))
    assert_same_bits(activation_gradient("exponential", d, y, F32), d * y)
    assert_same_bits(activation_gradient("softplus", d, y, F32), d * -activate("elu", -y))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rules_round_once(isa, dtype, rng):
    """Each gradient is what float32 gives for the widened arrays, rounded."""
    x, y, d = (rng.uniform(0.5, 2, 300).astype(dtype) for _ in range(3))
    wide = [mp.cast(part, "float32") for part in (x, y, d)]
    cases = [(operation, ()) for operation in TWO] + [(ops.gate, (name,)) for name in NAMES if name not in FROM_RESULT]
    for operation, more in cases:
        found = gradients(operation, d, x, y, *more)
        expected = gradients(operation, wide[2], wide[0], wide[1], *more)
        for name, gradient in found.items():
            assert_same_bits(gradient, mp.cast(expected[name], dtype))
    for name in ("negative", "absolute", "square", "log", "log1p"):
        found = gradients(ops.functions.function_of, d, name, x)["x"]
        assert_same_bits(found, mp.cast(gradients(ops.functions.function_of, wide[2], name, wide[0])["x"], dtype))
    a, b, c = wide
    assert_same_bits(gradients(ops.divide, d, x, y)["y"], mp.cast((-c / b) * (a / b), dtype))
    assert_same_bits(gradients(ops.power, d, x, 3.0)["x"], mp.cast(c * np.float32(3) * ops.power(a, 2.0), dtype))


def test_gradients_of_variables_are_not_rounded(rng):
    x, y, d = (rng.standard_normal(30).astype("bfloat16") for _ in range(3))
    for operation, more in ((ops.multiply, ()), (ops.divide, ()), (ops.gate, ("silu",))):
        found = gradients(operation, d, x, y, *more, wanted=np.float32)
        assert all(gradient.dtype == np.float32 for gradient in found.values())


@pytest.mark.parametrize("name", [
    "selu", "leaky_relu", "softsign", "hard_sigmoid", "hard_silu", "celu", "hard_tanh", "log_sigmoid", "mish",
    "soft_shrink", "squareplus", "tanh_shrink", "log_softmax"])  # fmt: skip
def test_plans_of_other_activations_are_made_of_operations_with_rules(name, rng):
    x = rng.standard_normal((3, 20)).astype(np.float32)
    function = activations.get(name)
    plan = mp.compile(function, x)
    assert_same_bits(plan(x), function(x))
