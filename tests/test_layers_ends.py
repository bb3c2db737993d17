"""Symbolic inputs and outputs of layers and models, compared with Keras', and models made between them."""

import copy
import gc
import os
import pickle

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import pytest

import mp_core as mp
from mp_core import layers
from mp_core.interop.keras import from_keras

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of torch
X = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)


def _base(lib=mp, family=layers):
    x = lib.Input((4,), name="x")
    features = family.Dense(3, activation="relu", name="features")(x)
    return lib.Model(x, family.Dense(2, name="head")(features), name="base")


def _stack(lib=mp, family=layers):
    return lib.Sequential([lib.Input((4,)), family.Dense(3, name="features"), family.Dense(2, name="head")])


def _alike(ours, theirs):
    """Whether symbolic arrays are arranged alike and have equal shapes and dtypes."""
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(_alike(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(_alike, ours, theirs))
    return (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)


@pytest.mark.parametrize("name", ["input", "output", "inputs", "outputs"])
def test_models_of_one_list_and_dict_have_the_ends_of_keras(name):
    bases = (mp, _base()), (keras, _base(keras, keras.layers))
    for arranged in (lambda x, y: (x, y), lambda x, y: ([x], [y]), lambda x, y: ({"x": x}, {"z": y, "a": x})):
        ours, theirs = (lib.Model(*arranged(base.input, base.output)) for lib, base in bases)
        assert _alike(getattr(ours, name), getattr(theirs, name))
        assert (ours.input_shape, ours.output_shape) == (theirs.input_shape, theirs.output_shape)


def test_ends_of_layers_are_those_of_the_first_call_as_in_keras():
    found = []
    for lib, family in ((mp, layers), (keras, keras.layers)):
        x, y = lib.Input((3, 4)), lib.Input((3, 4))
        add, attention = family.Add(), family.MultiHeadAttention(2, 2)
        first = add([x, y])
        add([lib.Input((5,)), lib.Input((5,))])
        attention(x, y, return_attention_scores=True)
        assert add.output is first
        assert [part is whole for part, whole in zip(add.input, (x, y), strict=True)] == [True, True]
        found.append([add.input, add.output, attention.input, attention.output])
    assert _alike(*found)


@pytest.mark.parametrize("make", [_base, _stack])
def test_features_are_those_of_keras(make):
    theirs = make(keras, keras.layers)
    ours = from_keras(theirs)
    names = ["features", "head"]
    models = [lib.Model(base.inputs, [base.get_layer(name).output for name in names])
              for lib, base in ((mp, ours), (keras, theirs))]  # fmt: skip
    for got, want in zip(*(model.predict(X, verbose=0) for model in models), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [_base, _stack])
@pytest.mark.parametrize(
    "copied",
    [
        lambda model: model,
        copy.deepcopy,
        lambda model: pickle.loads(pickle.dumps(model)),
        lambda model: model.with_policy("int8_from_float32"),
        lambda model: type(model).from_config(model.get_config()),
    ],
)
def test_models_between_ends_share_the_layers(make, copied):
    base = copied(make())
    features = mp.Model(base.input, base.get_layer("features").output)
    assert features.get_layer("features") is base.get_layer("features")
    np.testing.assert_array_equal(mp.Model(base.input, base.output)(X), base(X))
    want = base.get_layer("features")(X)
    del base
    gc.collect()
    np.testing.assert_array_equal(features(X), want)
    again = mp.Model(features.input, features.get_layer("features").output)  # the first model is gone
    np.testing.assert_array_equal(again(X), want)


def test_fitting_a_model_between_ends_trains_the_shared_weights():
    base = _base()
    head = base.get_layer("head").get_weights()
    model = mp.Model(base.input, layers.Dense(1, name="new")(base.get_layer("features").output))
    before = base.get_layer("features").get_weights()
    model.compile("sgd", "mse")
    model.fit(X, X[:, :1], epochs=2, verbose=0)
    assert not np.array_equal(base.get_layer("features").get_weights()[0], before[0])
    np.testing.assert_array_equal(base.get_layer("head").get_weights()[0], head[0])


def test_a_model_between_ends_is_saved_for_keras_and_loaded(tmp_path):
    base = _base()
    model = mp.Model(base.input, [base.get_layer("features").output, base.output])
    model.save(tmp_path / "m.keras")
    theirs, ours = keras.saving.load_model(tmp_path / "m.keras"), mp.load_model(tmp_path / "m.keras")
    smaller = mp.Model(ours.input, ours.get_layer("features").output)
    want = model.predict(X, verbose=0)
    np.testing.assert_array_equal(smaller(X), want[0])
    for got, expected in zip(theirs.predict(X, verbose=0), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_quantizing_a_model_quantizes_the_models_between_its_ends():
    base = _base()
    features = mp.Model(base.input, base.get_layer("features").output)
    base.quantize("int8")
    assert features.get_layer("features").quantization_mode == "int8"
    np.testing.assert_array_equal(features(X), base.get_layer("features")(X))


def test_a_model_from_the_middle_has_an_input_of_its_own():
    base = _base()
    tail = mp.Model(base.get_layer("features").output, base.output)
    hidden = np.ones((2, 3), np.float32)
    assert tail.input_shape == (None, 3)
    np.testing.assert_array_equal(mp.Model(tail.input, tail.output)(hidden), base.get_layer("head")(hidden))


def test_a_stack_has_ends_once_it_is_built_and_new_ones_after_a_change():
    stack = mp.Sequential([layers.Dense(3, name="a")])
    for name in ("input", "output", "inputs", "outputs"):
        with pytest.raises(AttributeError, match="has no inputs yet: start it with `Input`"):
            getattr(stack, name)
    stack(X)
    assert (stack.input_shape, stack.output_shape) == ((None, 4), (None, 3))
    stack = _stack()
    first = stack.layers[0].output
    assert stack.output_shape == (None, 2)
    stack.add(layers.Dense(7))
    assert stack.output_shape == stack.layers[-1].output.shape == (None, 7)
    stack.pop()
    assert stack.output_shape == (None, 2)
    assert stack.layers[0].output is first


def test_layers_that_were_never_called_say_so():
    class Net(mp.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    net = Net()
    net(X)
    for layer in (layers.Dense(2, name="a"), layers.Add(name="a"), net, net.dense):
        for name in ("input", "output"):
            with pytest.raises(AttributeError, match=f"layer '{layer.name}' has no `{name}`: it was never called with"):
                getattr(layer, name)


def test_an_output_of_another_input_is_refused():
    with pytest.raises(ValueError, match="needs the input <KerasTensor"):
        mp.Model(mp.Input((4,)), _base().get_layer("features").output)


def test_attributes_of_a_users_layer_come_before_the_ends():
    class Block(mp.Model):
        def __init__(self):
            super().__init__()
            self.output = layers.Dense(2)
            self.inputs = 3

        def call(self, x):
            return self.output(x)

    block = Block()
    assert block(X).shape == (5, 2)
    assert (block.inputs, type(block.output)) == (3, layers.Dense)


def test_computing_a_shape_is_no_call():
    dense = layers.Dense(2)
    dense.compute_output_shape((None, 3))
    with pytest.raises(AttributeError):
        _ = dense.output


def test_input_layers_are_their_own_ends():
    layer = layers.InputLayer((None, 4), name="x")
    assert layer.input is layer.output
    dense = layers.Dense(2)
    assert mp.Model(layer.output, dense(layer.output))(X).shape == (5, 2)
