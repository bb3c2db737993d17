"""A layer in several places of a model is one layer in its files, and in the text and in the memory of Keras."""

import json
import os

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


def test_what_a_layer_builds_in_its_call_is_loaded(tmp_path):
    x = mp.Input((None, 5))
    model = mp.Model(x, Twice(mp.layers.Dense(5, activation="tanh"))(x))
    model.save(tmp_path / "m.keras")
    for opened in (mp.load_model, load_keras):
        read = opened(tmp_path / "m.keras", custom_objects={"Twice": Twice})
        assert [v.path for v in read.weights] == [v.path for v in model.weights]
        assert_same_bits(read(X), model(X))
