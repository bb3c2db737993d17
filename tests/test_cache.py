"""Caches: they keep the most recently used values, for several threads, and copies do not share them."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mp_core.layers.plans.cache import Cache


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_begins_empty_with_the_same_limit(copied):
    cache = Cache(2)
    cache.put("plan", lambda: None)  # cannot be pickled
    again = copied(cache)
    assert (len(cache), len(again)) == (1, 0)
    assert [again.put(key, key) for key in range(5)] and len(again) == 2


def test_a_value_that_is_used_again_or_replaced_is_kept():
    cache = Cache(3)
    for key in "abc":
        cache.get_or_make(key, lambda: 1)
    cache.get("a")
    cache.put("d", 1)
    assert [cache.get(key) for key in "abcd"] == [1, None, 1, 1]
    assert cache.put("a", 2) == cache.get_or_make("a", list) == 2 and len(cache) == 3


def test_a_value_that_is_dropped_while_it_is_looked_up_is_returned():
    class Key:  # whose comparison lets another thread use the cache, as it were
        def __hash__(self):
            return 1

        def __eq__(self, other):
            for key in "abc":
                cache.put(key, key)
            return True

    cache = Cache(2)
    cache.put(Key(), "value")
    assert cache.get(Key()) == "value" and len(cache) == 2


def test_threads_get_the_values_of_their_keys_and_leave_no_more_than_fit():
    cache = Cache(4)

    def use(thread):
        return all(cache.get_or_make(key % 7, lambda key=key: -(key % 7)) == -(key % 7) for key in range(thread, 3000))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(use, range(8)))
    assert len(cache) <= 4


def test_a_function_called_with_many_shapes_keeps_a_bounded_number_of_plans():
    import mp_core as mp
    from mp_core.training.planned_calls import PlannedCalls

    w = mp.AutoCastVariable(np.ones(1, np.float32), name="w")
    step = mp.value_and_grad(lambda x: mp.mean(w * x), [w])
    layer = mp.layers.Dense(2)
    calls = PlannedCalls(layer)
    for n in range(1, 41):
        x = np.ones((n, 3), np.float32)
        assert step(x)[0] == 1.0
        for _ in range(2):
            np.testing.assert_array_equal(calls(x), layer(x))
    assert (len(step._plans), len(calls._calls)) == (32, 8)
