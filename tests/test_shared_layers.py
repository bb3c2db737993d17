"""A layer at several places of a model is one layer in its files, in its text, and in Keras."""

import json
import os
import re

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core.interop.keras import from_keras, load_keras
from mp_core.models import model_from_json

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of torch

X = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((4, 3, 5)).astype(np.float32)


def in_steps(k):
    x, dense = k.Input((3, 5)), k.layers.Dense(5, activation="tanh")
    return k.Model(x, dense(x) + k.layers.TimeDistributed(dense)(x))


def in_two_wrappers(k):
    x, dense = k.Input((3, 5)), k.layers.Dense(5, activation="tanh")
    return k.Model(x, k.layers.TimeDistributed(dense)(x) + k.layers.TimeDistributed(dense)(x * 2))


def in_a_stack(k):
    x, dense = k.Input((3, 5)), k.layers.Dense(5, activation="tanh")
    inner = k.Sequential([k.Input((3, 5)), k.layers.Dense(4), k.layers.Dense(5), dense])
    return k.Model(x, inner(x) + k.layers.Dense(5)(dense(x)))


def in_a_stack_of_stacks(k):
    dense = k.layers.Dense(5, activation="tanh")
    return k.Sequential([k.Input((3, 5)), k.Sequential([dense, k.layers.Dense(5)]), k.layers.Dense(5),
                         k.Sequential([k.layers.Dense(5), dense])])  # fmt: skip


def a_model(k):
    x, z = k.Input((3, 5)), k.Input((3, 5))
    inner = k.Model(z, k.ops.maximum(k.layers.Dense(5)(z) + k.layers.Dense(5)(z), 0.25))
    return k.Model(x, k.Sequential([k.Input((3, 5)), inner, k.layers.Dense(5)])(x) + inner(x))


MODELS = pytest.mark.parametrize("make", [in_steps, in_two_wrappers, in_a_stack, in_a_stack_of_stacks, a_model])
# Keras cannot open files of the other models, its own either: it counts the calls in both graphs as one.
OPENED_BY_KERAS = (in_steps, in_two_wrappers, in_a_stack_of_stacks)
# In the others, Keras writes the number of a shared layer at its last place only, and opens them no more.
WRITTEN_BY_KERAS = (in_steps, in_a_stack)


def trained(model):
    """Return the weights after three steps, which those of layers that were separated would not have."""
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=2, epochs=2, shuffle=False, verbose=0)
    return [keras.ops.convert_to_numpy(w) if not isinstance(w, np.ndarray) else w for w in model.get_weights()]


def assert_near(found, expected):
    assert [w.shape for w in found] == [w.shape for w in expected]
    for each, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(each, wanted, rtol=1e-4, atol=1e-5)


@MODELS
def test_files_keep_it(make, tmp_path):
    model, other = make(mp), make(mp)
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    read, text = mp.load_model(tmp_path / "m.keras"), model_from_json(model.to_json())
    loaded = make(keras)
    again = load_keras(tmp_path / "m.keras")
    again.save(tmp_path / "again.keras")
    loaded.load_weights(tmp_path / "m.weights.h5")
    other.load_weights(tmp_path / "m.weights.h5")
    text.set_weights(model.get_weights())
    expected = trained(model)
    for same in (read, other, text, again, mp.load_model(tmp_path / "again.keras")):
        for found, wanted in zip(trained(same), expected, strict=True):
            assert_same_bits(found, wanted)
    assert_near(trained(loaded), expected)
    if make in OPENED_BY_KERAS:
        assert_near(trained(keras.saving.load_model(tmp_path / "m.keras")), expected)


@MODELS
def test_models_of_keras_keep_it(make, tmp_path):
    theirs, ours = make(keras), make(mp)
    theirs.save(tmp_path / "m.keras")
    theirs.save_weights(tmp_path / "m.weights.h5")
    ours.load_weights(tmp_path / "m.weights.h5")
    found = [from_keras(theirs), ours]
    if make in WRITTEN_BY_KERAS:
        found.append(mp.load_model(tmp_path / "m.keras"))
    else:
        with pytest.raises(ValueError, match="needs weights"):
            mp.load_model(tmp_path / "m.keras")
    expected = trained(theirs)
    for each in found:
        assert_near(trained(each), expected)


def test_only_layers_in_several_places_have_a_number():
    layers = json.loads(in_a_stack(mp).to_json())["config"]["layers"]
    inner = next(part for part in layers if part["class_name"] == "Sequential")
    shared = [part for part in (*inner["config"]["layers"], *layers) if "shared_object_id" in part]
    assert len(shared) == 2 and len({part["config"]["name"] for part in shared}) == 1
    assert {part["shared_object_id"] for part in shared} == {3}  # after the graph and its input


class Twice(mp.layers.Layer):
    def __init__(self, inner, **options):
        super().__init__(**options)
        self.inner = inner

    def call(self, x):
        return self.inner(self.inner(x))

    def get_config(self):
        return super().get_config() | {"inner": mp.saving.serialize_keras_object(self.inner)}

    @classmethod
    def from_config(cls, config):
        return cls(**config | {"inner": mp.saving.deserialize_keras_object(config["inner"])})


def test_layers_of_users_make_theirs_anew(tmp_path):
    """As before: what their configurations hold is theirs to share. Weights are read whole wherever the layer is."""
    x, dense = mp.Input((3, 5)), mp.layers.Dense(5, activation="tanh")
    model = mp.Model(x, Twice(dense)(x) + dense(x) + mp.layers.TimeDistributed(dense)(x))
    model.save(tmp_path / "m.keras")
    read = mp.load_model(tmp_path / "m.keras", custom_objects={"Twice": Twice})
    assert_same_bits(read(X), model(X))
    assert (len(model.weights), len(read.weights)) == (2, 4)
    model.save_weights(tmp_path / "m.weights.h5")
    other = mp.Model(
        x, Twice(again := mp.layers.Dense(5, activation="tanh"))(x) + again(x) + mp.layers.TimeDistributed(again)(x)
    )
    other.load_weights(tmp_path / "m.weights.h5")
    assert_same_bits(other(X), model(X))


class Holder(mp.layers.Layer):
    """A layer whose inner layers are made by the subclass."""

    def __init__(self, **options):
        super().__init__(**options)
        self.make()


class InAStack(Holder):
    def make(self):
        self.inner = mp.Sequential([mp.layers.Dense(4), mp.layers.Dense(5)])

    def __len__(self):
        return 0

    def call(self, x):
        return self.inner(x)


class InContainers(Holder):
    def make(self):
        self.each = [mp.layers.Dense(5), mp.layers.Dropout(0.5), (mp.layers.Dense(5), mp.layers.Dense(5))]
        self.named = {"a": mp.layers.Dense(5), "b": InAStack()}

    def call(self, x):
        first, drop, (second, third) = self.each
        return self.named["b"](self.named["a"](third(second(drop(first(x))))))


class OfTwo(Holder):
    """It is called with two arrays and a keyword of integers, and builds in `build` what has weights."""

    def make(self):
        self.dense, self.drop = mp.layers.Dense(5), mp.layers.Dropout(0.5)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x, skip, rows=None):
        assert rows.dtype == np.int32
        return self.drop(self.dense(x)) + skip


class Lazy(OfTwo):
    def build(self, shape):
        pass


class Either(Holder):
    def make(self):
        self.first, self.other = mp.layers.Dense(5), mp.layers.Dense(5)

    def call(self, x):
        return self.first(x) if np.asarray(x).max() > 0 else self.other(x)


class Pair(mp.layers.Layer):
    def __init__(self, a, b, **options):
        super().__init__(**options)
        self.a, self.b = a, b

    def call(self, x):
        return self.a(x) + self.b(x)

    def get_config(self):
        return super().get_config() | {key: mp.saving.serialize_keras_object(getattr(self, key)) for key in "ab"}

    @classmethod
    def from_config(cls, config):
        return cls(**config | {key: mp.saving.deserialize_keras_object(config[key]) for key in "ab"})


CUSTOM = {kind.__name__: kind for kind in (Twice, InAStack, InContainers, OfTwo, Lazy, Pair, Either)}


def of_users(name):
    x, dense = mp.Input((3, 5)), mp.layers.Dense(5)
    if name in ("OfTwo", "Lazy"):
        other, rows = mp.Input((3, 5)), mp.Input((3,), dtype="int32")
        return mp.Model([x, other, rows], CUSTOM[name]()(x, other, rows=rows))
    made = {
        "Twice": lambda: Twice(dense)(x),
        "Pair": lambda: Pair(dense, dense)(x),
        "a pair with a wrapper": lambda: Pair(mp.layers.TimeDistributed(dense), dense)(x),
        "in steps": lambda: mp.layers.TimeDistributed(InAStack())(x),
    }
    return mp.Model(x, made[name]() if name in made else CUSTOM[name]()(x))


def path(variable):
    return re.sub(r"_\d+", "", variable.path)


@pytest.mark.parametrize(
    "name",
    ["Twice", "InAStack", "InContainers", "OfTwo", "Lazy", "Pair", "a pair with a wrapper", "in steps"],
)
def test_weights_in_layers_of_users_are_loaded(name, tmp_path):
    """Also those of layers that are built when their layer is called, with what it is called with in the model."""
    model = of_users(name)
    inputs = [X, Y, np.ones((4, 3), np.int32)] if len(model.inputs) == 3 else X
    model.save(tmp_path / "m.keras")
    for opened in (mp.load_model, load_keras):
        read = opened(tmp_path / "m.keras", custom_objects=CUSTOM)
        if name in ("Twice", "InAStack", "InContainers", "OfTwo", "Lazy"):
            assert sorted(map(path, read.weights)) == sorted(map(path, model.weights))
        assert_same_bits(read(inputs), model(inputs))
    text = model_from_json(model.to_json(), custom_objects=CUSTOM)
    assert text(inputs).shape == model(inputs).shape


def of_keras():
    class InContainers(keras.layers.Layer):
        def __init__(self, **options):
            super().__init__(**options)
            self.each = [keras.layers.Dense(5), keras.layers.Dropout(0.5), (keras.layers.Dense(5),)]
            self.named = {"a": keras.layers.Dense(5), "b": keras.Sequential([keras.layers.Dense(5)])}

        def get_config(self):
            return {"name": self.name}

        def call(self, x):
            first, drop, (second,) = self.each
            return self.named["b"](self.named["a"](second(drop(first(x)))))

    x = keras.Input((3, 5))
    return keras.Model(x, InContainers()(x))


def test_layers_of_users_of_keras_are_loaded(tmp_path):
    class Mine(InContainers):
        def make(self):
            self.each = [mp.layers.Dense(5), mp.layers.Dropout(0.5), (mp.layers.Dense(5),)]
            self.named = {"a": mp.layers.Dense(5), "b": mp.Sequential([mp.layers.Dense(5)])}

        def call(self, x):
            first, drop, (second,) = self.each
            return self.named["b"](self.named["a"](second(drop(first(x)))))

    theirs = of_keras()
    theirs.save(tmp_path / "m.keras")
    expected = keras.ops.convert_to_numpy(theirs(X))
    custom = {"InContainers": Mine}
    for found in (from_keras(theirs, custom), mp.load_model(tmp_path / "m.keras", custom)):
        assert len(found.weights) == len(theirs.weights) == 8
        np.testing.assert_allclose(found(X), expected, rtol=1e-5, atol=1e-5)


def test_weights_that_no_layer_takes_are_an_error(tmp_path):
    model = of_users("Either")
    model(np.abs(X))  # zeros have built the other one
    assert len(model.weights) == 4
    model.save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match=r"layer 'dense_?\d*' has stored weights but is not built"):
        mp.load_model(tmp_path / "m.keras", custom_objects=CUSTOM)


def test_only_layers_that_must_be_built_are_called(tmp_path, monkeypatch):
    def refuse(self, x, skip, rows=None):
        raise AssertionError("not with zeros")

    for name in ("OfTwo", "Lazy"):
        of_users(name).save(tmp_path / f"{name}.keras")
    monkeypatch.setattr(OfTwo, "call", refuse)
    mp.load_model(tmp_path / "OfTwo.keras", custom_objects=CUSTOM)
    with pytest.raises(ValueError, match="are built when they are called, which failed: not with zeros"):
        mp.load_model(tmp_path / "Lazy.keras", custom_objects=CUSTOM)


@pytest.mark.parametrize("number", [[1], {"a": 1}, 2.5, "that of another"])
def test_damaged_numbers_are_named(number):
    entry = json.loads(in_steps(mp).to_json())
    layers = entry["config"]["layers"]
    layers[2]["shared_object_id"] = layers[1]["shared_object_id"] if number == "that of another" else number
    with pytest.raises(NotImplementedError, match=r"- 'time_distributed.*shared_object_id"):
        model_from_json(json.dumps(entry))
