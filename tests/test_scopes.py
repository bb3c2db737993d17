"""Scopes: they may be left in any order, thread or task, and nothing stays inside one."""

import asyncio
import contextvars
import threading

import numpy as np
import pytest

from mp_core import config, dtype_policies, saving, tf_keras
from mp_core.autocast import AutoCastVariable, autocast_scope, enable_auto_cast_variables
from mp_core.layers import Dense, Layer


def _reads():
    return AutoCastVariable([1.0]).dtype.name


def _default():
    return dtype_policies.dtype_policy().name


def _knowing(cls):
    return saving.custom_object_scope({"Known": cls})


SCOPES = {  # name -> scope, two values, what reads them
    "autocast_scope": (autocast_scope, "float16", "bfloat16", _reads),
    "enable_auto_cast_variables": (enable_auto_cast_variables, "float16", "bfloat16", _reads),
    "policy_scope": (dtype_policies.policy_scope, "float16", "mixed_bfloat16", _default),
    "tf_keras policy_scope": (tf_keras.mixed_precision.policy_scope, "float16", "mixed_bfloat16", _default),
    "num_threads": (config.num_threads, 7, 9, config.get_num_threads),
    "custom_object_scope": (_knowing, Dense, Layer, lambda: saving.get_registered_object("Known")),
}


@pytest.fixture(params=SCOPES.values(), ids=SCOPES)
def case(request):
    return request.param


def _holding(scope, value):
    with scope(value):
        yield


def _in_thread(call):
    """Return what `call` gives in a thread that begins outside every scope."""
    results = []
    thread = threading.Thread(target=lambda: results.append(contextvars.Context().run(call)))
    thread.start()
    thread.join()
    return results[0]


def test_a_generator_that_is_closed_in_another_thread_leaves_its_scope(case):
    scope, one, other, read = case
    outside = read()
    generator = _holding(scope, one)
    next(generator)
    assert read() == one
    _in_thread(generator.close)
    assert read() == outside
    with scope(other):
        assert read() == other
    assert read() == outside


def test_a_scope_around_one_that_is_closed_elsewhere_holds_on(case):
    scope, one, other, read = case
    outside = read()
    with scope(other):
        generator = _holding(scope, one)
        next(generator)
        _in_thread(generator.close)
        assert read() == other
    assert read() == outside


def test_scopes_are_left_in_any_order(case):
    scope, one, other, read = case
    outside = read()
    first, second = scope(one), scope(other)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert read() == other
    second.__exit__(None, None, None)
    assert read() == outside


def test_generators_that_take_turns_leave_no_scope_behind(case):
    scope, one, other, read = case
    outside = read()
    first, second = _holding(scope, one), _holding(scope, other)
    next(first)
    next(second)
    assert next(first, "ended") == "ended" and read() == other
    second.close()
    assert read() == outside


def test_an_asynchronous_generator_that_another_task_closes_leaves_its_scope(case):
    scope, one, _, read = case

    async def hold():
        with scope(one):
            yield

    async def main():
        outside, generator = read(), hold()
        await anext(generator)
        inside = read()
        await asyncio.create_task(generator.aclose())
        return outside, inside, read()

    outside, inside, after = asyncio.run(main())
    assert inside == one and after == outside


def test_a_task_keeps_the_scope_it_was_made_in(case):
    scope, one, other, read = case

    async def work():
        await asyncio.sleep(0)
        with scope(other):
            assert read() == other
        return read()

    async def main():
        outside = read()
        with scope(one):
            task = asyncio.create_task(work())
            await asyncio.sleep(0)
        assert read() == outside
        return await task

    assert asyncio.run(main()) == one


def test_a_generator_that_is_closed_in_a_copy_of_the_context_leaves_its_scope(case):
    scope, one, _, read = case
    outside = read()
    generator = _holding(scope, one)
    next(generator)
    copy = contextvars.copy_context()
    copy.run(generator.close)
    assert copy.run(read) == read() == outside


def test_a_default_that_is_set_inside_a_scope_ends_with_it():
    outside = _default()
    with dtype_policies.policy_scope("float16"):
        first = dtype_policies.policy_scope("mixed_float16")
        first.__enter__()
        second = dtype_policies.policy_scope("float64")
        second.__enter__()
        dtype_policies.set_dtype_policy("mixed_bfloat16")
        first.__exit__(None, None, None)
        assert _default() == "mixed_bfloat16"
        second.__exit__(None, None, None)
        assert _default() == "float16"
    assert _default() == outside
    generator = _holding(dtype_policies.policy_scope, "float16")
    next(generator)
    _in_thread(generator.close)
    dtype_policies.set_dtype_policy(outside)  # outside every scope: of the process
    assert _in_thread(_default) == outside


class _Closing(Layer):
    """A layer whose call closes a generator."""

    def __init__(self, generator, **kwargs):
        super().__init__(**kwargs)
        self.generator = generator
        self.weight = self.add_weight(shape=(1,))

    def call(self, x):
        before = self.weight.dtype.name
        self.generator.close()
        return x if self.weight.dtype.name == before else x * np.nan


def test_a_scope_that_is_left_inside_a_call_ends():
    generator = _holding(autocast_scope, "float16")
    next(generator)
    layer = _Closing(generator, dtype="mixed_bfloat16")
    assert layer(np.ones(1, np.float32)).astype(np.float32) == 1
    assert _reads() == "float32"


class _Entering(_Closing):
    """A layer whose call begins a generator, which goes on afterwards."""

    def call(self, x):
        next(self.generator)
        return x


def test_a_scope_that_is_entered_inside_a_call_ends():
    generator = _holding(autocast_scope, "float16")
    layer = _Entering(generator, dtype="mixed_bfloat16")
    layer(np.ones(1, np.float32))
    generator.close()
    assert _reads() == "float32"


def test_layers_compute_under_their_policy_after_a_scope_was_closed_elsewhere():
    layer = Dense(1, dtype="mixed_bfloat16")
    expected = layer(np.ones((1, 2), np.float32))
    generator = _holding(autocast_scope, "float16")
    next(generator)
    _in_thread(generator.close)
    result = layer(np.ones((1, 2), np.float32))
    assert result.dtype == expected.dtype and result == expected
