"""Gradients of attention, dense and ragged: against difference quotients, torch's autograd, and in the stated order."""

import numpy as np
import pytest
from gradients import by_rules, check_rule, weights_for
from oracles import assert_same_bits

import mp_core as mp
from mp_core import ops
from mp_core.core import cpu
from mp_core.dtypes import parse
from mp_core.gradients.attention import attention_gradients, ragged_attention_gradients
from mp_core.gradients.rows import softmax_gradient

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


def replayed(d, q, k, v, scale):
    """The order of docs/numerics.md for one head, by products and rows: (length, size) each."""
    dq, dk, dv = np.empty_like(q), np.zeros(k.shape, np.float32), np.zeros(v.shape, np.float32)
    for band in (slice(first, first + 128) for first in range(0, len(q), 128)):
        weights = mp.softmax(mp.matmul(q[band], k.T, out_dtype="float32"), scale=scale)
        upstream = mp.matmul(d[band], v.T, out_dtype="float32")
        dv = mp.matmul(weights.astype(q.dtype).T, d[band], out_dtype="float32", residual=dv)
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
