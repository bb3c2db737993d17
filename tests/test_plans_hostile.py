"""Findings of an attack on plans: each test is a case in which a plan was stale, wrong, crashed, hung or grew."""

import copy
import gc
import sys
import threading
import tracemalloc

import numpy as np
import processes
import pytest
import tiny_bert

import mp_core as mp
from mp_core.arrays.recorded import Recorded
from mp_core.autocast import AutoCastVariable
from mp_core.layers import Dense, Layer, Sequential, activations
from mp_core.models import BertEncoder, ragged
from mp_core.plans import UnseenError, eager

RNG = np.random.default_rng(0)
X, Y = (RNG.standard_normal((4, 6)).astype(np.float32) for _ in range(2))
W = RNG.standard_normal((6, 6)).astype(np.float32)
PRELUDE = """
import numpy as np, mp_core as mp
from mp_core import ops
"""


class Function(Layer):
    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.function = function

    def call(self, *args):
        return self.function(*args)


def parts(tree):
    return list(tree) if isinstance(tree, tuple) else [np.asarray(tree)]


def refused_or_right(function, example=(X,), inputs=(Y,)):
    """A plan is either refused by name, or gives what the function gives."""
    try:
        plan = mp.compile(Function(function), *(x.copy() for x in example))
    except UnseenError:
        return
    expected = parts(function(*(x.copy() for x in inputs)))
    found = parts(plan(*(x.copy() for x in inputs)))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def script(code, timeout=60):
    """Run code in a process of its own, since it may crash or hang."""
    done = processes.run([sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr[-500:]}"
    return done.stdout


# ---- crashes


def test_a_strided_out_does_not_overflow_the_arena():
    script("""
x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
def f(x):
    out = np.empty((64, 64 * 2000), np.float32)[:, ::2000]
    mp.relu(x, out=out)
    return mp.tanh(out)
try:
    plan = mp.compile(f, x)
except ValueError:
    raise SystemExit(0)
assert np.array_equal(plan(x), mp.tanh(mp.relu(x)))
""")


@pytest.mark.parametrize("call", ["ops.ragged_attention(x, x, x, o)", "ops.ragged_pool(x[:, 0], o)"])
@pytest.mark.parametrize("last", [9, 200_000_000, -1])
def test_offsets_outside_of_the_tokens_are_refused_by_a_plan(call, last):
    script(f"""
x = np.ones((8, 1, 4), np.float32)
try:
    plan = mp.compile(lambda x, o: {call}, x, np.array([0, 3, 8], np.int32))
    plan(x, np.array([0, 3, {last}], np.int32))
except (ValueError, IndexError):
    raise SystemExit(0)
raise SystemExit("taken without a word")
""")


def test_a_recorded_array_that_is_used_after_the_recording_does_not_reach_the_plan():
    script("""
kept = []
def f(x):
    kept.append(x)
    return mp.relu(x)
x = np.ones((4, 6), np.float32)
plan = mp.compile(f, x)
try:
    mp.tanh(kept[-1])  # notes a step on the tape of a finished recording
except ValueError:
    pass
assert np.array_equal(plan(-x), mp.relu(-x))
""")


def test_a_layer_that_keeps_an_array_still_returns_arrays():
    class Cache(Layer):
        before = None

        def call(self, x):
            self.before = mp.relu(x) if self.before is None else mp.layer_norm(x, residual=self.before)
            return self.before

    layer = Cache()
    try:
        mp.compile(layer, X)
        found = layer(Y)
    except UnseenError:
        return
    assert type(found) is np.ndarray


# ---- hangs


def test_a_layer_that_runs_its_own_plan_does_not_hang():
    script(
        """
import threading
from mp_core.layers import Dense, Layer
class Own(Layer):
    def __init__(self):
        super().__init__()
        self.dense, self.plan = Dense(6), None
    def call(self, x):
        return self.plan(x) if type(x) is np.ndarray and self.plan is not None else self.dense(x)
layer, x = Own(), np.ones((4, 6), np.float32)
layer.plan = mp.compile(layer, x)
layer.dense.kernel.assign(2 * layer.dense.kernel.numpy())
thread = threading.Thread(target=layer, args=(x,), daemon=True)
thread.start()
thread.join(10)
import os
os._exit(thread.is_alive())
"""
    )


@pytest.mark.slow
def test_exceptions_of_signal_handlers_leak_no_arena():
    out = script("""
import signal, time
from mp_core.layers.plans.arena import ARENAS
from mp_core.layers import Dense
class Alarm(Exception): pass
def ring(*_): raise Alarm
signal.signal(signal.SIGALRM, ring)
x = np.ones((4, 6), np.float32)
plan = mp.compile(Dense(3), x)
end, rng = time.time() + 10, np.random.default_rng(0)
while time.time() < end and len(ARENAS._lent) < 60:
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(2e-5, 9e-5))
        while True:
            plan(x)
    except Alarm:
        pass
print(len(ARENAS._lent))
""")
    assert int(out) < 5


@pytest.mark.slow
def test_the_child_of_a_fork_has_all_arenas():
    script("""
import os, threading, time, warnings
from mp_core.layers import Dense
warnings.simplefilter("ignore")
x = np.ones((512, 1024), np.float32)
plan, small = mp.compile(Dense(1024), x), mp.compile(Dense(2), x[:2, :3])
def work():
    with mp.config.num_threads(1):
        while True:
            plan(x)
for _ in range(80):
    threading.Thread(target=work, daemon=True).start()
time.sleep(2)
child = os.fork()
if not child:
    small(x[:2, :3])
    os._exit(0)
for _ in range(100):
    if os.waitpid(child, os.WNOHANG)[0]:
        os._exit(0)
    time.sleep(0.1)
os.kill(child, 9)
os._exit(1)
""")


# ---- wrong results: writes that a recording does not see


CHECK = """
rng = np.random.default_rng(0)
x, y = (rng.standard_normal((4, 6)).astype(np.float32) for _ in range(2))
w = rng.standard_normal((6, 6)).astype(np.float32)
{}
try:
    plan = mp.compile(f, x.copy())
except ValueError:
    raise SystemExit(0)
expected = f(y.copy())
np.testing.assert_array_equal(plan(y.copy()), expected)
"""


@pytest.mark.parametrize("out", ["np.empty((4, 6), np.float32)", "np.empty((4, 12), np.float32)[:, ::2]"])
@pytest.mark.parametrize("operation", [
    "mp.relu(x, out=out)", "mp.softmax(x, out=out)", "mp.matmul(x, w, out=out)", "mp.layer_norm(x, out=out)",
    "mp.cast(mp.cast(x, 'float16'), 'float32', out=out)",
])  # fmt: skip
def test_what_is_written_into_an_array_of_the_layer_is_no_constant(operation, out):
    script(CHECK.format(f"def f(x):\n    out = {out}\n    {operation}\n    return out * 2"))


@pytest.mark.parametrize("body", [
    "y = mp.relu(x); mp.tanh(y, out=y); return y",
    "y = mp.relu(x); mp.matmul(x[1:], w, out=y[1:]); return mp.sigmoid(y)",
    "return mp.relu(x, out=x)",
])  # fmt: skip
def test_operations_that_write_into_recorded_arrays(body):
    script(CHECK.format(f"def f(x):\n    {body}"))


@pytest.mark.parametrize("function", [
    lambda x: np.clip(x, 0, 1, out=x),
    lambda x: np.nan_to_num(x, copy=False),
    lambda x: np.round(x, out=x),
    lambda x: np.sum(x, axis=0, out=x[0]),
    lambda x: np.cumsum(x, axis=0, out=x),
    lambda x: np.trim_zeros(x[0]),
])  # fmt: skip
def test_functions_of_numpy_that_write_or_decide_and_return_views(function):
    example, given = np.zeros((4, 6), np.float32), np.full((4, 6), np.nan, np.float32)
    example[:, 2] = given[:, 2] = 3
    refused_or_right(function, (example,), (given,))


def a_constant_that_changes(x):
    bias = np.zeros(6, np.float32)
    for index in range(3):
        bias[...] = index
        x = mp.matmul(x, W, bias=bias)
    return x


def test_a_constant_has_its_value_of_when_it_was_used():
    refused_or_right(a_constant_that_changes)


# ---- wrong results: decisions that a recording does not see


def swallowed(x):
    try:
        positive = bool(x[0, 0] > 0)
    except ValueError:
        positive = False
    return mp.relu(x) if positive else mp.tanh(x)


@pytest.mark.parametrize("function", [
    swallowed, lambda x: mp.relu(x) if np.array_equal([x], [x]) else mp.tanh(x),
])  # fmt: skip
def test_a_refusal_that_is_caught_is_a_refusal(function):
    refused_or_right(function, inputs=(np.abs(Y) + 1,))


def test_a_number_that_is_read_of_an_input_is_refused():
    refused_or_right(lambda x, axis: mp.softmax(x, axis=axis), (X, np.array(0)), (Y, np.array(1)))


@pytest.mark.parametrize("function", [
    lambda x: {"iterator": iter([mp.relu(x)])}, lambda x: {"object": [Box(mp.relu(x))]}, lambda x: f"{x}",
])  # fmt: skip
def test_recorded_arrays_do_not_leave_in_other_objects(function):
    try:
        found = mp.compile(Function(function), X)(Y)
    except UnseenError:
        return
    if isinstance(found, str):
        assert "recorded" not in found
        return
    (box,) = next(iter(found.values()))
    assert type(getattr(box, "content", box)) is not Recorded


class Box:
    def __init__(self, content):
        self.content = content


# ---- stale results: changes that nobody tells


def stale(plan, layer):
    np.testing.assert_array_equal(plan(Y), layer(Y))


@pytest.mark.parametrize("called", [
    lambda layer: lambda x: layer(x), lambda layer: layer.call, lambda layer: Function(lambda x: layer(x)),
])  # fmt: skip
def test_weights_of_a_layer_behind_a_function(called):
    layer = Dense(3)
    layer.build((None, 6))
    plan = mp.compile(called(layer), X)
    layer.kernel.assign(layer.kernel.numpy() * 2)
    stale(plan, layer)


def test_weights_of_a_layer_in_an_object():
    class Holder:
        pass

    class Inside(Layer):
        def __init__(self):
            super().__init__()
            self.holder = Holder()
            self.holder.dense = Dense(3)

        def call(self, x):
            return self.holder.dense(x)

    layer = Inside()
    plan = mp.compile(layer, X)
    kernel = layer.holder.dense.kernel
    kernel.assign(kernel.numpy() * 2)
    stale(plan, layer)


def replaced_attribute(model):
    model.layers[1].activation = activations.get("relu")


def switched(model):
    model.layers[0], model.layers[1] = model.layers[1], model.layers[0]


@pytest.mark.parametrize("change", [replaced_attribute, switched, lambda model: model.layers.pop()])
def test_layers_and_activations_that_are_replaced(change):
    model = Sequential([Dense(6), Dense(6, "tanh")])
    plan = mp.compile(model, X)
    change(model)
    stale(plan, model)


def test_a_child_that_is_replaced():
    layer = Function(None)
    first, second = Dense(6), Dense(6)
    first.build((None, 6))
    second.build((None, 6))
    layer.child, layer.function = first, lambda x: layer.child(x)
    plan = mp.compile(layer, X)
    layer.child = second
    stale(plan, layer)


def test_a_variable_at_the_address_of_another_one():
    class Weighted(Layer):
        def build(self, shape):
            self.w = self.add_weight((6, 6), "glorot_uniform", name="w")

        def call(self, x):
            return mp.matmul(x, self.w.read_value())

    for _ in range(10):
        layer = Weighted()
        plan = mp.compile(layer, X)
        del layer.w
        layer.w = layer.add_weight((6, 6), "glorot_uniform", name="w")
        stale(plan, layer)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_array_of_the_layer_that_is_replaced_or_changed(dtype):
    class Scaled(Layer):
        def __init__(self):
            super().__init__()
            self.gamma = np.ones(6, dtype)

        def call(self, x):
            return mp.layer_norm(x, self.gamma)

    layer = Scaled()
    plan = mp.compile(layer, X)
    layer.gamma *= 2
    stale(plan, layer)
    layer.gamma = layer.gamma * 2
    stale(plan, layer)


def test_a_layer_that_assigns_in_its_call_is_refused():
    class Counter(Layer):
        def build(self, shape):
            self.seen = self.add_weight((6,), "zeros", name="seen")

        def call(self, x):
            self.seen.assign_add(np.ones(6, np.float32))
            return mp.layer_norm(x, beta=self.seen.read_value())

    layer, same = Counter(), Counter()
    try:
        plan = mp.compile(layer, X)
    except UnseenError:
        return
    same(X)
    layer.seen.assign(same.seen.numpy())
    for _ in range(3):
        np.testing.assert_array_equal(plan(Y), same(Y))


ENCODER_CHANGES = {
    "del": lambda encoder: encoder.blocks.__delitem__(slice(1, None)),
    "fewer": lambda encoder: setattr(encoder, "blocks", encoder.blocks[:1]),
    "reverse": lambda encoder: encoder.blocks.reverse(),
    "activation": lambda encoder: setattr(encoder.blocks[0].intermediate, "activation", activations.get("relu")),
    "epsilon": lambda encoder: setattr(encoder.blocks[0].output_norm, "epsilon", 0.5),
    "norm": lambda encoder: setattr(encoder.blocks[0], "output_norm", encoder.blocks[1].output_norm),
    "bias": lambda encoder: setattr(encoder.blocks[0].intermediate, "bias", None),
    "call": lambda encoder: setattr(encoder.blocks[0], "call", lambda hidden, **_: hidden),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert.write(tmp_path_factory.mktemp("attack") / "model")


@pytest.mark.parametrize("change", ENCODER_CHANGES)
def test_a_changed_network_gives_other_embeddings(folder, change):
    encoder, texts = BertEncoder.from_folder(folder), ["a b c", "d"]
    encoder.encode(texts)
    ENCODER_CHANGES[change](encoder.model.encoder)
    with eager():
        expected = encoder.encode(texts)
    np.testing.assert_array_equal(encoder.encode(texts), expected)


# ---- arguments


def test_arrays_in_a_dict_are_found_by_their_keys():
    layer = Function(lambda arrays: mp.layer_norm(arrays["a"], residual=mp.relu(arrays["b"])))
    plan = mp.compile(layer, {"a": X, "b": Y})
    np.testing.assert_array_equal(plan({"b": X, "a": Y}), layer({"a": Y, "b": X}))
    with pytest.raises((TypeError, ValueError, KeyError)):
        plan({"q": X, "z": Y})


def test_arrays_in_an_option_are_given_as_in_the_example():
    def function(x, extra):
        return mp.layer_norm(x, residual=extra[0])

    np.testing.assert_array_equal(mp.compile(function, X, extra=[Y])(Y, extra=[X]), function(Y, [X]))


def test_none_between_arrays_is_given_as_in_the_example():
    def function(x, mask, y):
        return mp.layer_norm(x, residual=y)

    np.testing.assert_array_equal(mp.compile(function, X, None, Y)(Y, None, X), function(Y, None, X))


def test_an_example_may_be_the_value_of_a_variable():
    variable = AutoCastVariable(W)
    layer = Function(lambda x: mp.matmul(x, variable.value()))
    plan = mp.compile(layer, variable.value)
    other = np.ascontiguousarray(W.T)
    np.testing.assert_array_equal(plan(other), layer(other))


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("read", [lambda variable: variable, lambda variable: variable.value])
def test_a_variable_may_be_an_operand(dtype, read):
    class Weighted(Layer):
        def build(self, shape):
            self.w = self.add_weight((6, 5), "glorot_uniform", name="w")

        def call(self, x):
            return mp.matmul(x, read(self.w))

    layer = Weighted(dtype=dtype)
    plan = mp.compile(layer, X)
    np.testing.assert_array_equal(plan(Y), layer(Y))


@pytest.mark.parametrize("function", [
    lambda x: x[0, 0], lambda x: x[True], lambda x: x.reshape(-1, order="F"), copy.deepcopy,
    lambda x: x[:0].reshape(-1), lambda x: mp.compile(lambda y: x, X)(X),
])  # fmt: skip
def test_what_cannot_be_an_output_is_an_unseen_error(function):
    refused_or_right(function)


def test_operators_without_an_operation_are_named():
    with pytest.raises(UnseenError):
        mp.compile(Function(lambda x: divmod(x, 2)), X)
    for function in (lambda x: 2 // x, lambda x: 2 % x):
        refused_or_right(function)


SEEN = {
    "a slice as residual": lambda x: mp.matmul(x, W[:, :5], residual=mp.relu(x)[:, :5]),
    "a column as gamma": lambda x: mp.layer_norm(x[:, :4], x[:, 0]),
    "an integer of NumPy": lambda x: mp.relu(x[np.int64(1)]),
    "no depth": lambda x: mp.matmul(x[:, :0], np.ones((0, 3), np.float32)),
}


@pytest.mark.parametrize("what", SEEN)
def test_views_that_the_page_says_are_recorded(what):
    layer = Function(SEEN[what])
    np.testing.assert_array_equal(mp.compile(layer, X)(Y), layer(Y))


def test_tokens_behind_the_mask_are_checked_as_before(folder):
    encoder, ids, mask = BertEncoder.from_folder(folder), np.array([[2, 4, 999]]), np.array([[True, True, False]])
    with pytest.raises(ValueError, match="ids"):
        encoder.embed_tokens(ids, mask)


# ---- cost


def test_a_plan_holds_no_intermediate_results_of_its_example():
    model, x = Sequential([Dense(256) for _ in range(20)]), np.ones((4096, 256), np.float32)
    model(x)
    gc.collect()
    tracemalloc.start()
    plan = mp.compile(model, x)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 3 * x.nbytes + plan.memory.arena


@pytest.mark.parametrize("policy", ["int4/8", "float8_e4m3fn_from_float32"])
def test_a_network_that_no_plan_can_run_is_not_recorded_in_every_call(folder, policy, monkeypatch):
    tried, begin = [], ragged.RaggedTexts.__init__

    def counted(self, *args):
        tried.append(args)
        begin(self, *args)

    monkeypatch.setattr(ragged.RaggedTexts, "__init__", counted)
    encoder = BertEncoder.from_folder(folder, policy)
    for _ in range(5):
        encoder.encode(["a b c"])
    assert len(tried) <= 1


def test_a_layer_with_a_plan_can_be_copied():
    layer = Dense(3)
    layer.plan = mp.compile(layer, X)
    copied = copy.deepcopy(layer)
    np.testing.assert_array_equal(copied.plan(Y), copied(Y))


def test_runs_at_once_in_many_threads_while_layers_are_recorded():
    bad: list = []

    def work(seed):
        layer = Dense(5, kernel_initializer="ones")
        for _ in range(20):
            plan = mp.compile(layer, X)
            if not np.array_equal(plan(Y), layer(Y)):
                bad.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not bad
