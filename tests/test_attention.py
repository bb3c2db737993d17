"""dot_product_attention, compared with float64, and bit for bit with the operations that it combines."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
from oracles import UNIT, assert_same_bits, exact_attention

import mp_core as mp
from mp_core import config

FLOATS = ("float32", "float16", "bfloat16")

# n, targets, sources, heads, key heads, size, value size
SHAPES = [
    (2, 5, 5, 3, 3, 8, 8),
    (1, 128, 128, 2, 2, 32, 32),
    (2, 33, 70, 4, 2, 64, 16),
    (1, 1, 300, 4, 1, 32, 33),
    (3, 17, 4100, 1, 1, 5, 7),
    (1, 500, 500, 1, 1, 16, 16),
]


def operands(rng, shape, dtype):
    n, targets, sources, heads, shared, size, width = shape
    return [
        mp.cast(rng.standard_normal(axes), dtype)
        for axes in ((n, targets, heads, size), (n, sources, shared, size), (n, sources, shared, width))
    ]


def apart(q, k, v, bias=None, mask=None):
    """What the operations give one by one, the scores in float32."""
    scale = 1 / math.sqrt(q.shape[3])
    sharing = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, sharing, axis=2) for x in (k, v))
    scores = mp.matmul(q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1), out_dtype="float32")
    if bias is not None:
        scores, scale = scores * np.float32(scale) + bias, 1.0
    weights = mp.cast(mp.softmax(scores, scale=scale, mask=mask), q.dtype)
    return np.ascontiguousarray(mp.matmul(weights, v.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3))


def extras(rng, shape):
    """Biases and masks, of all axes and broadcast."""
    n, targets, sources, heads, *_ = shape
    bias = rng.standard_normal((1, heads, targets, sources), np.float32)
    padding = np.arange(sources) < rng.integers(1, sources + 1, (n, 1, 1, 1))
    return itertools.product((None, bias, bias[0, :, :1]), (None, padding, rng.random((targets, sources)) < 0.6))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_formula(isa, dtype, shape, rng):
    q, k, v = operands(rng, shape, dtype)
    for bias, mask in extras(rng, shape):
        y = mp.dot_product_attention(q, k, v, bias, mask)
        assert y.dtype == q.dtype and y.shape == (*q.shape[:3], v.shape[3])
        error = np.abs(y.astype(np.float64) - exact_attention(q, k, v, bias, mask))
        assert error.max() <= 4 * UNIT[dtype] * np.abs(v.astype(np.float64)).max() + 1e-5
        assert_same_bits(y, apart(q, k, v, bias, mask))


@pytest.mark.parametrize("dtype", FLOATS)
def test_no_bit_depends_on_batch_threads_or_block(dtype, rng):
    q, k, v = operands(rng, (3, 200, 2000, 4, 2, 16, 16), dtype)
    together = mp.dot_product_attention(q, k, v)
    for threads in (1, 2, 3, 8):
        with config.num_threads(threads):
            assert_same_bits(mp.dot_product_attention(q, k, v), together)
    for i, rows in itertools.product(range(3), (slice(0, 1), slice(90, 103))):
        alone = mp.dot_product_attention(q[i : i + 1, rows], k[i : i + 1], v[i : i + 1])
        assert_same_bits(alone[0], np.ascontiguousarray(together[i, rows]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_padding_behind_changes_no_bit(dtype, rng):
    q, k, v = operands(rng, (1, 9, 40, 2, 2, 32, 32), dtype)
    mask = np.arange(40) < 23
    assert_same_bits(mp.dot_product_attention(q, k, v, mask=mask), mp.dot_product_attention(q, k[:, :23], v[:, :23]))


@pytest.mark.parametrize("dtype", [*FLOATS, "float64"])
def test_any_strides(dtype, rng):
    # NumPy multiplies float64, and its order may depend on strides: that of 2.0 does.
    same = partial(np.testing.assert_allclose, rtol=1e-12) if dtype == "float64" else assert_same_bits
    qkv = mp.cast(rng.standard_normal((2, 20, 3, 4, 8)), dtype)
    q, k, v = (qkv[:, :, i] for i in range(3))
    expected = mp.dot_product_attention(q.copy(), k.copy(), v.copy())
    same(mp.dot_product_attention(q, k, v), expected)
    turned = [np.asfortranarray(x) for x in (q, k, v)]
    same(mp.dot_product_attention(*turned), expected)
    back = [x[::-1, :, ::-1] for x in (q, k, v)]
    same(mp.dot_product_attention(*back)[::-1, :, ::-1].copy(), expected)
    swapped = [x.astype(x.dtype.newbyteorder()) if dtype != "bfloat16" else x for x in (q, k, v)]
    same(mp.dot_product_attention(*swapped), expected)
    odd = [np.frombuffer(b"." + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape) for x in (q, k, v)]
    bias = rng.standard_normal((20, 20)).astype(np.float32)
    unaligned = np.frombuffer(b"." + bias.tobytes(), np.float32, offset=1, count=400).reshape(20, 20)
    same(mp.dot_product_attention(*odd, unaligned), mp.dot_product_attention(q, k, v, bias))
    same(mp.dot_product_attention(q, k, v, bias[:, ::-1]), mp.dot_product_attention(q, k, v, bias[:, ::-1].copy()))
    same(
        mp.dot_product_attention(q, k, v, bias[:, :1]), mp.dot_product_attention(q, k, v, np.repeat(bias[:, :1], 20, 1))
    )
    mask = np.asfortranarray(rng.random((20, 20)) < 0.5)
    same(mp.dot_product_attention(q, k, v, mask=mask), mp.dot_product_attention(q, k, v, mask=mask.copy("C")))


def test_causal(rng):
    q, k, v = operands(rng, (2, 6, 9, 2, 2, 4, 4), "float32")
    keep = np.tri(6, 9, dtype=bool)
    expected = mp.dot_product_attention(q, k, v, mask=keep)
    assert_same_bits(mp.dot_product_attention(q, k, v, is_causal=True), expected)
    padding = np.arange(9) != 2
    both = mp.dot_product_attention(q, k, v, mask=padding, is_causal=True)
    assert_same_bits(both, mp.dot_product_attention(q, k, v, mask=keep & padding))


@pytest.mark.parametrize("dtype", [*FLOATS, "float64"])
def test_nothing_kept_gives_zeros(dtype, rng):
    q, k, v = operands(rng, (1, 3, 5, 2, 2, 4, 4), dtype)
    y = mp.dot_product_attention(q, k, v, mask=np.array([[True], [False], [True]]))
    assert not y[:, 1].any() and y[:, 0].all()


def test_other_types(rng):
    q, k, v = operands(rng, (2, 6, 9, 4, 2, 4, 4), "float64")
    np.testing.assert_allclose(mp.dot_product_attention(q, k, v), exact_attention(q, k, v), rtol=1e-12)
    bias = rng.standard_normal((6, 9))
    np.testing.assert_allclose(
        mp.dot_product_attention(q, k, v, bias, scale=0.3), exact_attention(q, k, v, bias, None, 0.3), rtol=1e-12
    )
    eighth = [mp.cast(x, "float8_e4m3fn") for x in (q, k, v)]
    wide = [mp.cast(x, "float32") for x in eighth]
    assert_same_bits(mp.dot_product_attention(*eighth), mp.dot_product_attention(*wide))
    mixed = mp.dot_product_attention(mp.cast(q, "float16"), mp.cast(k, "bfloat16"), mp.cast(v, "float16"))
    assert mixed.dtype == np.float32
    ones = np.ones((1, 2, 1, 3), int)
    assert mp.dot_product_attention(ones, ones, ones.tolist()).dtype == np.float32


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("empty", range(7))
def test_lengths_of_zero(dtype, empty):
    lengths = [2, 3, 4, 2, 2, 5, 6]
    lengths[empty] = 0
    if empty in (3, 4):
        lengths[3] = lengths[4] = 0
    n, targets, sources, heads, shared, size, width = lengths
    q, k = np.ones((n, targets, heads, size), dtype), np.ones((n, sources, shared, size), dtype)
    y = mp.dot_product_attention(q, k, np.ones((n, sources, shared, width), dtype), bias=np.ones((targets, 1)))
    assert y.shape == (n, targets, heads, width) and y.dtype == dtype
    np.testing.assert_allclose(y, np.full(y.shape, float(sources > 0)), rtol=1e-6)


def test_refusals():
    x = np.zeros((1, 2, 3, 4), np.float32)
    for arguments, kind, message in [
        ((x[0], x, x), ValueError, "`query` must have shape (n, length, heads, size); received (2, 3, 4)"),
        ((x, x[..., :2], x), ValueError, "`query` and `key` must agree in axes 0 and 3"),
        ((x, x, x[:, :1]), ValueError, "`key` and `value` must agree in axes 0 to 2"),
        ((x, x[:, :, :2], x[:, :, :2]), ValueError, "the number of heads of `key` must divide that of `query`"),
        ((x, x[:, :, :0], x[:, :, :0]), ValueError, "the number of heads of `key` must divide that of `query`"),
        ((x, x, x, np.zeros(3)), ValueError, "`bias` must broadcast to shape (1, 3, 2, 2); received (3,)"),
        ((x, x, x, np.zeros((1, 1, 1, 1, 2))), ValueError, "`bias` must broadcast to shape"),
        ((x, x, x, None, np.zeros(3, bool)), ValueError, "`mask` must broadcast to shape (1, 3, 2, 2); received (3,)"),
        ((x, x, x, None, np.full(2, 2)), ValueError, "`mask` must be 1 (True)"),
        ((x, x, x, None, np.zeros(2)), TypeError, "`mask` must be bool or integer"),
        ((x, x, x, None, None, 1e39), ValueError, "`scale` must be finite in float32; received scale=1e+39"),
        ((x, x, x, None, None, "a"), ValueError, "`scale` must be a number; received scale='a'"),
        ((x, x, x, None, None, None, 1), TypeError, "`is_causal` must be"),
        ((x, x, x.astype("U")), TypeError, "`value` must be an array of"),
        ((x, x, mp.cast(x, "float8_e5m2")), TypeError, "float8"),
    ]:
        with pytest.raises(kind) as raised:
            mp.dot_product_attention(*arguments)
        assert message in str(raised.value)


def test_too_long_for_any_scratch():
    key = np.broadcast_to(np.float32(0), (1, 2**50 + 1, 1, 1))
    with pytest.raises(MemoryError):
        mp.dot_product_attention(np.zeros((1, 1, 1, 1), np.float32), key, key)


# ---- near attention


def banded(length, reach):
    return np.abs(np.arange(length)[:, np.newaxis] - np.arange(length)) <= reach


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("length", "reach"), [(5, 0), (40, 3), (129, 4), (300, 64), (700, 200), (260, 300)])
def test_near_attention_is_that_of_a_band_mask(isa, dtype, length, reach, rng):
    q, k, v = operands(rng, (2, length, length, 4, 2, 16, 16), dtype)
    lengths = np.array([length, max(1, length // 2)])
    mask = (np.arange(length) < lengths[:, np.newaxis])[:, np.newaxis, np.newaxis]
    bias = rng.standard_normal((1, 4, length, length)).astype(np.float32)
    for options in ({}, {"mask": mask}, {"bias": bias}, {"bias": bias, "mask": mask}):
        found = mp.dot_product_attention(q, k, v, reach=reach, **options)
        both = options | {"mask": banded(length, reach) & options.get("mask", True)}
        # as in test_formula: the weights and the result are rounded, each by half a unit
        bound = 4 * UNIT[dtype] * np.abs(v.astype(np.float64)).max() + 1e-5
        np.testing.assert_allclose(found.astype(np.float64), exact_attention(q, k, v, **both), rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reach", [0, 3, 64, 150])
def test_near_attention_sums_over_the_keys_of_128_queries(dtype, reach, rng):
    length = 400
    q, k, v = operands(rng, (1, length, length, 3, 3, 24, 24), dtype)
    keep = banded(length, reach)
    expected = np.concatenate(
        [
            mp.dot_product_attention(q[:, rows], k[:, near], v[:, near], mask=keep[rows, near])
            for first in range(0, length, 128)
            for rows, near in [(slice(first, first + 128), slice(max(0, first - reach), first + 128 + reach))]
        ],
        axis=1,
    )
    for threads in (1, 2, 16, 300):
        with config.num_threads(threads):
            assert_same_bits(mp.dot_product_attention(q, k, v, reach=reach), expected)
    offsets = np.array([0, length], np.int32)
    assert_same_bits(mp.ops.ragged_attention(q[0], k[0], v[0], offsets, reach=reach), expected[0])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("threads", [1, 3])
def test_near_ragged_attention_is_that_of_each_sequence(dtype, threads, rng):
    offsets = np.array([0, 3, 3, 140, 141, 500, 560], np.int32)
    q, k, v = (x[0] for x in operands(rng, (1, 560, 560, 2, 2, 16, 16), dtype))
    bias = rng.standard_normal((1, 2, 400, 400)).astype(np.float32)
    for added in (None, bias):
        with config.num_threads(threads):
            found = mp.ops.ragged_attention(q, k, v, offsets, added, reach=20)
        for begin, end in itertools.pairwise(offsets):
            own = None if added is None else added[..., : end - begin, : end - begin]
            parts = (x[np.newaxis, begin:end] for x in (q, k, v))
            assert_same_bits(found[begin:end], mp.dot_product_attention(*parts, own, reach=20)[0])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reach", [None, 20, 200])
def test_causal_ragged_attention_of_grouped_heads_is_that_of_each_sequence(isa, dtype, reach, rng):
    offsets = np.array([0, 1, 3, 3, 131, 132, 500, 560], np.int32)
    q, k, v = (x[0] for x in operands(rng, (1, 560, 560, 4, 2, 16, 16), dtype))
    bias = rng.standard_normal((1, 4, 400, 400)).astype(np.float32)
    for added, threads in ((None, 1), (None, 3), (bias, 2)):
        with config.num_threads(threads):
            found = mp.ops.ragged_attention(q, k, v, offsets, added, reach=reach, is_causal=True)
        for begin, end in itertools.pairwise(offsets):
            own = None if added is None else added[..., : end - begin, : end - begin]
            parts = [x[np.newaxis, begin:end] for x in (q, k, v)]
            expected = mp.dot_product_attention(*parts, own, is_causal=True, reach=reach)
            assert_same_bits(found[begin:end], expected[0])


def test_causal_ragged_attention_does_not_look_ahead(rng):
    offsets = np.array([0, 400], np.int32)
    q, k, v = (x[0] for x in operands(rng, (1, 400, 400, 2, 2, 16, 16), "float32"))
    found = mp.ops.ragged_attention(q, k, v, offsets, is_causal=True)
    k[256:], v[256:] = np.nan, np.inf
    assert_same_bits(mp.ops.ragged_attention(q, k, v, offsets, is_causal=True)[:256], found[:256])


def test_near_attention_of_float64(rng):
    q, k, v = operands(rng, (2, 50, 50, 2, 2, 8, 8), "float64")
    np.testing.assert_allclose(
        mp.dot_product_attention(q, k, v, reach=7), exact_attention(q, k, v, mask=banded(50, 7)), rtol=0, atol=1e-14
    )


def test_infinite_values_out_of_the_band_of_128_queries_change_nothing(rng):
    q, k, v = operands(rng, (1, 600, 600, 1, 1, 16, 16), "float32")
    far = v.copy()
    far[:, 300:] = np.inf
    found = mp.dot_product_attention(q, k, far, reach=10)
    assert_same_bits(found[:, :256], mp.dot_product_attention(q, k, v, reach=10)[:, :256])


def test_wrong_reaches_are_named():
    x = np.ones((1, 4, 1, 2), np.float32)
    with pytest.raises(ValueError, match="`reach` must be at least 0; received -1"):
        mp.dot_product_attention(x, x, x, reach=-1)
    with pytest.raises(ValueError, match="`reach` needs as many sources as targets; received 4 and 3"):
        mp.dot_product_attention(x[:, :3], x, x, reach=1)
    with pytest.raises(TypeError, match="`reach` must be an integer"):
        mp.dot_product_attention(x, x, x, reach=1.5)
    with pytest.raises(ValueError, match="`reach` must be at least 0"):
        mp.ops.ragged_attention(x[0], x[0], x[0], np.array([0, 4], np.int32), reach=-2)
    assert_same_bits(mp.dot_product_attention(x, x, x, reach=2**80), mp.dot_product_attention(x, x, x))


@pytest.mark.parametrize("make", [
    lambda initializer: mp.layers.MultiHeadAttention(2, 4, kernel_initializer=initializer),
    lambda initializer: mp.layers.GroupedQueryAttention(4, 2, 2, kernel_initializer=initializer),
], ids=["MultiHeadAttention", "GroupedQueryAttention"])  # fmt: skip
def test_one_initializer_without_a_seed_draws_each_projection_anew_as_in_keras(make):
    layer = make(mp.initializers.TruncatedNormal(stddev=0.02))
    layer.build((2, 4, 8), (2, 4, 8))
    query, key, value = (w.numpy() for w in layer.weights if w.name == "kernel" and w.shape == (8, 2, 4))
    assert not np.allclose(query, key) and not np.allclose(query, value) and not np.allclose(key, value)
    same = make(mp.initializers.TruncatedNormal(stddev=0.02, seed=3))
    same.build((2, 4, 8), (2, 4, 8))
    query, key, _ = (w.numpy() for w in same.weights if w.name == "kernel" and w.shape == (8, 2, 4))
    assert np.array_equal(query, key)
