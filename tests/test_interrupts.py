"""Interrupts: an exception of a signal handler between any two bytecodes leaves the state as it was."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fuzz.interrupts import by_signal, handled
from interrupting import ENTERED, Interrupt, are_free, interrupt_everywhere, state

import mp_core as mp
from mp_core import autocast, config, dtype_policies, layers, plans, saving, tf_keras
from mp_core.checkpoint import save_tensors
from mp_core.core import scopes
from mp_core.files.checkpoint.header import open_regular
from mp_core.files.checkpoint.output import OutFile
from mp_core.files.checkpoint.tensors import File
from mp_core.interop.manifest import Manifest
from mp_core.layers import Dense, Layer, Sequential

pytestmark = pytest.mark.slow  # interrupts calls at every place that they have

X = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def other():
    with ThreadPoolExecutor(1) as pool:
        yield pool


SCOPES = {
    "autocast": lambda: autocast.autocast_scope("float16"),
    "none": lambda: autocast.autocast_scope(None),
    "tf": lambda: autocast.enable_auto_cast_variables("bfloat16"),
    "threads": lambda: config.num_threads(7),
    "order": lambda: config.reproducible(),
    "policy": lambda: dtype_policies.policy_scope("mixed_bfloat16"),
    "tf policy": lambda: tf_keras.mixed_precision.policy_scope("mixed_float16"),
    "objects": lambda: saving.custom_object_scope({"Known": Dense}),
    "eager": plans.eager,
    "held": lambda: scopes.Held(ENTERED.add, ENTERED.discard),
}


def within(scope):
    with scope():
        sum((1, 2))


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_an_interrupted_scope_has_been_left(other, scope):
    interrupt_everywhere(other, "opcode", lambda: scope, within, lambda _: None)


def nested():
    with autocast.autocast_scope("float16"), config.num_threads(3), autocast.autocast_scope("bfloat16"):
        sum((1, 2))


def test_interrupted_scopes_in_scopes_have_been_left(other):
    interrupt_everywhere(other, "opcode", lambda: nested, lambda act: act(), lambda _: None)


class Pair(Layer):
    """A layer that builds others, one of which it makes when it is built."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first, self.rest = Dense(4, name="first", dtype=self.dtype_policy), []

    def build(self, shape):
        self.first.build(shape)
        self.rest.append(Dense(2, name="second", dtype=self.dtype_policy))
        self.rest[0].build((*shape[:-1], 4))
        self.scale = self.add_weight((2,), "ones", name="scale")

    def call(self, x, training=None):
        return mp.layer_norm(self.rest[0](self.first(x)), gamma=self.scale)


def made(policy="mixed_bfloat16"):
    layer = Pair(name="pair", dtype=policy)
    layer.build((None, 6))
    layer.set_weights([np.linspace(-1, 1, v.size).reshape(v.shape) for v in layer.weights])
    return layer


def same(x, y):
    np.testing.assert_array_equal(np.asarray(x, np.float32), np.asarray(y, np.float32))


def test_an_interrupted_call_leaves_the_thread_as_it_was(other):
    layer = made()
    expected = layer(X, training=True)
    interrupt_everywhere(
        other, "opcode", lambda: layer, lambda layer: layer(X, training=True), lambda layer: same(layer(X), expected)
    )


def built_right(layer):
    """Check that a layer is built, or can be: with the paths and variables of one that nobody has interrupted."""
    assert layer.built or not (layer.weights or layer.rest or layer.first.built or layer.path)
    layer(X)
    assert [part.path for part in layer.flatten()] == ["pair", "pair/first", "pair/second"]
    assert [v.shape for v in layer.weights] == [(2,), (6, 4), (4,), (4, 2), (2,)]
    layer.set_weights([np.linspace(-1, 1, v.size).reshape(v.shape) for v in layer.weights])
    same(layer(X), EXPECTED)


EXPECTED = made()(X)


@pytest.mark.parametrize("act", [lambda layer: layer(X), lambda layer: layer.build((None, 6))], ids=["call", "build"])
def test_an_interrupted_build_has_built_all_or_nothing(other, act):
    interrupt_everywhere(other, "line", lambda: Pair(name="pair", dtype="mixed_bfloat16"), act, built_right)


def test_a_build_that_fails_once_can_be_repeated():
    class Picky(Pair):
        def build(self, shape):
            super().build(shape)
            if shape[-1] != 6:
                raise ValueError("six")

    layer = Picky(name="pair", dtype="mixed_bfloat16")
    with pytest.raises(ValueError, match="six"):
        layer(X[:, :5])
    built_right(layer)


def test_a_policy_that_cannot_be_looked_up_once_breaks_no_layer():
    policies = dtype_policies.DTypePolicyMap("float32", {"pair/.*": "mixed_bfloat16", ".*/first": "float16"})
    layer = Sequential([Dense(2, name="first", dtype=policies)], name="pair", dtype=policies)
    for _ in range(2):
        with pytest.raises(ValueError, match="matches multiple"):
            layer(X)
        assert layer.path is None and not layer.weights
    del policies[".*/first"]
    assert layer(X).shape == (3, 2) and layer.layers[0].compute_dtype == "bfloat16"


# ---- changes


def planned():
    layer = made()
    return layer, mp.compile(layer, X)


def not_stale(pair):
    layer, plan = pair
    same(plan(X), layer(X))


CHANGES = {
    "assign": lambda pair: pair[0].scale.assign([5.0, 7.0]),
    "assign_add": lambda pair: pair[0].scale.assign_add([5.0, 7.0]),
    "activation": lambda pair: setattr(pair[0].first, "activation", layers.activations.get("relu")),
    "autocast": lambda pair: setattr(pair[0].first, "autocast", False),
    "policy": lambda pair: setattr(pair[0].first, "dtype_policy", "float32"),
    "delete": lambda pair: delattr(pair[0].rest[0], "call"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_interrupted_change_leaves_no_plan_stale(other, change):
    layer, plan = planned()
    before = layer.get_weights()
    activation = layer.first.activation

    def prepare():
        layer.set_weights(before)
        layer.first.activation, layer.first.autocast, layer.first.dtype_policy = activation, True, "mixed_bfloat16"
        layer.rest[0].call = lambda x: mp.relu(x[:, :2])
        plan.refresh()
        return layer, plan

    unit = "line" if change in ("policy", "autocast") else "opcode"
    interrupt_everywhere(other, unit, prepare, CHANGES[change], not_stale)


def test_interrupted_weights_are_all_set_or_none(other):
    layer, plan = planned()
    before = layer.get_weights()
    after = [w + 1 for w in before]

    def prepare():
        layer.set_weights(before)
        plan.refresh()
        return layer, plan

    def check(pair):
        not_stale(pair)
        assert len({np.array_equal(v, w) for v, w in zip(layer.get_weights(), before, strict=True)}) == 1

    interrupt_everywhere(other, "line", prepare, lambda pair: pair[0].set_weights(after), check)


@pytest.mark.parametrize("mode", ["int8", "float8"])
def test_an_interrupted_quantization_has_quantized_all_or_nothing(other, mode):
    def prepare():
        layer = made()
        return layer, Sequential([layer.first, layer.rest[0]], name="stack")

    expected = prepare()[1]
    expected(X)
    expected.quantize(mode)

    def check(pair):
        stack = pair[1]
        stack(X)
        states = {part.quantization_mode for part in stack.layers}
        assert len(states) == 1 and (states == {mode}) == stack.quantized
        if not stack.quantized:
            stack.quantize(mode)
        same(stack(X), expected(X))

    def act(pair):
        pair[1](X)
        pair[1].quantize(mode)

    interrupt_everywhere(other, "line", prepare, act, check, every=3)


def test_an_interrupted_change_of_a_map_is_undone(other):
    def prepare():
        layer = Dense(3, name="dense", dtype=dtype_policies.DTypePolicyMap("float32"))
        layer.build((None, 6))
        return layer

    def check(layer):
        assert layer.dtype_policy["dense"].compute_dtype == layer.compute_dtype == layer(X).dtype.name
        layer.dtype_policy = "mixed_bfloat16"
        assert layer(X).dtype == "bfloat16"

    interrupt_everywhere(other, "line", prepare, lambda layer: setattr(layer, "dtype_policy", "mixed_float16"), check)


# ---- plans


def test_an_interrupted_recording_is_over(other):
    layer = made()

    def check(_):
        plan = mp.compile(layer, X)
        same(plan(X), layer(X))

    interrupt_everywhere(other, "line", lambda: None, lambda _: mp.compile(layer, X), check)


def test_an_interrupted_call_of_a_plan_leaves_it_usable(other):
    pair = planned()
    interrupt_everywhere(other, "opcode", lambda: pair, lambda pair: pair[1](X), not_stale)


def test_a_recording_that_is_interrupted_by_a_later_call_is_made_again(other):
    layer, plan = planned()

    def prepare():
        layer.scale.assign_add([0.5, 1.0])
        return layer, plan

    interrupt_everywhere(other, "line", prepare, lambda pair: pair[1](X), not_stale)


# ---- descriptors


def within_a_file(folder):
    with open_regular(folder / "a.safetensors") as stream:
        stream.read(1)


def within_parts(folder):
    with File(folder / "a.safetensors") as file:
        file.bytes(0, 8)


def written_at_places(folder):
    (folder / "at places").unlink(missing_ok=True)
    with OutFile(folder / "at places") as out:
        out.write(b"x", 3)


def within_a_lock(folder):
    with Manifest(folder / "job", {}, "*", force=True):
        pass


OPENINGS = {
    "a file": within_a_file,
    "parts": within_parts,
    "an output": written_at_places,
    "a lock": within_a_lock,
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("opening", OPENINGS)
def test_an_interrupt_leaves_no_descriptor_open(other, opening, tmp_path):
    """Nor a lock: the next call has it."""
    save_tensors(tmp_path / "a.safetensors", {"x": X}, policy="float32")
    act = OPENINGS[opening]
    with handled():
        interrupt_everywhere(other, "opcode", lambda: tmp_path, act, lambda _: None, ring=by_signal)
    act(tmp_path)


# ---- interrupts by a timer


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer of that kind")
@pytest.mark.parametrize("seed", [0, 1])
def test_interrupts_at_any_time_leave_everything_as_it_was(other, seed):
    assert threading.current_thread() is threading.main_thread()
    rng = np.random.default_rng(seed)
    layer, plan = planned()
    before = state()

    def act():
        fresh = Pair(name="pair", dtype="mixed_bfloat16")
        fresh(X, training=True)
        layer.scale.assign_add([0.5, 1.0])
        plan(X)
        nested()
        mp.compile(fresh, X)
        for scope in SCOPES.values():
            within(scope)

    def ring(*_):
        raise Interrupt

    act()
    handler = signal.signal(signal.SIGALRM, ring)
    count, end = 0, time.monotonic() + 1.5
    try:
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 1e-2))
                while True:
                    act()
            except Interrupt as error:
                assert state() == before, error.__traceback__
                assert other.submit(are_free).result()
                not_stale((layer, plan))
                count += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert count > 10
