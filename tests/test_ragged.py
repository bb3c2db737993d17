"""Concatenated texts: the bits of each text alone, in any batch, on any number of threads."""

import copy
import itertools
import json

import numpy as np
import pytest
import random_models
import tiny_bert

import mp_core as mp
from mp_core import calibrate, ops
from mp_core.models import BertEncoder
from mp_core.models.pooling import POOLINGS, pool
from mp_core.models.ragged import Plans, cut

RNG = np.random.default_rng(0)
TYPES = ("float32", "float16", "bfloat16")
OFFSETS = np.array([0, 1, 1, 9, 40, 110], np.int32)
TEXTS = ["a b c", "d", "a b c d e f g h", "h g f e", "a a a", "b c d e"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert.write(tmp_path_factory.mktemp("ragged") / "model")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("biased", [False, True])
def test_ragged_attention_is_that_of_each_sequence(dtype, threads, biased):
    qkv = ops.cast(RNG.standard_normal((120, 3, 2, 24)), dtype)
    bias = RNG.standard_normal((1, 2, 75, 75)).astype(np.float32) if biased else None
    query, key, value = qkv[:, 0], qkv[:, 1], qkv[:, 2]
    with mp.config.num_threads(threads):
        found = ops.ragged_attention(query, key, value, OFFSETS, bias)
    for begin, end in itertools.pairwise(OFFSETS):
        part = (x[np.newaxis, begin:end] for x in (query, key, value))
        own = None if bias is None else bias[:, :, : end - begin, : end - begin]
        np.testing.assert_array_equal(found[begin:end], ops.dot_product_attention(*part, own)[0])


def test_wrong_ragged_operands_are_named():
    x = np.zeros((4, 1, 2), np.float32)
    offsets = np.array([0, 4], np.int32)
    for wrong in ([[0, 4]], []):
        with pytest.raises(ValueError, match="`offsets` must have one axis"):
            ops.ragged_attention(x, x, x, np.array(wrong, np.int32))
    for wrong in ([0, 5], [-1, 4], [3, 2], [0, 2**31 - 1, -2, 4]):
        with pytest.raises(ValueError, match="`offsets` must ascend"):
            ops.ragged_attention(x, x, x, np.array(wrong, np.int32))
    with pytest.raises(TypeError, match="`offsets` must be of int32"):
        ops.ragged_attention(x, x, x, np.array([0, 4]))
    with pytest.raises(TypeError, match="must all be float32"):
        ops.ragged_attention(x, x, x.astype(np.float64), offsets)
    two = np.zeros((4, 2, 2), np.float32)
    for operands in (
        (x, x, x[:3]),
        (x, x[:3], x[:3]),
        (x, two, two),
        (x, x, two),
        (x, x[:, :0], x[:, :0]),
        (x, x[0], x),
    ):
        with pytest.raises(ValueError, match="key heads divide heads; received"):
            ops.ragged_attention(*operands, offsets)
    with pytest.raises(TypeError, match="`is_causal`"):
        ops.ragged_attention(x, x, x, offsets, is_causal=1)
    with pytest.raises(ValueError, match="`bias` must have shape"):
        ops.ragged_attention(x, x, x, offsets, np.zeros((1, 1, 3, 3), np.float32))
    with pytest.raises(ValueError, match="`pooling` must be of"):
        ops.ragged_pool(x[:, 0], offsets, ("mean", "median"))
    assert ops.ragged_attention(x, x, x, np.array([0], np.int32)).shape == x.shape


ROWS, ENDS = np.ones((9, 3), np.float32), np.array([0, 4, 9], np.int32)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"x": ROWS.tolist()}, TypeError, "`x` must be of float32, float16 or bfloat16; received list"),
        ({"x": ROWS.astype(float)}, TypeError, "`x` must be of float32, float16 or bfloat16; received float64"),
        ({"x": ROWS[0]}, ValueError, r"`x` must have shape \(tokens, width\); received \(3,\)"),
        ({"x": ROWS[:5]}, ValueError, "`offsets` must ascend from 0 to at most the 5 tokens"),
        ({"offsets": [0, 4, 9]}, TypeError, "`offsets` must be of int32; received list"),
        ({"offsets": np.array([0, 9, 4], np.int32)}, ValueError, "`offsets` must ascend"),
        ({"offsets": np.array([0, 4, 4, 9], np.int32)}, ValueError, "more than the 0 rows skipped; one has 0"),
        ({"offsets": np.array([-5, 9], np.int32)}, ValueError, "`offsets` must ascend"),
        ({"skipped": 4}, ValueError, "`offsets` must give each sequence more than the 4 rows skipped; one has 4"),
        ({"skipped": 2**40}, ValueError, "rows skipped"),
        ({"skipped": -1}, ValueError, "`skipped` must be at least 0; received -1"),
        ({"skipped": 1.0}, TypeError, "`skipped` must be an integer"),
        ({"longest": 4}, ValueError, "`longest` must be at least 5, the length of a sequence; received 4"),
        ({"longest": -1}, ValueError, "`longest` must be at least 5"),
        ({"longest": "9"}, TypeError, "`longest` must be an integer"),
    ],
)
def test_wrong_poolings_are_named(pooling, changed, error, message):
    with pytest.raises(error, match=message):
        ops.ragged_pool(**{"x": ROWS, "offsets": ENDS, "pooling": pooling} | changed)


def test_pooling_of_no_sequence_is_empty():
    assert ops.ragged_pool(ROWS, ENDS[:1]).shape == (0, 3)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_takes_no_memory_for_lengths_that_no_sequence_has(pooling):
    expected = ops.ragged_pool(ROWS, ENDS, pooling)
    np.testing.assert_array_equal(ops.ragged_pool(ROWS, ENDS, pooling, longest=2**62), expected)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("skipped", [0, 2])
def test_ragged_pooling_is_that_of_padded_texts(dtype, pooling, skipped):
    lengths = [3, 9, 31, 70]
    offsets = np.cumsum([0, *lengths]).astype(np.int32)
    x = ops.cast(RNG.standard_normal((sum(lengths), 40)), dtype)
    mask = np.arange(70) < np.array(lengths)[:, np.newaxis]
    padded = np.zeros((4, 70, 40), x.dtype)
    padded[mask] = x
    expected = pool((pooling,), padded, mask, mask & (np.arange(70) >= skipped))
    np.testing.assert_array_equal(ops.ragged_pool(x, offsets, pooling, skipped), expected)


@pytest.mark.parametrize(
    ("tokens", "lengths", "message"),
    [
        (11, [11], "`lengths` must be from 1 to 10; received 11 to 11"),
        (3, [3, 0], "`lengths` must be from 1 to 10; received 0 to 3"),
        (3, [4, -1], "`lengths` must be from 1 to 10; received -1 to 4"),
        (4, [3], "`lengths` must have the sum 4, the number of `ids`, and at most 2147483647; received the sum 3"),
    ],
)
def test_lengths_that_do_not_fit_are_refused_before_a_plan_runs(folder, tokens, lengths, message):
    encoder = BertEncoder.from_folder(folder)
    texts = encoder._plans.vectors(encoder.model, ("mean",), 0)
    with pytest.raises(ValueError, match=message):
        texts(np.broadcast_to(np.int32(4), tokens), lengths)


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_passes_have_all_texts_once_and_similar_sizes(threads):
    for lengths in (
        [128] * 32,
        [32],
        [64] * 8,
        [60, 50, 40, 30, 20],
        [1] * 5,
        [512] * 3,
        [500, 1, 1, 1],
        [3] * 1000,
        [],
    ):
        ranges = cut(lengths, threads)
        assert [index for first, last in ranges for index in range(first, last)] == list(range(len(lengths)))
        sizes = [sum(lengths[first:last]) for first, last in ranges]
        if len(ranges) > 1 or threads == 1:
            assert max(sizes, default=0) <= 2 * max([512, *lengths])
        if len(lengths) >= 4 * threads and sum(lengths) > 512 * threads:
            assert len(ranges) % threads == 0


@pytest.mark.parametrize(
    "policy", ["float32", "bfloat16", "mixed_float16", "int8", "int8/weight_only", "int4/8", "float8_e4m3fn/8"]
)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_text_has_the_same_bits_alone_and_in_any_batch(folder, policy, threads):
    encoder = BertEncoder.from_folder(folder, policy)
    alone = np.stack([encoder.encode(text) for text in TEXTS])
    with mp.config.num_threads(threads):
        for order in (slice(None), slice(None, None, -1), slice(1, 5)):
            for size in (1, 2, 32):
                np.testing.assert_array_equal(encoder.encode(TEXTS[order], batch_size=size), alone[order])
        np.testing.assert_array_equal(encoder.encode(TEXTS * 60, batch_size=512), np.tile(alone, (60, 1)))


@pytest.mark.parametrize("name", random_models.PLANNED)
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken", "max"])
def test_ragged_texts_have_the_bits_of_padded_ones(name, pooling, tmp_path):
    folder = random_models.save(random_models.made(name), tmp_path)
    modes = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken", "max": "max_tokens"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{modes[pooling]}": True}))
    encoder = BertEncoder.from_folder(folder)
    ids, mask = random_models.ragged(padding=1)
    mask = mask.astype(bool)
    eager = encoder._embed(ids, mask)
    np.testing.assert_array_equal(encoder.embed_tokens(ids, mask), eager)
    with mp.config.num_threads(2):
        np.testing.assert_array_equal(encoder.embed_tokens(ids, mask), eager)


@pytest.mark.parametrize("policy", ["float32", "bfloat16", "int4/8", "float8_e4m3fn/8"])
def test_several_poolings_stand_side_by_side(policy, tmp_path):
    folder = random_models.save(random_models.made("bert"), tmp_path)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": list(POOLINGS)}))
    encoder = BertEncoder.from_folder(folder, policy)
    assert encoder._plans.vectors(encoder.model, encoder._modules.poolings, 0) is not None
    ids, mask = random_models.ragged(padding=1)
    mask = mask.astype(bool)
    expected = encoder._embed(ids, mask)
    assert expected.shape == (4, 6 * 32)
    for threads in (1, 2):
        with mp.config.num_threads(threads):
            np.testing.assert_array_equal(encoder.embed_tokens(ids, mask), expected)
            many = encoder.embed_tokens(np.tile(ids, (20, 1)), np.tile(mask, (20, 1)))
            np.testing.assert_array_equal(many, np.tile(expected, (20, 1)))


def test_the_largest_of_a_column_is_that_of_numpy():
    x = RNG.standard_normal((9, 5)).astype(np.float32)
    x[2, 0], x[4, 1], x[:5, 2], x[6, 3] = np.nan, np.inf, -np.inf, -0.0
    with np.errstate(invalid="ignore"):
        found = ops.ragged_pool(x, np.array([0, 5, 9], np.int32), "max")
        np.testing.assert_array_equal(found, [x[:5].max(axis=0), x[5:].max(axis=0)])
    zeros = ops.ragged_pool(np.array([[-0.0], [-0.0], [0.0]], np.float32), np.array([0, 1, 3], np.int32), "max")
    assert not np.signbit(zeros).any()


def test_masks_with_holes_are_padded(folder):
    encoder, ids = BertEncoder.from_folder(folder), np.array([[2, 3, 4, 5], [5, 4, 3, 2]])
    for mask in ([[1, 0, 1, 1], [1, 1, 1, 1]], [[0, 1, 1, 1], [1, 1, 1, 1]]):
        keep = np.array(mask, bool)
        np.testing.assert_array_equal(encoder.embed_tokens(ids, keep), encoder._embed(ids, keep))


def test_wrong_tokens_are_refused(folder):
    encoder = BertEncoder.from_folder(folder)
    vocabulary, longest = encoder.model.settings.vocab_size, encoder.max_length
    encoder.embed_tokens(np.array([[1, 2]]))
    for ids in ([[vocabulary]], [[-1]], [[2**40]]):
        with pytest.raises(ValueError, match="`ids` must be from 0 to"):
            encoder.embed_tokens(np.array(ids))
    for shape in ((2,), (1, 0), (1, longest + 1), (1, 1, 1)):
        with pytest.raises(ValueError, match="`ids` must have shape"):
            encoder.embed_tokens(np.ones(shape, int))
    with pytest.raises(ValueError, match="`mask` must have the shape"):
        encoder.embed_tokens(np.ones((1, 3), int), np.ones((1, 2), bool))
    with pytest.raises(ValueError, match="must have a token in every row"):
        encoder.embed_tokens(np.ones((1, 3), int), np.zeros((1, 3), bool))
    assert encoder.embed_tokens(np.ones((0, 3), int)).shape == (0, encoder.dim)


def test_new_weights_and_policies_count(folder):
    encoder = BertEncoder.from_folder(folder)
    before = encoder.encode(TEXTS)
    encoder.model.set_weights([1.5 * weight for weight in encoder.model.get_weights()])
    fresh = copy.deepcopy(encoder).encode(TEXTS)
    assert not np.array_equal(fresh, before)
    np.testing.assert_array_equal(encoder.encode(TEXTS), fresh)
    encoder.model.dtype_policy = "mixed_bfloat16"
    np.testing.assert_array_equal(encoder.encode(TEXTS), copy.deepcopy(encoder).encode(TEXTS))


def test_calibration_sees_texts_and_no_example_of_a_plan(folder):
    used = BertEncoder.from_folder(folder)
    used.encode(TEXTS)  # has a plan
    ours, fresh = (calibrate(encoder, TEXTS, "int8") for encoder in (used, BertEncoder.from_folder(folder)))
    np.testing.assert_array_equal(ours.encode(TEXTS), fresh.encode(TEXTS))


def test_prompts_have_plans_of_their_own(folder):
    encoder = BertEncoder.from_folder(folder)
    rows = [np.array([2, 3, 4, 5, 6]), np.array([2, 7, 8])]
    for skipped in (0, 1, 2):
        texts = Plans().vectors(encoder.model, ["mean"], skipped)
        ids, mask = np.zeros((2, 5), int), np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)
        ids[mask] = np.concatenate(rows)
        np.testing.assert_array_equal(texts(np.concatenate(rows), [5, 3]), encoder._embed(ids, mask, skipped))


def test_a_network_that_no_plan_has_is_recorded_once_and_then_not_again(folder, monkeypatch):
    encoder = BertEncoder.from_folder(folder, "float64")
    expected, made = encoder.encode(TEXTS), []
    monkeypatch.setattr("mp_core.models.ragged.RaggedTexts", lambda *arguments: made.append(arguments))
    np.testing.assert_array_equal(encoder.encode(TEXTS), expected)
    assert not made


def test_a_plan_that_can_no_longer_be_recorded_is_given_up(folder):
    encoder = BertEncoder.from_folder(folder, "bfloat16")
    encoder.encode(TEXTS)
    encoder.model.dtype_policy = "float64"
    fresh = copy.deepcopy(encoder)
    np.testing.assert_array_equal(encoder.encode(TEXTS), fresh.encode(TEXTS))
