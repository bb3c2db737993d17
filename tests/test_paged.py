"""Attention to keys in pages: each row has the bits of the same row of the whole sequence."""

import itertools

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core.config import num_threads
from mp_core.ops.paged import Pages, paged_attention, store_rows

PAGE = 16


def in_pieces(parts, dtype, pages, counts, **how):
    """Return the attention of one sequence, computed `counts` rows at a time."""
    q, k, v = parts
    rows, heads = (pages.max() + 1) * PAGE, k.shape[1]
    keys, values = (np.zeros((heads * rows, x.shape[2]), q.dtype) for x in (k, v))
    done, found = 0, []
    for count in counts:
        own = np.arange(done, done + count)
        places = pages[own // PAGE] * PAGE + own % PAGE
        used = -(-(done + count) // PAGE)
        where = Pages(*(np.array(x, np.int32) for x in ([done], pages[:used], [0, used], places, [rows])))
        for x, to in ((k, keys), (v, values)):
            store_rows(x[own], where, to)
        offsets = np.array([0, count], np.int32)
        found.append(paged_attention(q[own], keys, values, offsets, where, PAGE, heads, **how))
        done += count
    return np.concatenate(found)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("reach", [None, 20, 150])
@pytest.mark.parametrize("scattered", [False, True])
def test_attention_in_pieces_has_the_bits_of_the_whole(isa, dtype, reach, scattered, rng):
    counts = [1, 1, 30, 1, 129, 1, 1, 100, 7, 1, 140, 1]
    rows = sum(counts)
    parts = [mp.cast(rng.standard_normal((rows, heads, 16), np.float32), dtype) for heads in (4, 2, 2)]
    pages = np.arange(3, 3 + -(-rows // PAGE))
    pages = (rng.permutation(pages) if scattered else pages).astype(np.int32)
    whole = mp.ops.ragged_attention(*parts, np.array([0, rows], np.int32), reach=reach, is_causal=True)
    for threads in (1, 3):
        with num_threads(threads):
            assert_same_bits(in_pieces(parts, dtype, pages, counts, reach=reach), whole)


def test_sequences_of_a_batch_do_not_change_each_other(rng):
    q, k, v = (rng.standard_normal((70, heads, 8), np.float32) for heads in (6, 3, 3))
    offsets, past = np.array([0, 0, 20, 21, 70], np.int32), np.array([5, 0, 40, 11], np.int32)
    lengths = past + np.diff(offsets)
    used = -(-lengths // PAGE)
    starts = np.concatenate([[0], np.cumsum(used)]).astype(np.int32)
    pages = rng.permutation(starts[-1]).astype(np.int32)
    keys, values = (rng.standard_normal((3, len(pages) * PAGE, 8), np.float32) for _ in range(2))
    flat = [x.reshape(-1, 8) for x in (keys, values)]
    owner = np.repeat(np.arange(4), np.diff(offsets))
    at = past[owner] + np.arange(70) - offsets[owner]
    places = (pages[starts[owner] + at // PAGE] * PAGE + at % PAGE).astype(np.int32)
    where = Pages(past, pages, starts, places, np.array([len(pages) * PAGE], np.int32))
    store_rows(k, where, flat[0]), store_rows(v, where, flat[1])
    found = paged_attention(q, *flat, offsets, where, PAGE, 3, softcap=2.0)
    for i, (begin, end) in enumerate(itertools.pairwise(offsets)):
        rows = np.concatenate([np.arange(p * PAGE, (p + 1) * PAGE) for p in pages[starts[i] : starts[i + 1]]] or [[]])
        own = rows[: lengths[i]].astype(int)
        queries = np.zeros((lengths[i], 6, 8), np.float32)
        queries[past[i] :] = q[begin:end]
        whole = np.array([0, lengths[i]], np.int32)
        parts = queries, *(np.swapaxes(x[:, own], 0, 1) for x in (keys, values))
        expected = mp.ops.ragged_attention(*parts, whole, is_causal=True, softcap=2.0)
        assert_same_bits(found[begin:end], expected[past[i] :])


def test_rotary_positions_continue_after_the_past(rng):
    x, angles = rng.standard_normal((9, 2, 8), np.float32), rng.standard_normal((40, 8), np.float32)
    whole = mp.ops.ragged_rotary(x, angles, np.array([0, 9], np.int32))
    offsets, past = np.array([0, 4], np.int32), np.array([5], np.int32)
    assert_same_bits(mp.ops.ragged_rotary(x[5:], angles, offsets, past=past), whole[5:])
    with pytest.raises(IndexError, match="longer than the table of angles"):
        mp.ops.ragged_rotary(x[5:], angles, offsets, past=np.array([37], np.int32))
