"""Integers, booleans and float64 in plans: values and types are NumPy's, for every instruction set and thread count."""

import itertools

import numpy as np
import pytest

import mp_core as mp
from mp_core import ops
from mp_core.plans import UnseenError

INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
RNG = np.random.default_rng(3)
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")  # NumPy, eagerly


def numbers(dtype, count=600):
    """Extremes, small and random numbers of a type."""
    if dtype == "bool":
        return RNG.integers(0, 2, count).astype(bool)
    if dtype in FLOATS:
        return mp.cast(RNG.standard_normal(count) * 50, dtype)
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = RNG.integers(least, most, count, dtype, endpoint=True)
    x[:6] = least, most, 0, 1, least, most
    x[6:200] = RNG.integers(0, 6, 194)
    return x


def same(function, *inputs, example=None):
    """Check that a plan gives what the function gives."""
    plan = mp.compile(function, *(inputs if example is None else example))
    expected, found = function(*inputs), plan(*inputs)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(wide(found), wide(expected))
    return found


def wide(x):
    """Return narrow floats in float32, exactly, since NumPy does not know the NaN of bfloat16."""
    return x.astype(np.float32) if x.dtype.name in FLOATS[:2] else x


def promotes(a, b):
    """Return whether two types of integers have a common one."""
    return np.result_type(a, b).kind != "f"


PAIRS = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "floor_divide": np.floor_divide, "mod": np.mod, "fmod": np.fmod, "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor, "less": np.less, "less_equal": np.less_equal,
    "greater": np.greater, "greater_equal": np.greater_equal, "equal": np.equal, "not_equal": np.not_equal,
    "left_shift": np.left_shift, "right_shift": np.right_shift,
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_two_integers_are_those_of_numpy(name):
    for a, b in itertools.product(INTEGERS, repeat=2):
        if promotes(a, b) and not (name == "subtract" and a == b == "bool"):
            x, y = numbers(a), numbers(b)
            found = same(getattr(ops, name), x, y)
            with np.errstate(all="ignore"):
                expected = PAIRS[name](x, y)
            if (a, b) == ("bool", "bool"):  # mp_core divides and shifts booleans in int32, as Keras does
                expected = expected.astype(found.dtype) if expected.dtype != found.dtype else expected
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == expected.dtype


@pytest.mark.parametrize("to", (*INTEGERS, *FLOATS))
def test_casts_between_all_types_are_those_of_calls(to):
    for dtype in (*INTEGERS, *FLOATS):
        same(lambda x: ops.cast(x, to), numbers(dtype))


def test_casts_to_integers_out_of_range_have_one_stated_result():
    x = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 2.0**63, -1e300, 1.9, -1.9])
    short, wide = -(2**31), -(2**63)
    plan = mp.compile(lambda x: (ops.cast(x, "int32"), ops.cast(x, "int64")), x)
    narrow, whole = plan(x)
    assert narrow.tolist() == [short] * 7 + [1, -1]
    assert whole.tolist() == [wide, wide, wide, 3 * 10**9, -3 * 10**9, wide, wide, 1, -1]


def test_quotients_of_integers_by_zero_are_zero_and_the_least_integer_wraps_around():
    for dtype in ("int8", "int16", "int32", "int64"):
        least = np.iinfo(dtype).min
        x, y = np.array([7, -7, least, least], dtype), np.array([0, 0, -1, 0], dtype)
        found = mp.compile(lambda x, y: (ops.floor_divide(x, y), ops.mod(x, y), ops.fmod(x, y)), x, y)(x, y)
        assert [part.tolist() for part in found] == [[0, 0, least, 0], [0] * 4, [0] * 4]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["floor_divide", "mod", "fmod"])
def test_quotients_of_floats_have_the_bits_of_numpy(name, dtype, isa):
    values = [0.0, -0.0, 1.0, -1.5, 0.1, 3.7, -1e-30, 6e4, np.inf, -np.inf, np.nan]
    x, y = (mp.cast(np.array(part), dtype) for part in zip(*itertools.product(values, repeat=2), strict=True))
    x, y = np.concatenate([x, numbers(dtype)]), np.concatenate([y, numbers(dtype)])
    found = same(getattr(ops, name), x, y)
    with np.errstate(all="ignore"):
        expected = wide(mp.cast(getattr(np, name)(wide(x), wide(y)), dtype))
    np.testing.assert_array_equal(wide(found), expected)
    finite = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(wide(found)[finite]), np.signbit(expected[finite]))


def test_int64_does_not_wrap_to_32_bits():
    x = np.array([2**40, -(2**40)])
    assert same(lambda x: x * 3 + 1, x).tolist() == [3 * 2**40 + 1, 1 - 3 * 2**40]
    plan = mp.compile(lambda x: x * 3, np.array([1, 2], np.int32))
    assert plan(np.array([5, 6])).tolist() == [15, 18]
    with pytest.raises(ValueError, match=r"must fit int32; received -1099511627776 to 1099511627776"):
        plan(x)


OF_ONE = {
    "negative": ops.negative, "absolute": ops.absolute, "square": ops.square, "sign": ops.sign,
    "invert": ops.bitwise_invert, "not": ops.logical_not, "clip": lambda x: ops.clip(x, 1, 4),
    "clip by floats": lambda x: ops.clip(x, -0.5, 3.5), "where": lambda x: ops.where(ops.greater(x, 1), x, 0),
    "power": lambda x: ops.power(x, 3), "round": ops.round, "isnan": ops.isnan,
    "and": lambda x: ops.logical_and(x, ops.less(x, 3)), "or": lambda x: ops.logical_or(x, ops.less(x, 3)),
    "xor": lambda x: ops.logical_xor(x, ops.less(x, 3)), "mean": lambda x: ops.mean(x, axis=0),
    "sum": lambda x: ops.sum(x, axis=1), "sum of all": ops.sum, "prod": lambda x: ops.prod(x, axis=0),
    "max": lambda x: ops.max(x, axis=1), "min": ops.min, "argmax": lambda x: ops.argmax(x, axis=0),
    "argmin": ops.argmin, "any": lambda x: ops.any(x, axis=1), "all": lambda x: ops.all(x, axis=0),
    "cumsum": lambda x: ops.cumsum(x, axis=1), "sort": lambda x: ops.sort(x, axis=0),
    "argsort": lambda x: ops.argsort(x, axis=1), "top_k": lambda x: ops.top_k(x, 3).values,
    "take": lambda x: ops.take(x, [2, -1], axis=1), "tile": lambda x: ops.tile(x, 2),
    "concatenate": lambda x: ops.concatenate([x, x], axis=1), "pad": lambda x: ops.pad(x, [(1, 0), (0, 2)], 0),
    "one number": lambda x: ops.add(x[0, 0], x[1, 1]), "transposed": lambda x: ops.add(ops.transpose(x), 1),
    "reversed sums": lambda x: ops.flip(ops.cumsum(ops.flip(x, 1), 1), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_ONE)
def test_operations_of_integers_have_steps(name, isa):
    for dtype in INTEGERS:
        if dtype == "bool" and name in ("negative", "sign", "one number"):
            continue
        if dtype.startswith("u") and name == "clip by floats":
            continue
        x = numbers(dtype).reshape(20, 30)[:5, :8]
        same(OF_ONE[name], x, example=(np.zeros_like(x),))


def test_operators_and_functions_of_numpy_give_the_types_of_numpy():
    x, y = numbers("int32").reshape(20, 30), numbers("int64").reshape(20, 30) | 1
    calls = [
        lambda x, y: x + y,
        lambda x, y: (x - 3) * y,
        lambda x, y: x / y,
        lambda x, y: x // y,
        lambda x, y: x % y,
        lambda x, y: x & y,
        lambda x, y: ~x | (y << 2) ^ (y >> 1),
        lambda x, y: -x,
        lambda x, y: abs(x),
        lambda x, y: x < y,
        lambda x, y: x == 3,
        lambda x, y: x * 0.5,
        lambda x, y: np.sqrt(x * x),
        lambda x, y: x.sum(axis=0),
        lambda x, y: np.argmax(y, axis=1),
        lambda x, y: np.sort(y),
        lambda x, y: np.cumsum(x, axis=0),
        lambda x, y: np.where(x > y, x, y),
        lambda x, y: x.astype(np.float64) / 3,
        lambda x, y: np.prod(x, axis=0),
        lambda x, y: np.take_along_axis(x, y % 20, 0),
        lambda x, y: np.stack([x, y]),
        lambda x, y: np.concatenate([x, np.ones((1, 30))]),
        lambda x, y: np.hstack([x, y]),
        lambda x, y: np.maximum(x, y),
        lambda x, y: np.concatenate([x, x]),
        lambda x, y: x.max(axis=1),
    ]
    for call in calls:
        with np.errstate(all="ignore"):
            same(call, x, y)


def test_float64_has_steps_for_what_ieee_754_rounds():
    x, y = numbers("float64"), numbers("float64")
    for call in (
        lambda x, y: x + y, lambda x, y: x * y - 1, lambda x, y: x / y, lambda x, y: np.sqrt(abs(x)),
        lambda x, y: ops.floor(x), lambda x, y: ops.round(x), lambda x, y: ops.ceil(x), lambda x, y: ops.sign(x),
        lambda x, y: ops.where(x > y, x, y), lambda x, y: ops.maximum(x, y), lambda x, y: ops.clip(x, -1, 1),
        lambda x, y: ops.cast(x, "bfloat16"), lambda x, y: ops.cast(ops.cast(x, "float32"), "float64"),
        lambda x, y: ops.argmax(x), lambda x, y: ops.sort(x), lambda x, y: ops.reshape(ops.square(x), (2, -1)),
    ):  # fmt: skip
        same(call, x, y)
    for call, name in ((lambda x: ops.exp(x), "exp"), (lambda x: ops.matmul(x, x), "matmul"),
                       (lambda x: ops.sum(x), "sum")):  # fmt: skip
        with pytest.raises(UnseenError, match=name if name != "exp" else "activate"):
            mp.compile(call, np.ones((3, 3)))


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint64"])
def test_places_of_extremes_and_orders_are_those_of_numpy(dtype, isa):
    x = numbers(dtype).reshape(20, 30)
    if dtype in FLOATS:
        x[0, 3:5], x[1, 2], x[2, 4:8] = np.nan, np.inf, [0.0, -0.0, 0.0, -0.0]
    exact = x.astype(np.float64) if dtype in FLOATS else x
    for axis in (0, 1):
        for name in ("argmax", "argmin"):
            found = same(lambda x, name=name, axis=axis: getattr(ops, name)(x, axis), x)
            if not (exact == 0).any() or dtype not in FLOATS:
                np.testing.assert_array_equal(found, getattr(np, name)(exact, axis))
        found = same(lambda x, axis=axis: ops.argsort(x, axis), x)
        np.testing.assert_array_equal(found, np.argsort(exact, axis, stable=True))
        found = same(lambda x, axis=axis: ops.sort(x, axis), x)
        np.testing.assert_array_equal(found.astype(exact.dtype), np.sort(exact, axis, stable=True))
    plan = mp.compile(lambda x: tuple(ops.top_k(x, 5)), np.zeros_like(x))
    for part, whole in zip(plan(x), ops.top_k(x, 5), strict=True):
        np.testing.assert_array_equal(wide(part), wide(whole))


def test_threads_change_no_integer():
    x, ids = numbers("int64", 2**18).reshape(512, 512), RNG.integers(-512, 512, (512, 512))

    def function(x, ids):
        order = ops.argsort(x[:64], axis=1)
        taken = ops.take_along_axis(x, ids, axis=1)
        return x * 3 // 7, ops.sum(x, axis=0), order, taken, ops.put_along_axis(x, ids, taken, 1, "add")

    plan = mp.compile(function, np.zeros_like(x), ids)
    found = []
    for threads in (1, 2, 5):
        with mp.config.num_threads(threads):
            found.append(plan(x, ids))
    for other in (*found[1:], function(x, ids)):
        for part, expected in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(part, expected)


def test_an_exponent_that_depends_on_an_input_is_refused_for_integers():
    x = np.array([1, 2])
    with pytest.raises(UnseenError, match="integer exponent"):
        mp.compile(lambda x: ops.power(x, x), x)


def test_a_gradient_plan_counts_in_integers():
    count = mp.AutoCastVariable(np.zeros((), np.int64), trainable=False, name="count")
    w = mp.AutoCastVariable(np.ones(3, np.float32), name="w")

    def loss(x):
        count.assign(count + 2)
        return mp.mean(w * x)

    step = mp.value_and_grad(loss, [w])
    for _ in range(3):
        step(np.ones(3, np.float32))
    assert count.numpy() == 6


OF_NUMBERS = {name: getattr(ops, name) for name in (
    "floor", "ceil", "round", "stop_gradient", "absolute", "square", "reciprocal", "sum", "mean", "max", "prod", "any",
    "ravel", "var", "isnan", "logical_not")} | {
    "clip": lambda x: ops.clip(x, 0, 1), "cast": lambda x: ops.cast(x, "int64"), "stack": lambda x: ops.stack([x, x]),
    "where": lambda x: ops.where(x > 0, x, 0), "mod": lambda x: ops.mod(x, 2), "range": lambda x: np.arange(3) * x,
    "take": lambda x: ops.take(np.arange(10), ops.cast(x, "int64")),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_NUMBERS)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_arrays_without_axes_are_operands(name, dtype):
    """Shape arithmetic of graphs computes with numbers."""
    same(OF_NUMBERS[name], np.array(3, dtype), example=(np.array(2, dtype),))
