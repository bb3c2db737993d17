"""Changes: whatever a layer depends on changes, the next call of its plan gives the layer's result."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

import mp_core as mp
from mp_core import config, dtypes
from mp_core.autocast import AutoCastVariable, autocast_scope
from mp_core.core import changes
from mp_core.layers import Activation, Dense, Layer, Sequential

RNG = np.random.default_rng(0)
X, Y = (RNG.standard_normal((4, 6)).astype(np.float32) for _ in range(2))
GLOBAL = AutoCastVariable(np.ones(6, np.float32))


def dense(units=6, **kwargs):
    layer = Dense(units, **kwargs)
    layer.build((None, 6))
    layer.kernel.assign(RNG.standard_normal((6, units)))
    return layer


class Holder(Layer):
    """A layer whose call runs what its attributes hold, in whatever they are."""

    def __init__(self):
        super().__init__()
        self.parts, self.nested, self.table, self.pair = [], [[dense()], []], {"a": dense()}, ([dense()], {"b": []})
        self.box = SimpleNamespace(scale=2.0, inner=SimpleNamespace(layers=[], variable=AutoCastVariable(np.ones(6))))
        self.gain, self.names = 1.0, {"x"}
        self.vectors = {"v": AutoCastVariable(np.ones(6, np.float32))}

    def call(self, x):
        for layer in (*self.parts, *self.nested[0], *self.nested[1], *self.table.values(), *self.pair[0],
                      *self.pair[1]["b"], *self.box.inner.layers):  # fmt: skip
            x = layer(x)
        for value in (self.gain, self.box.scale, float(len(self.names))):
            x = mp.layer_norm(x, gamma=np.full(6, value, np.float32))
        for variable in (self.vectors["v"], self.box.inner.variable, GLOBAL):
            x = mp.layer_norm(x, gamma=variable.read_value().astype(np.float32))
        return mp.cast(x, dtypes.floatx()) if dtypes.floatx() == "float16" else x


def replaced_kernel(layer):
    layer.table["a"].kernel.assign(layer.table["a"].kernel.numpy() * 2 + 1)


CHANGES = {
    "a layer appended to an empty list": lambda layer: layer.parts.append(dense()),
    "a layer replaced in a nested list": lambda layer: layer.nested[0].__setitem__(0, dense()),
    "a layer appended to an empty nested list": lambda layer: layer.nested[1].append(dense()),
    "a list replaced in a list": lambda layer: layer.nested.__setitem__(0, []),
    "a layer replaced in a dictionary": lambda layer: layer.table.__setitem__("a", dense()),
    "a layer added to a dictionary": lambda layer: layer.table.__setitem__("c", dense()),
    "a dictionary that is cleared": lambda layer: layer.table.clear(),
    "a list in a tuple": lambda layer: layer.pair[0].append(dense()),
    "a list in a dictionary in a tuple": lambda layer: layer.pair[1]["b"].append(dense()),
    "an attribute": lambda layer: setattr(layer, "gain", 3.0),
    "an attribute that is deleted": lambda layer: (setattr(type(layer), "gain", 5.0), delattr(layer, "gain")),
    "an attribute of an attribute": lambda layer: setattr(layer.box, "scale", 3.0),
    "a list in an attribute of an attribute": lambda layer: layer.box.inner.layers.append(dense()),
    "a set": lambda layer: layer.names.add("y"),
    "a variable": replaced_kernel,
    "a variable in a dictionary": lambda layer: layer.vectors["v"].assign(np.arange(6)),
    "a variable replaced in a dictionary": lambda layer: layer.vectors.update(v=AutoCastVariable(np.arange(6.0))),
    "a variable in an object": lambda layer: layer.box.inner.variable.assign(np.arange(6)),
    "a variable of the module": lambda layer: GLOBAL.assign(np.arange(6)),
    "a policy": lambda layer: setattr(layer.table["a"], "dtype_policy", "bfloat16"),
    "a scheme": lambda layer: layer.table["a"].quantize("int8"),
    "autocast": lambda layer: setattr(layer, "autocast", False),
    "a method": lambda layer: setattr(layer.table["a"], "call", lambda x: mp.relu(x)),
    "floatx": lambda layer: config.set_floatx("float16"),
    "the instruction set": lambda layer: config.set_isa("scalar"),
    "the order of sums": lambda layer: config.set_reproducible(True),
}


@pytest.fixture
def settings():
    before = config.isa(), config.is_reproducible(), config.floatx()
    GLOBAL.assign(np.ones(6))
    yield
    config.set_isa(before[0])
    config.set_reproducible(before[1])
    config.set_floatx(before[2])
    if "gain" in vars(Holder):
        del Holder.gain


WRAPS = [lambda layer: layer, lambda layer: lambda x: layer(x), lambda layer: Sequential([layer])]


@pytest.mark.parametrize("wrap", WRAPS, ids=["layer", "function", "stack"])
@pytest.mark.parametrize("change", CHANGES)
def test_after_any_change_a_plan_gives_what_its_layer_gives(settings, change, wrap):
    layer = Holder()
    called = wrap(layer)
    plan = mp.compile(called, X)
    np.testing.assert_array_equal(plan(Y), called(Y))
    CHANGES[change](layer)
    expected = called(Y)
    found = plan(Y)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def function_of(scale):
    return lambda x: mp.layer_norm(x, gamma=scale)


SCOPES = {
    "float16": lambda: autocast_scope("float16"),
    "None": lambda: autocast_scope(None),
}
CALLED = {
    "a layer": lambda: dense(dtype="mixed_bfloat16"),
    "a layer without autocast": lambda: dense(dtype="mixed_bfloat16", autocast=False),
    "a function": lambda: function_of(AutoCastVariable(np.full(6, 1.0001, np.float32))),
}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("called", CALLED)
def test_a_plan_reads_variables_in_the_scope_of_its_call(called, scope):
    called = CALLED[called]()
    plan = mp.compile(called, X)
    outside = called(Y)
    for _ in range(2):
        with SCOPES[scope]():
            np.testing.assert_array_equal(plan(Y), called(Y))
        np.testing.assert_array_equal(plan(Y), outside)
    with SCOPES[scope]():
        plan, inside = mp.compile(called, X), called(Y)
    np.testing.assert_array_equal(plan(Y), outside)
    with SCOPES[scope]():
        np.testing.assert_array_equal(plan(Y), inside)


def test_a_plan_takes_over_the_training_of_the_call_around_it():
    class Doubling(Layer):
        def call(self, x, training=None):
            return mp.layer_norm(x, gamma=np.full(6, 2.0 if training else 1.0, np.float32))

    class Around(Layer):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def call(self, x):
            return self.inner(x)

    layer = Doubling()
    plan = mp.compile(layer, X)
    for training in (True, False, None):
        expected = Around(layer)(Y, training=training)
        np.testing.assert_array_equal(Around(lambda x: plan(x))(Y, training=training), expected)


def test_what_is_set_while_another_thread_calls_the_plan_is_seen_by_the_next_call():
    calls = []

    class Meanwhile(Dense):
        """A layer of which another thread calls the plan while its activation is set: before it has changed."""

        @property
        def activation(self):
            return vars(self)["_activation"]

        @activation.setter
        def activation(self, value):
            for call in calls:
                thread = threading.Thread(target=call, args=(X,))
                thread.start()
                thread.join()
            vars(self)["_activation"] = value

    layer = Meanwhile(6)
    layer(X)
    plan = mp.compile(layer, X)
    calls.append(plan)
    layer.activation = mp.relu
    np.testing.assert_array_equal(plan(Y), layer(Y))


def test_two_assignments_at_once_that_count_the_same_version_are_two_values():
    layer = dense()
    plan = mp.compile(layer, X)
    version, first = layer.kernel.version, np.full((6, 6), 1.0, np.float32)
    layer.kernel._set(first, version + 1)
    np.testing.assert_array_equal(plan(Y), layer(Y))
    layer.kernel._set(first * 3, version + 1)
    np.testing.assert_array_equal(plan(Y), layer(Y))
    np.testing.assert_allclose(layer(Y), Y @ (first * 3) + layer.bias.numpy(), rtol=1e-5, atol=1e-5)


def test_every_change_gives_another_count():
    seen = [changes.count()]
    for _ in range(3):
        changes.changed()
        assert not any(changes.count() is before for before in seen)
        seen.append(changes.count())


def test_what_fails_is_undone_in_lists_dictionaries_and_sets():
    things = {"a": 1}, [1, 2], {3}
    contents = changes.Contents(things)

    def fail():
        things[0].update(a=2, b=3)
        things[1].clear()
        things[2].add(4)
        raise KeyError

    assert contents.same()
    with pytest.raises(KeyError):
        changes.undone_if_it_fails(contents, fail)
    assert things == ({"a": 1}, [1, 2], {3}) and contents.same()


def test_a_recording_is_not_made_anew_for_a_change_of_something_else():
    layer = Sequential([dense(), Activation("relu"), dense()])
    plan = mp.compile(layer, X)
    first = plan._current()
    AutoCastVariable([1.0]).assign([2.0])
    dense().name = "other"
    assert plan._current() is first
