"""Models as JSON: what Keras writes and reads, and hostile text."""

import copy
import json
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import pytest

import mp_core as mp
from mp_core.models import model_from_json

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of torch

X = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)


def stack(k):
    return k.Sequential([k.Input((6,)), k.layers.Dense(4, activation="relu", kernel_initializer="he_normal"),
                         k.layers.Dropout(0.5), k.layers.Dense(2)])  # fmt: skip


def graph(k):
    x = k.Input((6,), name="x")
    a = k.layers.Dense(4, name="a")(x)
    return k.Model(x, {"sum": k.ops.maximum(a, 0.25) + a * 2, "rows": k.layers.TimeDistributed(k.layers.Dense(3))(
        k.layers.Reshape((2, 3))(x))})  # fmt: skip


def arrays(outputs):
    found = [outputs[key] for key in sorted(outputs)] if isinstance(outputs, dict) else [outputs]
    return [x if isinstance(x, np.ndarray) else keras.ops.convert_to_numpy(x) for x in found]


@pytest.mark.parametrize("make", [stack, graph])
def test_either_reads_what_the_other_writes(make):
    ours, theirs = make(mp), make(keras)
    mine, read = model_from_json(theirs.to_json()), keras.models.model_from_json(ours.to_json())
    again = model_from_json(ours.to_json(indent=1))
    weights = [np.random.default_rng(1).standard_normal(w.shape).astype(np.float32) for w in ours.get_weights()]
    assert [w.shape for w in mine.get_weights()] == [w.shape for w in weights]
    for each in (ours, theirs, mine, read, again):
        each.set_weights(weights)
    for each in (theirs, mine, read, again):
        for got, expected in zip(arrays(each(X)), arrays(ours(X)), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert again.get_config() == ours.get_config()


def test_weights_are_new_and_made_by_their_initializers():
    ours = model_from_json(stack(keras).to_json())
    first, again = ours.layers[0].kernel.numpy(), model_from_json(stack(keras).to_json()).layers[0].kernel.numpy()
    assert first.std() > 0.2 and (first != again).any()
    assert ours.layers[0].get_config()["kernel_initializer"]["class_name"] == "HeNormal"
    unknown = json.loads(stack(keras).to_json())
    unknown["config"]["layers"][1]["config"]["kernel_initializer"] = "no_such"
    with pytest.raises(NotImplementedError, match="no_such"):
        model_from_json(json.dumps(unknown))


def test_training_is_that_of_the_text():
    theirs = stack(keras)
    theirs.compile(keras.optimizers.SGD(0.25), "mse", metrics=["mae"])
    for text in (theirs.to_json(), model_from_json(theirs.to_json()).to_json()):
        ours = model_from_json(text)
        assert ours.compiled and float(ours.optimizer.learning_rate) == 0.25
        ours.fit(X, np.ones((3, 2)), verbose=0)
    assert not model_from_json(stack(keras).to_json()).compiled


def test_a_model_that_is_not_built_stays_so():
    ours = mp.Sequential([mp.layers.Dense(3)])
    again = model_from_json(ours.to_json())
    assert not again.built and again(X).shape == (3, 3)


def test_classes_of_users_are_those_that_are_given():
    class Twice(mp.layers.Layer):
        def call(self, inputs):
            return inputs * 2.0

    text = mp.Sequential([mp.Input((6,)), Twice(name="twice")]).to_json()
    np.testing.assert_array_equal(model_from_json(text, {"Twice": Twice})(X), X * 2)
    with pytest.raises(NotImplementedError, match=r"'twice' \('Twice'\)"):
        model_from_json(text)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (b"{}", TypeError, "`json_string` must be a str; received bytes"),
        ("{", ValueError, "`json_string` must be JSON"),
        ("[" * 100_000, ValueError, "nested too deeply|must be JSON"),
        ("1" * 5000, ValueError, "must be JSON|must describe a model"),
        ("null", ValueError, "must describe a model: a serialized model must be a dictionary"),
        ("[]", ValueError, "must describe a model"),
        ('{"class_name": "Sequential"}', ValueError, "must be a dictionary with"),
        ('{"class_name": "Sequential", "module": "keras", "config": {}}', ValueError | NotImplementedError, "layers"),
        ('{"class_name": "Dense", "module": "keras.layers", "config": {"units": 2}}', ValueError, "Sequential, a func"),
        ('{"class_name": "Lambda", "module": "keras.layers", "config": {}}', NotImplementedError, "is not a layer"),
    ],
)
def test_what_is_no_model_is_refused(text, error, message):
    with pytest.raises(error.__args__ if hasattr(error, "__args__") else error, match=message):
        model_from_json(text)


CHANGES = {
    "long": lambda c: c["layers"][1]["config"].update(units=10**12),
    "longer": lambda c: c["layers"][1]["config"].update(units=10**30),
    "negative": lambda c: c["layers"][1]["config"].update(units=-1),
    "no number": lambda c: c["layers"][1]["config"].update(units="many"),
    "long inputs": lambda c: c["layers"][1]["build_config"].update(input_shape=[None, 10**12]),
    "no shape": lambda c: c["layers"][1]["build_config"].update(input_shape="all"),
    "no build_config": lambda c: c["layers"][1].update(build_config=3),
    "no activation": lambda c: c["layers"][1]["config"].update(activation="os.system"),
    "no policy": lambda c: c["layers"][1]["config"].update(dtype={"class_name": "x"}),
    "no layer": lambda c: c["layers"].insert(0, None),
    "no class": lambda c: c["layers"][1].update(class_name=["Dense"]),
    "another argument": lambda c: c["layers"][1]["config"].update(hidden=1),
    "wrapped": lambda c: c["layers"][1].update(class_name="TimeDistributed", config={"layer": 3}),
    "wrapped in itself": lambda c: c["layers"][1].update(class_name="TimeDistributed", config={}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_damaged_text_ends_in_an_error_that_names_it(change):
    entry = copy.deepcopy(json.loads(stack(keras).to_json()))
    change(entry["config"])
    with pytest.raises((ValueError, NotImplementedError), match=r"`json_string`|mp_core cannot run"):
        model_from_json(json.dumps(entry))


@pytest.mark.parametrize("compiled", [{"optimizer": 3}, {"optimizer": "no"}, {"optimizer": {"class_name": 3}}])
def test_damaged_training_ends_in_an_error_that_names_it(compiled):
    entry = json.loads(stack(keras).to_json())
    entry["compile_config"] = compiled
    with pytest.raises(ValueError, match="`compile_config` of `json_string`"):
        model_from_json(json.dumps(entry))
