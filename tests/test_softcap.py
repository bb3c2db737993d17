"""Attention whose scores are capped by tanh, as in Gemma 2: compared with torch in float64, and in the stated order."""

import numpy as np
import pytest
from gradients import check_rule
from oracles import UNIT, assert_same_bits

import mp_core as mp
from mp_core import config, ops
from mp_core.dtypes import parse
from mp_core.ops.gradients.attention import attention_gradients, ragged_attention_gradients
from mp_core.ops.gradients.rows import softmax_gradient

FLOATS = ("float32", "float16", "bfloat16")
CAP = 2.5
OFFSETS = np.array([0, 5, 6, 206, 347], np.int32)
SETTINGS = {"plain": {}, "near": {"reach": 3}, "causal": {"is_causal": True}, "both": {"reach": 3, "is_causal": True}}


def operands(rng, length, dtype, n=2):
    """The upstream gradient, queries, keys and values."""
    shapes = ((n, length, heads, 8) for heads in (4, 4, 2, 2))
    return [mp.cast(2 * rng.standard_normal(shape), dtype) for shape in shapes]


def exact(torch, q, k, v, reach=None, is_causal=False):
    """The formula of transformers' Gemma 2, by torch in float64."""
    q, k, v = (x.transpose(1, 2).repeat_interleave(4 // x.shape[2], 1) for x in (q, k, v))
    scores = CAP * torch.tanh(q @ k.transpose(2, 3) / 8**0.5 / CAP)
    apart = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])
    masked = (apart < 0) & is_causal | (apart.abs() > (len(apart) if reach is None else reach))
    return (torch.softmax(scores.masked_fill(masked, -torch.inf), -1) @ v).transpose(1, 2)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("length", [1, 300])
def test_results_and_gradients_are_near_those_of_torch_in_float64(dtype, setting, length, isa, rng):
    torch = pytest.importorskip("torch")
    d, q, k, v = operands(rng, length, dtype)
    given = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in (q, k, v)]
    expected = exact(torch, *given, **setting)
    expected.backward(torch.tensor(d.astype(np.float64)))
    found = ops.dot_product_attention(q, k, v, softcap=CAP, **setting)
    assert found.dtype == parse(dtype)
    error = np.abs(found.astype(np.float64) - expected.detach().numpy()).max()
    assert error <= (4 * UNIT[dtype] + 1e-5) * np.abs(v.astype(np.float64)).max()
    how = (None, None, None, setting.get("is_causal", False), setting.get("reach"), CAP)
    tolerance = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    for one, other in zip(attention_gradients(d, q, k, v, *how), given, strict=True):
        scale = max(1, other.grad.abs().max())  # a text of one token has the gradient 0 by its key
        assert np.abs(one.astype(np.float64) - other.grad.numpy()).max() <= tolerance * scale


@pytest.mark.parametrize("setting", [{}, {"mask": True}, {"reach": 2}, {"is_causal": True}], ids=str)
def test_float64_is_what_difference_quotients_are(setting, rng):
    _, q, k, v = operands(rng, 7, "float64")
    mask = {"mask": rng.random((2, 1, 7, 7)) < 0.7} if setting.get("mask") else setting
    check_rule(lambda q, k, v: ops.dot_product_attention(q, k, v, softcap=CAP, **mask), q, k, v)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("length", [1, 300])
def test_the_order_is_the_stated_one(dtype, length, isa, rng):
    d, q, k, v = (x[:1, :, :1] for x in operands(rng, length, dtype))
    found = ops.dot_product_attention(q, k, v, softcap=CAP, scale=0.25)
    gradients = attention_gradients(d, q, k, v, None, None, 0.25, False, None, CAP)
    d, q, k, v = (np.ascontiguousarray(x[0, :, 0]) for x in (d, q, k, v))
    dq, dk, dv = np.empty_like(q), np.zeros(k.shape, np.float32), np.zeros(v.shape, np.float32)
    for band in (slice(first, first + 128) for first in range(0, length, 128)):
        capped = mp.tanh(mp.matmul(q[band], k.T, out_dtype="float32") * np.float32(0.25 / CAP))
        weights = mp.softmax(capped, scale=CAP)
        assert_same_bits(np.ascontiguousarray(found[0, band, 0]), mp.matmul(weights.astype(q.dtype), v))
        upstream = mp.matmul(d[band], v.T, out_dtype="float32")
        dv = mp.matmul(weights.astype(q.dtype).T, d[band], out_dtype="float32", residual=dv)
        scores = softmax_gradient(upstream, weights, np.float32, scale=0.25)
        by_tanh = (1 - capped.astype(np.float64) ** 2).astype(np.float32)  # exact before its one rounding
        scores = (scores * by_tanh).astype(q.dtype)
        dq[band] = mp.matmul(scores, k)
        dk = mp.matmul(scores.T, q[band], out_dtype="float32", residual=dk)
    for one, other in zip(gradients, (dq, dk.astype(q.dtype), dv.astype(q.dtype)), strict=True):
        assert_same_bits(one[0, :, 0], other)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_ragged_texts_have_the_bits_of_each_alone_with_any_threads(dtype, setting, rng):
    d, q, k, v = (x[0] for x in operands(rng, OFFSETS[-1] + 4, dtype, 1))
    how = (OFFSETS, None, None, setting.get("reach"), setting.get("is_causal", False))
    found = [ops.ragged_attention(q, k, v, *how, softcap=CAP)]
    found += ragged_attention_gradients(d, q, k, v, *how, softcap=CAP)
    with config.num_threads(3):
        again = [ops.ragged_attention(q, k, v, *how, softcap=CAP)]
        again += ragged_attention_gradients(d, q, k, v, *how, softcap=CAP)
    for begin, end in zip(OFFSETS[:-1].tolist(), OFFSETS[1:].tolist(), strict=True):
        part = [np.ascontiguousarray(x[None, begin:end]) for x in (d, q, k, v)]
        alone = [ops.dot_product_attention(*part[1:], softcap=CAP, **setting)]
        alone += attention_gradients(*part, None, None, None, how[4], how[3], CAP)
        for one, same, other in zip(found, again, alone, strict=True):
            assert_same_bits(one[begin:end], other[0])
            assert_same_bits(one[begin:end], same[begin:end])


def test_a_plan_of_other_lengths_has_the_bits_of_calls(rng):
    _, q, k, v = (x[0] for x in operands(rng, 347, "float32", 1))

    def attended(q, k, v, offsets):
        return ops.ragged_attention(q, k, v, offsets, softcap=CAP)

    plan = mp.compile(attended, q, k, v, np.array([0, 5, 10, 15, 347], np.int32))
    assert_same_bits(plan(q, k, v, OFFSETS), attended(q, k, v, OFFSETS))


@pytest.mark.parametrize("cap", [0, -1, np.inf, 1e-30])
def test_caps_out_of_range_are_refused(cap):
    x, offsets = np.ones((1, 3, 1, 4), np.float32), np.array([0, 3], np.int32)
    with pytest.raises(ValueError, match=r"`softcap` must be a positive number, from 2\*\*-64 to 2\*\*64; received"):
        ops.dot_product_attention(x, x, x, softcap=cap)
    with pytest.raises(ValueError, match="`softcap` must be"):
        ops.ragged_attention(x[0], x[0], x[0], offsets, softcap=cap)


def test_a_cap_beside_a_bias_and_one_that_is_no_number_are_refused():
    x, offsets, bias = np.ones((1, 3, 1, 4), np.float32), np.array([0, 3], np.int32), np.zeros((1, 1, 3, 3), np.float32)
    with pytest.raises(ValueError, match="`softcap` and `bias` are not computed together"):
        ops.dot_product_attention(x, x, x, bias, softcap=1.0)
    with pytest.raises(ValueError, match="`softcap` and `bias` are not computed together"):
        ops.ragged_attention(x[0], x[0], x[0], offsets, bias, softcap=1.0)
    for cap in ("1", np.nan):
        with pytest.raises(ValueError, match="`softcap` must be a number; received softcap="):
            ops.dot_product_attention(x, x, x, softcap=cap)
