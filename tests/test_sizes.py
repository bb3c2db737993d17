"""Plans for any number of rows: sizes are distinguished, and no run reads or writes outside its arrays."""

import numpy as np
import pytest
import random_models

import mp_core as mp
from mp_core import ops
from mp_core.layers.plans.sizes import Sizes
from mp_core.models import TextNetwork
from mp_core.models.ragged import RaggedTexts, _Pooled
from mp_core.plans import ForwardPlan, UnseenError

RNG = np.random.default_rng(0)
POOLINGS = ("mean", "mean_sqrt_len_tokens", "weightedmean", "max", "cls", "lasttoken")


def ragged(lengths, width=4):
    offsets = np.cumsum([0, *lengths]).astype(np.int32)
    return RNG.standard_normal((offsets[-1], width)).astype(np.float32), offsets


def plan_of(function, *lengths):
    """A plan of `function`, called with the rows of sequences of these lengths, and their offsets."""
    examples, sizes = [ragged(each) for each in lengths], [(sum(each), len(each)) for each in lengths]
    return ForwardPlan(function, examples[0], {}, sizes[0], (examples[1], sizes[1]))


def rows_of(x, offsets):
    return [x, offsets], (len(x), len(offsets) - 1)


def pooled(longest=9):
    return lambda x, offsets: ops.ragged_pool(ops.relu(x), offsets, POOLINGS, 0, longest)


@pytest.mark.parametrize("lengths", [([5, 6, 7], [5, 6, 7, 8]), ([1, 1, 1], [1, 1, 1, 1]), ([3], [2, 2])])
def test_a_plan_serves_all_numbers_of_rows(lengths):
    plan = plan_of(pooled(), *lengths)
    for each in ([1], [1] * 9, [2, 5], [3, 3, 3]):
        if max(lengths[0]) > 1 or max(each) == 1:
            x, offsets = ragged(each)
            np.testing.assert_array_equal(plan.run_rows(*rows_of(x, offsets)), pooled()(x, offsets))


def test_a_length_that_equals_a_size_is_no_size():
    def function(x, offsets, fixed):
        return ops.ragged_pool(x, offsets, longest=9), mp.cast(fixed, "bfloat16")

    fixed = np.ones((3, 4), np.float32)
    examples = [(*ragged(each), fixed) for each in ([1, 3], [2, 2, 2])]
    plan = ForwardPlan(function, examples[0], {}, (4, 2), (examples[1], (6, 3)))
    x, offsets = ragged([2, 1, 1, 1, 6])
    for found, expected in zip(plan.run_rows([x, offsets, 2 * fixed], (11, 5)), function(x, offsets, 2 * fixed),
                               strict=True):  # fmt: skip
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("offsets", [[0, 2, 9], [-1, 2, 5], [0, 4, 2], [0, 0, 5], [0, 1, 5], [2**31 - 1, -(2**31), 5]])
def test_offsets_are_checked_before_a_run(offsets):
    plan = plan_of(pooled(3), [1, 2], [3, 3, 1])
    x = np.ones((5, 4), np.float32)
    with pytest.raises(ValueError, match="tokens"):
        plan.run_rows([x, np.array(offsets, np.int32)], (5, 2))
    with pytest.raises(ValueError, match="tokens"):
        plan(x[:3], np.array([*offsets[:2], 3], np.int32) * 2)
    out = np.empty((2, 24), np.float32)
    with pytest.raises(ValueError, match="tokens"):
        plan.run_passes([([x, np.array(offsets, np.int32)], (5, 2), out)])


def test_a_bias_bounds_the_lengths():
    bias = np.zeros((1, 1, 3, 3), np.float32)

    def function(x, offsets):
        x = x.reshape(len(x), 1, 4)
        return ops.ragged_attention(x, x, x, offsets, bias)

    plan = plan_of(function, [1, 2], [3, 3, 1])
    plan.run_rows(*rows_of(*ragged([3, 2])))
    with pytest.raises(ValueError, match="at most 3 tokens"):
        plan.run_rows(*rows_of(*ragged([4, 2])))


@pytest.mark.parametrize("shape", [(4, 4), (6, 4), (5, 3), (5,)])
def test_arrays_are_as_long_as_the_rows_say(shape):
    plan = plan_of(pooled(), [1, 2], [3, 3, 1])
    offsets = np.array([0, 2, 5], np.int32)
    with pytest.raises(ValueError, match=r"array 0 of the plan must be a C-contiguous array of shape \(5, 4\)"):
        plan.run_rows([np.ones(shape, np.float32), offsets], (5, 2))
    x = np.ones((5, 4), np.float32)
    for wrong in (x.astype(np.float64), np.asfortranarray(x)):
        with pytest.raises(ValueError, match="array 0 of the plan"):
            plan.run_rows([wrong, offsets], (5, 2))
    with pytest.raises(ValueError, match="array 1 of the plan"):
        plan.run_rows([x, offsets[:2]], (5, 2))
    for rows in ((), (5,), (5, 0), (-5, 2), (5, 2, 1)):
        with pytest.raises(ValueError, match="`rows` must be 2 positive numbers"):
            plan.run_rows([x, offsets], rows)
    with pytest.raises(ValueError, match="cannot be passed to C"):
        plan.c_plan()
    with pytest.raises(ValueError, match="out must be"):
        plan.run_passes([([x, offsets], (5, 2), np.empty((3, 24), np.float32))])


def test_sizes_that_are_always_equal_stay_equal():
    plan = plan_of(pooled(), [1, 1, 1], [1, 1, 1, 1])
    with pytest.raises(ValueError, match="equal numbers at 0 and 1"):
        plan.run_rows(*rows_of(*ragged([2, 3])))


UNTOLD = {
    "rows": lambda x, offsets: ops.relu(x.reshape(-1, 2)),
    "shape": lambda x, offsets: ops.relu(x.T),
    "operations": lambda x, offsets: ops.relu(x) if len(x) == 3 else ops.relu(ops.relu(x)),
    "offsets": lambda x, offsets: ops.ragged_pool(x, offsets[1:]),
    "each run": lambda x, offsets: ops.pad_zeros(x, [(0, 0), (1, 1)]),
}


@pytest.mark.parametrize("what", UNTOLD)
def test_what_has_no_size_is_refused(what):
    with pytest.raises(UnseenError, match=what):
        plan_of(UNTOLD[what], [1, 2], [3, 3, 1])


def test_examples_differ_in_all_sizes():
    with pytest.raises(ValueError, match="each size must differ"):
        Sizes((3, 4), (3, 5))
    with pytest.raises(ValueError, match="equally many"):
        Sizes((3,), ())


@pytest.mark.parametrize("name", random_models.PLANNED)
def test_no_lengths_make_a_network_read_beyond_its_positions(name):
    model = TextNetwork(random_models.made(name).config.to_dict())
    model.build((None, None))
    longest = model.settings.max_length
    texts = RaggedTexts(model, _Pooled(model, POOLINGS, 0), len(POOLINGS) * model.settings.hidden_size)
    assert texts(np.full(longest + 1, 3), [1, longest]).shape[0] == 2
    for lengths in ([longest + 1], [0, longest], [longest, 0, 0]):
        with pytest.raises(ValueError, match=r"token|lengths"):
            texts(np.full(sum(lengths), 3), lengths)
