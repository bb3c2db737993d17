"""Arithmetic of arrays in a plan: the bits of NumPy and ml_dtypes, for any shapes, strides and values."""

import ml_dtypes
import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core import ops
from mp_core.autocast import AutoCastVariable

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
UNARY = (np.negative, np.absolute, np.square, np.sqrt)
BINARY = (np.add, np.subtract, np.multiply, np.divide, np.maximum, np.minimum)
COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)
SHAPES = [((5, 7), (5, 7)), ((3, 4, 9), (9,)), ((3, 1, 9), (4, 1)), ((9,), ()), ((), ()), ((2, 5000), (2, 1)),
          ((1, 1), (1,)), ((0, 3), (3,)), ((2, 3, 4, 5), (3, 1, 5))]  # fmt: skip


def values(rng, shape, dtype):
    """Numbers of all sizes, and the special ones."""
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 12, shape)
    flat = np.atleast_1d(x).reshape(-1)
    special = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, -6e-8, 6e4, 3e38]
    flat[: len(special)] = special[: flat.size]
    with np.errstate(over="ignore"):
        return rng.permutation(flat).reshape(shape).astype(dtype)


def same(function, *arrays):
    """A plan of the function has the bits of NumPy, except for the payload of NaN and the sign of a zero."""
    with np.errstate(all="ignore"):
        plan, expected = mp.compile(function, *(np.ones_like(x) for x in arrays)), function(*arrays)
    for threads in (1, 3):
        with mp.config.num_threads(threads):
            found = plan(*arrays)
            assert found.dtype == expected.dtype
            assert found.shape == expected.shape
            np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", SHAPES)
def test_operators_have_the_bits_of_numpy(isa, dtype, shapes, rng):
    x, y = (values(rng, shape, dtype) for shape in shapes)
    for function in (*BINARY, *COMPARISONS):
        same(function, x, y)
        same(lambda x, function=function: function(x, y), x)
        same(lambda y, function=function: function(x, y), y)
    for function in UNARY:
        same(function, x)
    same(lambda x, y: np.where(x > y, x, y), x, y)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides(dtype, rng):
    x = values(rng, (6, 4, 10), dtype)
    for view in (lambda x: x[::-1], lambda x: x[..., ::-3], lambda x: x.transpose(2, 0, 1), lambda x: x[:, :1],
                 lambda x: np.broadcast_to(x[:1], (6, 4, 10)), lambda x: x[1:2, :, 3:4], lambda x: x.T):  # fmt: skip
        same(lambda x, view=view: view(x) * view(x) - view(x), x)
        same(lambda x, view=view: np.where(view(x) < 0, -view(x), abs(view(x))), x)
    narrow = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(dtype).reshape(x.shape)
    same(lambda x: x + narrow, x)


def test_operators_of_python_are_those_of_numpy(rng):
    x = values(rng, (4, 5), np.float32)
    for function in (
        lambda x: 1 - x, lambda x: 2 / x, lambda x: x / 3, lambda x: -x + abs(x), lambda x: x**2, lambda x: 0.1 * x,
        lambda x: np.float32(0.1) * x, lambda x: np.ones(5, np.float16) + x, lambda x: x * np.arange(5, dtype=np.int8),
        lambda x: True + x, lambda x: x >= 0, lambda x: x != 1, lambda x: x == 0,
        lambda x: np.where(x <= 1, x, 0), lambda x: np.where(np.arange(5) > 2, 1.5, x),
    ):  # fmt: skip
        same(function, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_have_the_type_that_numpy_gives_them(dtype, rng):
    x = values(rng, (4, 5), dtype)
    for number in (2, 0.3, True, np.float32(0.3), np.float16(0.3)):
        same(lambda x, number=number: x * number, x)
        same(lambda x, number=number: number - x, x)


def test_types_that_meet_give_what_numpy_gives(rng):
    x, y, z = (values(rng, (3, 5), dtype) for dtype in DTYPES)
    same(lambda x, y: x + y, x, y)
    same(lambda x, z: x - z, x, z)
    same(lambda x, y: np.where(x > 0, y, x), x, y)


def test_results_without_axes_are_operands(rng):
    x = rng.standard_normal((40, 7)).astype(np.float32)

    def loss(x):
        total = mp.mean((x - mp.mean(x, 0)) ** 2)
        return total * 2 + mp.sum(x) / total

    same(loss, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "axis"), [
    ((5, 70), 1), ((5, 70), 0), ((5, 70), None), ((3, 4, 5), (0, 2)), ((3, 4, 5), 1), ((3, 9000), 1), ((9000, 3), 0),
    ((2, 3, 9000), (0, 2)), ((7,), 0), ((4, 0), 1), ((2, 1, 5000), (1, 2)), ((40000,), 0)])  # fmt: skip
def test_sums_and_means_are_operations(isa, dtype, shape, axis, rng):
    x = rng.standard_normal(shape).astype(dtype)
    for function in (mp.sum, mp.mean):
        for options in ({}, {"keepdims": True}, {"out_dtype": "float32"}):
            same(lambda x, f=function, options=options: f(x, axis, **options), x)
    if len(shape) == 2:
        same(lambda x: mp.sum(x[::-1, ::2].T, 0), x)


def test_a_variable_is_an_operand():
    scale = AutoCastVariable(np.arange(3, dtype=np.float32))
    x = np.ones((2, 3), np.float32)
    same(lambda x: x * scale, x)
    same(lambda x: scale - x, x)


def test_concatenation_and_padding_are_operations(rng):
    x, y = values(rng, (2, 3, 4), np.float16), values(rng, (2, 5, 4), np.float16)
    plan = mp.compile(lambda x, y: ops.elementwise.concatenated(x, y[:, ::-2], axis=1), x, y)
    np.testing.assert_array_equal(plan(x, y), np.concatenate([x, y[:, ::-2]], axis=1))
    widths = [(1, 0), (0, 2), (3, 1)]
    for value in (0.0, -0.0, -np.inf, 2.5):
        plan = mp.compile(lambda x, value=value: ops.pad(x, widths, value), x)
        np.testing.assert_array_equal(plan(x), np.pad(x, widths, constant_values=value))


@pytest.mark.parametrize("wrong", [
    lambda x: x + np.ones((4, 4), np.float32), lambda x: np.where(x[:, :2] > 0, x, x)])  # fmt: skip
def test_shapes_that_do_not_broadcast_are_named(wrong):
    with pytest.raises(ValueError, match="broadcast"):
        mp.compile(wrong, np.ones((2, 3), np.float32))


def test_integers_have_steps():
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert mp.compile(lambda x: x * 2, x)(x).tolist() == [[0, 2, 4], [6, 8, 10]]
    assert mp.compile(lambda x: mp.sum(x), x)(x) == 15


@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int32", "int64"])
def test_casts_of_integers_and_booleans_are_operations(isa, kind, rng):
    low, high = (0, 2) if kind == "bool" else (-(2**31), 2**31) if "int8" not in kind else (-128, 256)
    x = rng.integers(low, high, (40, 70)).astype(kind)
    for target in ("float32", "float16", "bfloat16", "float64", "int16"):
        for view in (lambda x: x, lambda x: x[::-1, 3::5], lambda x: x.T, lambda x: x[:1, :1].reshape(())):
            function = lambda x, view=view, target=target: mp.cast(view(x), target)  # noqa: E731
            plan = mp.compile(function, np.zeros_like(x))
            for threads in (1, 3):
                with mp.config.num_threads(threads):
                    assert_same_bits(plan(x), function(x))


def test_casts_of_numbers_are_operations(rng):
    x = rng.standard_normal((3, 4)).astype(np.float32)
    same(lambda x: mp.cast(mp.cast(mp.mean(x), "bfloat16"), "float32") * 2, x)


def test_a_cast_of_labels_is_computed_anew():
    labels, weights = np.array([0, 2, 1], np.int32), np.float32([1, 2, 3])
    plan = mp.compile(lambda y: mp.cast(y, "float32") * weights, labels)
    np.testing.assert_array_equal(plan(labels[::-1].copy()), labels[::-1] * weights)


@pytest.mark.parametrize("order", [">f4", ">f2", "<f4"])
def test_a_constant_in_another_byte_order_is_the_same_number(order, rng):
    constant = np.array([2.0, 3.0, 0.5], order)
    same(lambda x: x * constant, rng.standard_normal((4, 3)).astype(np.float32))


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -np.inf])
def test_padding_keeps_the_bits_of_its_value(value):
    x = np.ones((2, 3), np.float32)
    plan = mp.compile(lambda x: ops.pad(x, [(0, 0), (1, 2)], value), x)
    expected = np.pad(2 * x, [(0, 0), (1, 2)], constant_values=value)
    np.testing.assert_array_equal(plan(2 * x).view(np.uint32), expected.view(np.uint32))


def test_a_function_of_elements_has_its_number_of_operands():
    with pytest.raises(TypeError, match="add takes 2 arrays, not 1"):
        ops.elementwise.computed("add", np.ones(3, np.float32), dtype=np.dtype(np.float32))
