"""Sums, products and gates of two arrays, and rotary positions: NumPy's float32, rounded once by ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest
from oracles import assert_same_bits, exactly

import mp_core as mp
from mp_core import ops
from mp_core.dtypes import parse

FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
PAIRS = {ops.add: np.add, ops.multiply: np.multiply}
SHAPES = [
    ((5, 7), (5, 7)),
    ((3, 40, 33), (33,)),
    ((33,), (2, 33)),
    ((2, 3, 4), (3, 1)),
    ((4, 1, 5), (3, 1)),
    ((2, 1, 6), (1, 3, 6)),
    ((6,), ()),
    ((), ()),
    ((1,), (1, 1)),
    ((2, 5000), (2, 5000)),
    ((0, 3), (3,)),
    ((3, 0), (3, 1)),
]


def values(rng, shape, dtype):
    return mp.cast(8 * rng.standard_normal(shape), dtype)


def rounded(x, dtype):
    return exactly(np.asarray(x, np.float32), parse(dtype))


@pytest.mark.parametrize("operation", PAIRS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shapes", SHAPES)
def test_pairs_are_numpys_rounded_once(isa, operation, dtype, shapes, rng):
    x, y = (values(rng, shape, dtype) for shape in shapes)
    expected = PAIRS[operation](x.astype(np.float32), y.astype(np.float32))
    assert_same_bits(operation(x, y), rounded(expected, dtype))


@pytest.mark.parametrize("operation", PAIRS)
def test_types_that_meet_give_what_they_have_in_common(operation, rng):
    for one, other, common in (
        ("float32", "bfloat16", "float32"),
        ("float16", "bfloat16", "float32"),
        ("int32", "float16", "float16"),
        ("int64", "bfloat16", "bfloat16"),
        ("float64", "float16", "float64"),
        ("float64", "int64", "float64"),
    ):
        x, y = values(rng, (3, 20), one), values(rng, (3, 20), other)
        wide = np.float64 if common == "float64" else np.float32
        expected = PAIRS[operation](x.astype(wide), y.astype(wide)).astype(parse(common))
        assert_same_bits(operation(x, y), expected)
        assert_same_bits(operation(y, x), expected)


@pytest.mark.parametrize("dtype", [*FLOATS, "float64"])
def test_a_number_has_the_type_of_the_array(dtype, rng):
    x = values(rng, (3, 5), dtype)
    wide = np.float64 if dtype == "float64" else np.float32
    number = mp.cast(np.float64(0.3), dtype).astype(wide)
    expected = (x.astype(wide) * number).astype(x.dtype)
    assert_same_bits(mp.multiply(x, 0.3), expected)
    assert_same_bits(mp.multiply(0.3, x), expected)
    assert mp.add(1, 2.5) == 3.5
    for found in (mp.add(1, x[0, 0, ...]), mp.add(x[0, 0, ...], 1)):
        assert_same_bits(found, (x[0, 0].astype(wide) + wide(1)).astype(x.dtype)[...])
    assert_same_bits(mp.add(x, 2), (x.astype(wide) + wide(2)).astype(x.dtype))


def test_any_strides(rng):
    x = values(rng, (6, 4, 10), "float16")
    for part in (x[::2], x[:, ::-1], x[..., ::2], x.transpose(2, 0, 1), x[..., :3], x.astype(">f2"), x[:1]):
        expected = rounded(part.astype(np.float32) + part.astype(np.float32), "float16")
        assert_same_bits(mp.add(part, part), expected)


def test_special_values_are_those_of_numpy():
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e38, 1e-45] * 5, np.float32)
    y = np.repeat(x[:7], 5)
    with np.errstate(all="ignore"):
        assert_same_bits(mp.add(x, y), x + y)
        assert_same_bits(mp.multiply(x, y), x * y)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["relu", "relu6", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "linear"])
def test_a_gate_rounds_once(isa, dtype, name, rng):
    inner = values(rng, (3, 9, 70), dtype)
    x, y = inner[..., :35], inner[..., 35:]
    wide = x.astype(np.float32)
    activated = wide if name == "linear" else ops.activations.activate(name, wide)
    assert_same_bits(ops.gate(x, y, name), rounded(activated * y.astype(np.float32), dtype))


def test_a_gate_of_float64():
    x = np.linspace(-3, 3, 11)
    np.testing.assert_allclose(ops.gate(x, 2 * x, "tanh"), np.tanh(x) * 2 * x, rtol=1e-15)


def test_wrong_pairs_are_named():
    x = np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"`x` and `y` must broadcast against each other; received \(2, 3\), \(2,\)"):
        mp.add(x, np.ones(2, np.float32))
    with pytest.raises(TypeError, match="`y` must be an array of"):
        mp.multiply(x, np.array(["a"]))
    for name, pair in (("x", (10**400, x)), ("y", (x, -(10**400)))):
        with pytest.raises(ValueError, match=f"`{name}` must be a number that float64 can hold"):
            mp.add(*pair)
    with pytest.raises(TypeError, match="float8 types never promote"):
        mp.add(x, x.astype(ml_dtypes.float8_e5m2))
    with pytest.raises(ValueError, match=r"`activation` must be one of 'linear', 'relu'.*; received 'glu'"):
        ops.gate(x, x, "glu")
    with pytest.raises(TypeError, match="masked"):
        mp.add(x, np.ma.masked_array(x))


def test_a_plan_repeats_pairs(rng):
    table, x = values(rng, (5, 8), "bfloat16"), values(rng, (3, 5, 8), "float32")

    def layer(x):
        half = ops.gate(x[..., :4], x[..., 4:], "silu")
        return mp.add(mp.multiply(mp.add(x, table), 0.5), 1.0), mp.add(half, x[..., 0:8:2]), mp.multiply(2, x[0])

    plan = mp.compile(layer, 0 * x)
    for threads in (1, 3):
        with mp.config.num_threads(threads):
            for found, expected in zip(plan(x), layer(x), strict=True):
                assert_same_bits(found, expected)
    assert "gate" in [step.name for step in plan.profile()]


def test_no_bit_depends_on_the_threads(rng):
    x, y = (values(rng, (700, 513), dtype) for dtype in ("float32", "bfloat16"))
    angles = rng.standard_normal((700, 18)).astype(np.float32)
    vectors = x[:, :504].reshape(1, 700, 28, 18)
    with mp.config.num_threads(1):
        expected = mp.add(x, y), ops.rotary(vectors, angles)
    for threads in (2, 5):
        with mp.config.num_threads(threads):
            for found, one in zip((mp.add(x, y), ops.rotary(vectors, angles)), expected, strict=True):
                assert_same_bits(found, one)


# ---- rotary positions


def angles_of(positions, size):
    turns = np.arange(positions)[:, np.newaxis] / 50.0 ** (np.arange(size // 2) / size)
    return np.concatenate([np.cos(turns), np.sin(turns)], axis=1)


def turned(x, angles):
    """The formula in the type of the operands, angles (length, size) for the second axis."""
    half = x.shape[-1] // 2
    cos, sin = (part.reshape(x.shape[1], *(1,) * (x.ndim - 3), half) for part in (angles[:, :half], angles[:, half:]))
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [2, 8, 32, 70])
def test_rotary_rounds_products_sums_and_the_result(isa, dtype, size, rng):
    x, table = values(rng, (2, 9, 3, size), dtype), angles_of(12, size).astype(np.float32)
    assert_same_bits(ops.rotary(x, table), rounded(turned(x.astype(np.float32), table[:9]), dtype))


def test_rotary_is_a_multiplication_by_complex_numbers(rng):
    x, table = rng.standard_normal((2, 30, 4, 16)), angles_of(30, 16)
    numbers = (x[..., :8] + 1j * x[..., 8:]) * (table[:, :8] + 1j * table[:, 8:])[:, np.newaxis]
    expected = np.concatenate([numbers.real, numbers.imag], axis=-1)
    np.testing.assert_allclose(ops.rotary(x, table), expected, atol=1e-15)
    found = ops.rotary(x.astype(np.float32), table)
    np.testing.assert_allclose(found, expected, atol=4 * 2.0**-24 * np.abs(x).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_ragged_rotary_is_that_of_each_sequence(dtype, rng):
    offsets, table = np.array([0, 3, 3, 4, 20], np.int32), angles_of(16, 10)
    x = values(rng, (20, 3, 2, 10), dtype)
    for given in (x, x[:, :2], x[:, ::-1], x[..., 1, :]):
        found = ops.ragged_rotary(given, table, offsets)
        for begin, end in ((0, 3), (3, 4), (4, 20)):
            assert_same_bits(found[begin:end], ops.rotary(given[np.newaxis, begin:end], table)[0])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_longer_sequences_turn_by_angles_of_their_own(dtype, rng):
    offsets, few, many = np.array([0, 3, 3, 7, 20], np.int32), angles_of(3, 10), 2 * angles_of(13, 10)
    x = values(rng, (20, 3, 10), dtype)
    found = ops.ragged_rotary(x, np.concatenate([few, many]), offsets, 3)
    for begin, end, table in ((0, 3, few), (3, 7, many), (7, 20, many)):
        assert_same_bits(found[begin:end], ops.rotary(x[np.newaxis, begin:end], table)[0])
    with pytest.raises(ValueError, match=r"`angles` must have shape \(at least 16, 10\)"):
        ops.ragged_rotary(x, many, offsets, 3)
    with pytest.raises(ValueError, match="`few` must be"):
        ops.ragged_rotary(x, many, offsets, -1)


def test_wrong_rotary_operands_are_named():
    x, table = np.ones((1, 4, 6), np.float32), np.ones((4, 6), np.float32)
    for wrong in (table[:3], table[:, :4], table[0]):
        with pytest.raises(ValueError, match=r"`angles` must have shape \(at least 4, 6\)"):
            ops.rotary(x, wrong)
    with pytest.raises(ValueError, match="even"):
        ops.rotary(x[..., :5], table[:, :5])
    with pytest.raises(ValueError, match=r"`x` must have shape \(n, length"):
        ops.rotary(x[0], table)
    with pytest.raises(ValueError, match=r"`x` must have shape \(tokens"):
        ops.ragged_rotary(x[0, 0], table, np.array([0, 6], np.int32))
    for wrong in ([0, 3], [1, 4], [0, 5], [0, 3, 2, 4]):
        with pytest.raises(ValueError, match="`offsets` must"):
            ops.ragged_rotary(x[0], table, np.array(wrong, np.int32))
    with pytest.raises(TypeError, match="int32"):
        ops.ragged_rotary(x[0], table, np.array([0, 4]))
    assert ops.rotary(x[:, :0], table).shape == (1, 0, 6)
    assert ops.rotary(x[..., :0], table[:, :0]).shape == (1, 4, 0)
