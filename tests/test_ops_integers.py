"""Operations of integers and booleans, also with floats: types and values compared with `keras.ops`."""

import itertools
import os

import numpy as np
import pytest

import mp_core as mp
from mp_core import ops

os.environ.setdefault("KERAS_BACKEND", "torch")
keras, torch = pytest.importorskip("keras"), pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of torch

INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")
TYPES = (*INTEGERS, "float16", "bfloat16", "float32")

PAIRS = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "equal", "not_equal", "less", "less_equal",
         "greater", "greater_equal")  # fmt: skip
# Name -> a call of it with two arrays, of the operations of a library.
OF_TWO = {
    **{name: (lambda o, x, y, name=name: getattr(o, name)(x, y)) for name in PAIRS},
    "where": lambda o, x, y: o.where(np.array([[True], [False]]), x, y),
    "concatenate": lambda o, x, y: o.concatenate([x, y], axis=1),
    "stack": lambda o, x, y: o.stack([x, y], axis=1),
}
EXACT = ("absolute", "abs", "negative", "square", "max", "min", "argmax", "argmin", "reshape", "ravel", "transpose",
         "flip", "squeeze", "zeros_like", "ones_like", "stop_gradient")  # fmt: skip
FLOATING = ("exp", "log1p", "sqrt", "sigmoid", "tanh", "mean", "var", "std")
ARGUMENTS = {"reshape": ((-1,),)}


def array(dtype, seed=0):
    """Small numbers, which every type holds."""
    x = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 4, (2, 3))
    return mp.cast(x, dtype)


def of_keras(call, *arrays):
    """Return the values that Keras computes, and its name of their type where 64 bits stay."""
    given = [torch.tensor(x.astype(np.float32)).to(getattr(torch, x.dtype.name)) for x in arrays]
    with keras.device("cpu"):
        found = call(keras.ops, *given)
    name = keras.backend.standardize_dtype(found.dtype)
    return found.to(torch.float64).numpy(), name


def common(*types):
    """Return Keras' rule for types; int64 stays, which Keras makes int32."""
    name = keras.backend.result_type(*types)
    return "int64" if name == "int32" and "int64" in types else name


def check(got, values, name):
    assert got.dtype.name == name
    bound = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(name, 2e-6)
    np.testing.assert_allclose(got.astype(np.float64), values, rtol=bound)


@pytest.mark.parametrize("types", list(itertools.product(TYPES, TYPES)), ids="-".join)
def test_two_arrays_have_the_types_and_values_of_keras(types):
    x = array(types[0])
    for name, call in OF_TWO.items():
        if name == "subtract" and types == ("bool", "bool"):
            continue  # which neither has
        y = array(types[1], 1)
        y = mp.cast(y.astype(np.float32) + 1, types[1]) if name == "divide" else y
        values, found = of_keras(call, x, y)
        wanted = found if found == "bool" else common(*types, *([float] if name == "divide" else []))
        check(call(ops, x, y), values, wanted)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("number", [2, 2.5, True, 0])
def test_numbers_have_the_type_that_keras_gives_them(dtype, number):
    x = array(dtype)
    wanted = common(dtype, type(number))
    for name in ("add", "multiply", "maximum", "minimum"):
        for call in (lambda o, x, n=name: getattr(o, n)(x, number), lambda o, x, n=name: getattr(o, n)(number, x)):
            check(call(ops, x), of_keras(call, x)[0], wanted)
    assert ops.where([[True], [False]], x, number).dtype.name == wanted
    assert ops.where([[True], [False]], number, x).dtype.name == wanted


def test_two_numbers_are_float32_or_int32():
    for x, y in ((1, 0), (1.0, 0.0), (1, 0.5), (0.5, 1)):
        found = ops.where(np.array([True, False]), x, y)
        assert found.tolist() == [x, y] and found.dtype.name == keras.backend.result_type(type(x), type(y))


@pytest.mark.parametrize("dtype", TYPES)
def test_one_array_has_the_types_and_values_of_keras(dtype):
    x = array(dtype)
    for name in (*EXACT, *FLOATING):
        if name == "negative" and dtype == "bool":
            continue

        def call(o, x, name=name):
            return getattr(o, name)(x, *ARGUMENTS.get(name, ()))

        values, wanted = of_keras(call, x)
        check(call(ops, x), values, wanted)


@pytest.mark.parametrize("dtype", TYPES)
def test_clipped_arrays_keep_their_type(dtype):
    x = array(dtype)
    kept = "int32" if dtype == "bool" else dtype
    for low, high in ((1, 2), (0.5, 2.5)):
        values, wanted = of_keras(lambda o, x, low=low, high=high: o.clip(x, low, high), x)
        check(ops.clip(x, low, high), values if wanted == kept else values.astype(kept), kept)
    np.testing.assert_array_equal(ops.clip(x, -5, 300), x)  # of which torch takes the lowest eight bits
    assert ops.clip(x, np.float32(1), np.float32(2)).dtype.name == kept


@pytest.mark.parametrize("dtype", INTEGERS)
def test_powers_of_integers_are_those_of_keras(dtype):
    x = array(dtype)
    for exponent in (0, 2, 2.0, 0.5):
        wanted = common(dtype, type(exponent))
        check(ops.power(x, exponent), np.power(x.astype(np.float64), exponent), wanted)
    with pytest.raises(ValueError, match="`exponent` must be a float, or from 0 to the largest"):
        ops.power(x, -1)


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_places_of_extremes_are_those_of_keras(axis):
    rows = [[-0.0, 0.0, -3.0], [0.0, -0.0, 1.0], [2.0, np.nan, 5.0], [-np.inf, np.inf, 4.0]]
    for dtype in ("float32", "float16", "bfloat16", "float64"):
        x = mp.cast(np.array(rows), dtype)
        for name, keepdims in itertools.product(("argmax", "argmin"), (False, True)):

            def call(o, x, name=name, keepdims=keepdims):
                return getattr(o, name)(x, axis=axis, keepdims=keepdims)

            with np.errstate(all="ignore"):
                expected = getattr(np, name)(np.where((x == 0) & np.signbit(x), -1e-300, x.astype(np.float64)), axis,
                                             keepdims=keepdims)  # fmt: skip
            got = call(ops, x)
            np.testing.assert_array_equal(got, expected)
            assert got.dtype == np.int32
            if dtype == "float32":  # with -0 as Keras' NumPy backend: on torch it is equal to 0
                assert call(ops, x + 0).tolist() == of_keras(call, x + 0)[0].tolist()
    assert ops.argmax(np.array([3, 2**60, 2**60 + 1])) == 2
    for call, error, message in (
        (lambda: ops.argmax(np.ones((2, 0)), 1), ValueError, "must have elements along axis 1"),
        (lambda: ops.argmin([]), ValueError, "must have elements along axis None"),
        (lambda: ops.argmax([1.0], 1), ValueError, "`axis` must lie in"),
        (lambda: ops.argmax(["a"]), TypeError, "`x` must be an array of"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_integers_stay_exact():
    x = np.array([2**60, -(2**60) - 1])
    np.testing.assert_array_equal(ops.maximum(x, 2**60 + 1), [2**60 + 1, 2**60 + 1])
    np.testing.assert_array_equal(ops.minimum(x, x + 1), x)
    np.testing.assert_array_equal(ops.add(x, 1), x + 1)
    np.testing.assert_array_equal(ops.where([True, False], x, x - 1), [x[0], x[1] - 1])
    np.testing.assert_array_equal(ops.clip(x, -(2**60), 2**60 - 1), [2**60 - 1, -(2**60)])
    assert ops.max(x) == 2**60 and ops.min(x) == -(2**60) - 1 and ops.max(x).dtype == np.int64
    np.testing.assert_array_equal(ops.add(x, np.array([0.5])), x + 0.5)  # float64


def test_a_number_that_a_type_cannot_hold_is_refused():
    x = array("uint8")
    for value in (-1, 256, 10**400):
        with pytest.raises(ValueError, match="`y` must be a number that uint8 can hold"):
            ops.maximum(x, value)
    with pytest.raises(TypeError, match="boolean subtract"):
        ops.subtract(array("bool"), array("bool"))


def test_gradients_pass_by_integers():
    w = mp.AutoCastVariable(np.float32([1, 2, 3]))
    ids = np.array([0, 1, 2])

    def loss(zero):
        x = ops.add(w, zero)
        kept = ops.where(ops.equal(ids, 1), ops.multiply(ids, 3), 2)
        return ops.sum(ops.multiply(x, kept))

    value, (gradient,) = mp.value_and_grad(loss, [w])(np.float32([0]))
    assert value == 2 + 6 + 6 and gradient.tolist() == [2, 3, 2]
    with mp.tf_keras.GradientTape() as tape:
        y = ops.sum(ops.multiply(w, ops.clip(ids, 0, 1)))
    assert tape.gradient(y, w).tolist() == [0, 1, 1]


def test_plans_compute_integers_and_floats_together():
    x = np.array([[1, 2, 3]], np.int32)
    for call, expected in (
        (lambda x: ops.add(x, 1), x + 1),
        (lambda x: ops.where(ops.greater(ops.cast(x, "float32"), 1.0), 1, 0), np.int32(x > 1)),
        (lambda x: ops.argmax(x), np.int32(2)),
        (lambda x: ops.multiply(x, 0.5), np.float32(x) * np.float32(0.5)),
    ):
        found = mp.compile(call, x)(x)
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype


def test_integers_between_layers_have_the_types_of_keras():
    def made(o):
        x = o.Input((3,), dtype="int32")
        return o.Model(x, [x + 1, x * 0.5, x / 2, o.ops.maximum(x, 2), x - x, o.ops.argmax(x, axis=1)])

    mine, theirs = made(mp), made(keras)
    given = np.array([[1, 2, 5], [0, 7, 3]], np.int32)
    for got, expected in zip(mine(given), theirs(given), strict=True):
        assert got.dtype.name == keras.backend.standardize_dtype(expected.dtype)
        np.testing.assert_array_equal(got, keras.ops.convert_to_numpy(expected))


def test_an_integer_that_is_not_clipped_stays():
    big = np.array([2**53 + 1])
    assert ops.clip(big, 0, float("inf")).tolist() == big.tolist()
    most = np.array([2**63 + 1], np.uint64)
    assert ops.clip(most, np.array([0]), most + np.uint64(4)).tolist() == most.tolist()
    with pytest.raises(ValueError, match="`low` and `high` must be numbers that uint8 can hold; received 300, 400"):
        ops.clip(np.array([1], np.uint8), 300, 400)
    with pytest.raises(ValueError, match="must not be NaN for int64"):
        ops.clip(big, float("nan"), 3)


def test_an_exponent_is_any_integer_that_fits():
    assert ops.power(np.array([3], np.uint8), np.int64(2)).dtype == np.uint8
    with pytest.raises(ValueError, match="`exponent` must be a float, or from 0 to the largest uint8; received 300"):
        ops.power(np.array([1], np.uint8), 300)


@pytest.mark.parametrize("function", [ops.max, ops.min])
@pytest.mark.parametrize("x", [np.array(["a"]), np.array([1j]), np.array([None])], ids=["text", "complex", "object"])
def test_extremes_are_of_numbers(function, x):
    with pytest.raises(TypeError, match="`x`"):
        function(x)


def test_zero_is_above_every_negative_number():
    x = np.array([-1e-40, -0.0, 0.0], np.float32)
    assert ops.argmax(x[:2]) == 1 and ops.argmax(x) == 2 and ops.argmin(x[1:]) == 0
