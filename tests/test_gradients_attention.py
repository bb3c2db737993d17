"""Gradients of attention, dense and ragged: compared with differences and torch's autograd, and in the stated order."""

import numpy as np
import pytest
from gradients import by_rules, check_rule, weights_for
from oracles import assert_same_bits, kept_weights

import mp_core as mp
from mp_core import ops
from mp_core.core import cpu
from mp_core.dtypes import parse
from mp_core.ops.gradients.attention import attention_gradients, ragged_attention_gradients
from mp_core.ops.gradients.rows import softmax_gradient

DTYPES = ("float32", "float16", "bfloat16")
OFFSETS = np.array([0, 5, 6, 206, 347], np.int32)


def operands(rng, n=2, targets=9, sources=7, heads=4, shared=2, size=3, width=5, dtype=np.float64):
    shapes = (
        (n, targets, heads, width),
        (n, targets, heads, size),
        (n, sources, shared, size),
        (n, sources, shared, width),
    )
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]  # the upstream gradient first


SETTINGS = {
    "plain": {},
    "causal": {"is_causal": True, "targets": 7},
    "scale": {"scale": 0.3},
    "mask": {"mask": True},
    "near": {"reach": 2, "targets": 7},
    "one head of keys": {"shared": 1},
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_float64_is_what_difference_quotients_are(setting, rng):
    given = dict(setting)
    sizes = {name: given.pop(name) for name in ("targets", "shared") if name in given}
    _, q, k, v = operands(rng, **sizes)
    if given.get("mask"):
        given["mask"] = rng.random((2, 1, q.shape[1], k.shape[1])) < 0.7
    check_rule(lambda q, k, v: ops.dot_product_attention(q, k, v, **given), q, k, v)


@pytest.mark.parametrize("shape", [(2, 4, 9, 7), (1, 4, 9, 7), (2, 1, 9, 7), (9, 7), (7,), (2, 1, 1, 7), (4, 9, 1)])
def test_float64_gradients_of_a_bias_are_what_difference_quotients_are(shape, rng):
    _, q, k, v = operands(rng)
    bias = rng.standard_normal(shape)
    check_rule(lambda bias: ops.dot_product_attention(q, k, v, bias=bias), bias)


def close(found, expected, tolerance):
    scale = np.abs(expected).max()
    assert np.abs(found.astype(np.float64) - expected).max() <= tolerance * scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("targets", [9, 300])
def test_narrow_types_are_near_float64(dtype, setting, targets, isa, rng):
    given = {"mask": None, "scale": None, "is_causal": False, "reach": None} | setting
    sources = targets if {"is_causal", "reach"} & setting.keys() else 200
    d, q, k, v = operands(rng, 2, targets, sources, shared=given.pop("shared", 2), dtype=parse(dtype))
    given.pop("targets", None)
    if given["mask"]:
        given["mask"] = rng.random((2, 1, targets, sources)) < 0.7
    arguments = (None, given["mask"], given["scale"], given["is_causal"], given["reach"])
    expected = attention_gradients(*(x.astype(np.float64) for x in (d, q, k, v)), *arguments)
    found = attention_gradients(d, q, k, v, *arguments)
    tolerance = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == parse(dtype)
        close(one, other, tolerance)


@pytest.mark.parametrize("causal", [False, True])
def test_float32_is_what_torch_finds(causal, rng):
    torch = pytest.importorskip("torch")
    d, q, k, v = operands(rng, 2, 150, 150, 4, 4, 16, 16, np.float32)
    given = [torch.tensor(x.transpose(0, 2, 1, 3).copy(), requires_grad=True) for x in (q, k, v)]
    torch.nn.functional.scaled_dot_product_attention(*given, is_causal=causal).backward(
        torch.tensor(d.transpose(0, 2, 1, 3).copy())
    )
    for found, expected in zip(attention_gradients(d, q, k, v, None, None, None, causal, None), given, strict=True):
        close(found, expected.grad.numpy().transpose(0, 2, 1, 3), 1e-5)


def replayed(d, q, k, v, scale, drop=lambda weights, band: weights):
    """The order of docs/numerics.md for one head, by products and rows: (length, size) each."""
    dq, dk, dv = np.empty_like(q), np.zeros(k.shape, np.float32), np.zeros(v.shape, np.float32)
    for band in (slice(first, first + 128) for first in range(0, len(q), 128)):
        weights = mp.softmax(mp.matmul(q[band], k.T, out_dtype="float32"), scale=scale)
        upstream = drop(mp.matmul(d[band], v.T, out_dtype="float32"), band)
        dv = mp.matmul(drop(weights, band).astype(q.dtype).T, d[band], out_dtype="float32", residual=dv)
        scores = softmax_gradient(upstream, weights, np.float32, scale=scale).astype(q.dtype)
        dq[band] = mp.matmul(scores, k)
        dk = mp.matmul(scores.T, q[band], out_dtype="float32", residual=dk)
    return dq, dk.astype(q.dtype), dv.astype(q.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 128, 300])
def test_the_order_of_sums_is_the_stated_one(dtype, length, isa, rng):
    d, q, k, v = operands(rng, 1, length, length, 1, 1, 16, 24, parse(dtype))
    expected = replayed(*(x[0, :, 0] for x in (d, q, k, v)), 0.25)
    for found, want in zip(attention_gradients(d, q, k, v, None, None, 0.25, False, None), expected, strict=True):
        assert_same_bits(found[0, :, 0], want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_neither_threads_nor_batch_nor_strides_change_a_bit(dtype, rng):
    d, q, k, v = operands(rng, 6, 140, 140, 4, 2, 32, 32, parse(dtype))
    with cpu.num_threads(1):
        expected = attention_gradients(d, q, k, v, None, None, None, True, None)
    for threads in (2, 4):
        with cpu.num_threads(threads):
            found = attention_gradients(d, q, k, v, None, None, None, True, None)
            for one, other in zip(found, expected, strict=True):
                assert_same_bits(one, other)
    turned = [np.asfortranarray(x) for x in (d, q, k, v)]
    alone = [attention_gradients(*(x[i : i + 1] for x in turned), None, None, None, True, None) for i in range(6)]
    for index, other in enumerate(expected):
        assert_same_bits(np.concatenate([found[index] for found in alone]), other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reach", [None, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_ragged_gradients_are_those_of_each_sequence(dtype, reach, causal, with_bias, rng):
    tokens = OFFSETS[-1] + 4
    d, q, k, v = (x[0] for x in operands(rng, 1, tokens, tokens, 4, 2, 8, 8, parse(dtype)))
    bias = rng.standard_normal((1, 4, 210, 210)).astype(np.float32) if with_bias else None
    found = ragged_attention_gradients(d, q, k, v, OFFSETS, bias, None, reach, causal)
    for begin, end in zip(OFFSETS[:-1].tolist(), OFFSETS[1:].tolist(), strict=True):
        own = None if bias is None else bias[..., : end - begin, : end - begin]
        part = [x[None, begin:end] for x in (d, q, k, v)]
        expected = attention_gradients(*part, own, None, None, causal, reach)
        for one, other in zip(found, expected, strict=True):
            assert_same_bits(one[begin:end], other[0])
    assert not any(np.any(x[OFFSETS[-1] :]) for x in found)


KEY, RATE = np.array([7, 3], np.uint32), 0.3


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropped_weights_are_those_that_numpys_generator_says_in_the_stated_order(dtype, isa, rng):
    d, q, k, v = (x[0] for x in operands(rng, 1, 206, 206, 2, 2, 16, 16, parse(dtype)))
    offsets = OFFSETS[:4]
    context = ops.ragged_attention(q, k, v, offsets, dropout=RATE, random_key=KEY)
    gradients = ragged_attention_gradients(d, q, k, v, offsets, None, None, None, False, RATE, KEY)
    for begin, end, head in [(0, 5, 0), (5, 6, 1), (6, 206, 0), (6, 206, 1)]:
        kept = kept_weights(KEY, RATE, head, range(begin, end), end - begin)

        def drop(weights, band, kept=kept):
            return np.where(kept[band], weights * np.float32(1 / (1 - RATE)), np.float32(0))

        parts = [x[begin:end, head] for x in (d, q, k, v)]
        weights = mp.softmax(mp.matmul(parts[1], parts[2].T, out_dtype="float32"), scale=0.25)
        expected = mp.matmul(drop(weights, slice(None)).astype(q.dtype), parts[3])
        assert_same_bits(context[begin:end, head], expected)
        for found, want in zip(gradients, replayed(*parts, 0.25, drop), strict=True):
            assert_same_bits(found[begin:end, head], want)


@pytest.mark.parametrize("setting", [{"reach": 3}, {"is_causal": True}, {"bias": True}], ids=str)
def test_gradients_of_dropped_weights_are_those_of_torch_with_the_same_mask(setting, rng):
    torch = pytest.importorskip("torch")
    d, q, k, v = (x[0] for x in operands(rng, 1, 150, 150, 4, 2, 8, 8, np.float32))
    bias = rng.standard_normal((1, 4, 150, 150)).astype(np.float32) if setting.get("bias") else None
    reach, causal = setting.get("reach"), setting.get("is_causal", False)
    given = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (q, k, v)]
    added = torch.tensor(np.zeros((1, 4, 150, 150)) if bias is None else bias.astype(np.float64), requires_grad=True)
    tq, tk, tv = (x.transpose(0, 1).repeat_interleave(4 // x.shape[1], 0) for x in given)
    scores = tq @ tk.transpose(1, 2) / 8**0.5 + added[0]
    apart = np.arange(150)[:, np.newaxis] - np.arange(150)
    masked = (apart < 0) & causal | (np.abs(apart) > (150 if reach is None else reach))
    kept = np.array([kept_weights(KEY, RATE, head, range(150), 150) for head in range(4)])
    weights = torch.softmax(scores.masked_fill(torch.tensor(masked), -torch.inf), -1) * torch.tensor(kept / (1 - RATE))
    context = (weights @ tv).transpose(0, 1)
    context.backward(torch.tensor(d, dtype=torch.float64))
    how = (bias, None, reach, causal, RATE, KEY)
    offsets = np.array([0, 150], np.int32)
    close(ops.ragged_attention(q, k, v, offsets, *how), context.detach().numpy(), 1e-5)
    for found, exact in zip(ragged_attention_gradients(d, q, k, v, offsets, *how), given, strict=True):
        close(found, exact.grad.numpy(), 1e-5)
    if bias is not None:
        (found,) = ragged_attention_gradients(d, q, k, v, offsets, *how, of_bias=True)
        close(found, added.grad.numpy(), 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropped_weights_depend_neither_on_threads_nor_on_sequences_behind(dtype, rng):
    d, q, k, v = (x[0] for x in operands(rng, 1, 347, 347, 4, 2, 32, 32, parse(dtype)))

    def computed(offsets, end):
        rows = [x[:end] for x in (d, q, k, v)]
        how = (offsets, None, None, None, False, RATE, KEY)
        return [ops.ragged_attention(*rows[1:], *how), *ragged_attention_gradients(*rows, *how)]

    with cpu.num_threads(1):
        expected = computed(OFFSETS, 347)
    for threads, offsets in [(2, OFFSETS), (4, OFFSETS), (1, OFFSETS[:4])]:
        with cpu.num_threads(threads):
            for one, other in zip(computed(offsets, offsets[-1]), expected, strict=True):
                assert_same_bits(one, other[: offsets[-1]])


def test_a_share_of_the_weights_is_dropped_and_others_by_another_key(rng):
    x, eye = np.zeros((300, 1, 300), np.float32), np.eye(300, dtype=np.float32)[:, np.newaxis]
    offsets = np.array([0, 300], np.int32)
    found = [ops.ragged_attention(x, x, eye, offsets, dropout=RATE, random_key=KEY + i)[:, 0] for i in (0, 0, 1)]
    assert abs((found[0] == 0).mean() - RATE) < 0.01
    np.testing.assert_allclose(found[0][found[0] != 0], 1 / 300 / (1 - RATE), rtol=1e-6)
    assert_same_bits(found[0], found[1])
    assert (found[0] != found[2]).any()
    assert_same_bits(ops.ragged_attention(x, x, eye, offsets), ops.ragged_attention(x, x, eye, offsets, dropout=0.0))


@pytest.mark.parametrize(("rate", "key", "error"), [
    (1.0, KEY, "`dropout` must be below 1"), (-0.1, KEY, "dropout"), (np.nan, KEY, "dropout"),
    (0.5, None, "`random_key` must be an ndarray of uint32"), (0.5, KEY[:1], "`random_key` must be .seed, draw."),
])  # fmt: skip
def test_a_rate_or_key_that_is_none_is_refused(rate, key, error):
    x, offsets = np.ones((3, 1, 4), np.float32), np.array([0, 3], np.int32)
    with pytest.raises((TypeError, ValueError), match=error):
        ops.ragged_attention(x, x, x, offsets, dropout=rate, random_key=key)


def test_a_plan_draws_by_the_key_that_it_is_given(rng):
    _, q, k, v = (x[0] for x in operands(rng, 1, 6, 6, 2, 2, 8, 8, np.float32))
    offsets = np.array([0, 2, 6], np.int32)

    def attended(key, q):
        return ops.ragged_attention(q, k, v, offsets, dropout=RATE, random_key=key)

    plan = mp.compile(attended, KEY, q)
    for key in (KEY, KEY + 1):
        assert_same_bits(plan(key, q), attended(key, q))


def test_the_gradient_of_a_ragged_bias_sums_over_sequences(rng):
    tokens = OFFSETS[-1]
    d, q, k, v = (x[0] for x in operands(rng, 1, tokens, tokens, 2, 2, 8, 8, np.float32))
    bias = rng.standard_normal((1, 2, 210, 210)).astype(np.float32)
    (found,) = ragged_attention_gradients(d, q, k, v, OFFSETS, bias, None, None, False, of_bias=True)
    total = np.zeros(bias.shape)
    for begin, end in zip(OFFSETS[:-1].tolist(), OFFSETS[1:].tolist(), strict=True):
        part = [x[None, begin:end].astype(np.float64) for x in (d, q, k, v)]
        own = bias[..., : end - begin, : end - begin]
        (scores,) = attention_gradients(*part, own, None, None, False, None, of_bias=True)
        total[..., : end - begin, : end - begin] += scores
    close(found, total, 1e-5)


@pytest.mark.parametrize("shape", [(2, 4, 40, 30), (1, 4, 40, 30), (2, 1, 40, 30), (1, 1, 40, 30)])
def test_gradients_of_a_bias_are_near_float64(shape, rng):
    d, q, k, v = operands(rng, 2, 40, 30, dtype=np.float32)
    bias = rng.standard_normal(shape).astype(np.float32)
    (found,) = attention_gradients(d, q, k, v, bias, None, None, False, None, of_bias=True)
    (all_scores,) = attention_gradients(
        *(x.astype(np.float64) for x in (d, q, k, v)), bias, None, None, False, None, of_bias=True
    )
    assert found.shape == shape
    close(found, all_scores.sum(tuple(i for i in (0, 1) if shape[i] == 1), keepdims=True), 1e-5)


def test_a_query_that_may_attend_to_nothing_has_the_gradient_0(rng):
    d, q, k, v = operands(rng, dtype=np.float32)
    mask = np.ones((9, 7), bool)
    mask[3] = False
    found = attention_gradients(d, q, k, v, None, mask, None, False, None)
    assert not found[0][:, 3].any()
    assert all(np.isfinite(x).all() for x in found)


def test_plans_have_the_bits_of_eager_calls(rng):
    d, q, k, v = operands(rng, dtype=np.float32)
    d = weights_for(d.shape, np.float32)
    eager = attention_gradients(d, q, k, v, None, None, None, False, None)
    for found, expected in zip(by_rules(ops.dot_product_attention, q, k, v), eager, strict=True):
        assert_same_bits(found, expected)


def test_without_elements_there_are_gradients_without_elements():
    x = np.zeros((0, 3, 2, 4), np.float32)
    assert [g.shape for g in attention_gradients(x, x, x, x, None, None, None, False, None)] == [x.shape] * 3
