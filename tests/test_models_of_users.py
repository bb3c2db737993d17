"""Models of users' classes in `.keras` files and as JSON: with the state of compile, weights and the optimizer."""

import copy
import json
import pickle
import warnings
from typing import ClassVar

import numpy as np
import pytest
from conftest import run_with_keras
from users_models import make_classes

import mp_core as mp
from mp_core import layers
from mp_core.models import model_from_json

rng = np.random.default_rng(0)
X = rng.standard_normal((16, 4)).astype(np.float32)
CLASSES = make_classes(mp)


def _path(tmp_path):
    return tmp_path / "m.keras"


def _reopened(model, tmp_path, objects=CLASSES):
    model.save(_path(tmp_path))
    return mp.load_model(_path(tmp_path), objects)


def _trained(name, x=X, **arguments):
    model = CLASSES[name](**arguments)
    model.compile(mp.optimizers.Adam(0.01), "mse", metrics=["mae"])
    model.fit(x, X[:, :2], batch_size=8, epochs=2, verbose=0)
    return model


INPUTS = {
    "Plain": X, "Blocks": X, "Configured": X, "Nested": X, "Graph": X, "OfList": [X, X[:, :3]],
    "OfDict": {"left": X, "right": X[:, :3]},
}  # fmt: skip
ARGUMENTS = {"Plain": {"units": 5}, "Blocks": {"sizes": [4, 3]}, "Configured": {"head": layers.Dense(2)}}


@pytest.mark.parametrize("name", INPUTS)
def test_a_subclassed_model_is_reopened_with_all_that_it_learned(tmp_path, name):
    x = INPUTS[name]
    model = _trained(name, x, **ARGUMENTS.get(name, {}))
    again = _reopened(model, tmp_path)
    assert type(again).__name__ == name and isinstance(again, CLASSES[name]) and again.name == model.name
    assert again.predict(x, verbose=0).tobytes() == model.predict(x, verbose=0).tobytes()
    for each in (model, again):
        each.fit(x, X[:, :2], batch_size=8, epochs=2, shuffle=False, verbose=0)
    for one, other in zip(
        [*model.weights, *model.optimizer.variables], [*again.weights, *again.optimizer.variables], strict=True
    ):
        assert one.numpy().tobytes() == other.numpy().tobytes()
    assert again.evaluate(x, X[:, :2], verbose=0) == model.evaluate(x, X[:, :2], verbose=0)
    assert len(again.evaluate(x, X[:, :2], verbose=0)) == 2


def test_several_arguments_of_a_call_are_built_again(tmp_path):
    model = CLASSES["OfArguments"]()
    want = -model(X, scale=X[:, :1], negative=True)  # no array
    again = _reopened(model, tmp_path)
    assert again(X, scale=X[:, :1]).tobytes() == want.tobytes()


@pytest.mark.parametrize("name", INPUTS)
def test_a_subclassed_model_goes_through_json(name):
    model = _trained(name, INPUTS[name], **ARGUMENTS.get(name, {}))
    again = model_from_json(model.to_json(), CLASSES)
    assert type(again) is type(model) and again.compiled
    assert [v.shape for v in again.weights] == [v.shape for v in model.weights]
    again.set_weights(model.get_weights())
    assert again.predict(INPUTS[name], verbose=0).tobytes() == model.predict(INPUTS[name], verbose=0).tobytes()


def test_registered_classes_need_no_custom_objects(tmp_path):
    @mp.saving.register_keras_serializable("Mine")
    class Registered(CLASSES["Plain"]):
        pass

    model = Registered(3)
    want = model(X)
    assert json.loads(model.to_json())["registered_name"] == "Mine>Registered"
    again = _reopened(model, tmp_path, None)
    assert type(again) is Registered and again(X).tobytes() == want.tobytes()
    unknown = CLASSES["Plain"](2)
    unknown(X)
    with pytest.raises(NotImplementedError, match="no such layer"):
        _reopened(unknown, tmp_path, None)


def test_a_model_in_a_model_keeps_its_class_and_its_place(tmp_path):
    inner = CLASSES["Plain"](3)
    x = mp.Input((4,))
    model = mp.Model(x, layers.Dense(2)(inner(x)))
    want = model(X)
    again = _reopened(model, tmp_path)
    assert isinstance(again.layers[1], CLASSES["Plain"]) and again(X).tobytes() == want.tobytes()


@pytest.mark.parametrize("name", ["GraphOfUnits", "OwnGraph", "Stack"])
def test_users_functional_and_sequential_classes_are_kept(tmp_path, name):
    if name == "OwnGraph":
        x = mp.Input((4,))
        model = CLASSES[name](x, layers.Dense(2)(x) * 2.0 + 1.0)
    elif name == "Stack":
        model = CLASSES[name]([mp.Input((4,)), layers.Dense(2)])
    else:
        model = CLASSES[name](units=3)
        assert model.get_config()["units"] == 3
    model.compile("sgd", "mse")
    again = _reopened(model, tmp_path)
    assert isinstance(again, CLASSES[name]) and again.own() == 1 and again.compiled
    assert getattr(again, "units", None) == getattr(model, "units", None)
    assert again.predict(X, verbose=0).tobytes() == model.predict(X, verbose=0).tobytes()


def test_layers_without_get_config_have_the_arguments_of_their_constructor(tmp_path):
    layer = CLASSES["Scaled"](3, factors=[1, 2.5, {"a": None}], name="s", trainable=False)
    config = layer.get_config()
    assert (config["units"], config["factors"], config["name"]) == (3, [1, 2.5, {"a": None}], "s")
    again = CLASSES["Scaled"].from_config(config)
    assert again.get_config() == config and again.trainable is False
    model = mp.Sequential([mp.Input((4,)), CLASSES["Bare"](3)])  # whose constructor takes no name
    again = _reopened(model, tmp_path)
    assert again.layers[0].name == model.layers[0].name
    assert again(X).tobytes() == model(X).tobytes()


def test_what_cannot_be_saved_is_an_error_when_it_is_saved(tmp_path):
    for arguments in ({"units": layers.Dense(2)}, {"units": np.int64(3)}, {"units": lambda: 3}):
        model = CLASSES["Anything"](**arguments)
        model(X)
        with pytest.raises(NotImplementedError, match=r"Anything .* define `get_config`"):
            model.save(_path(tmp_path))
        assert not _path(tmp_path).exists()
    model = CLASSES["Various"](3, 4)
    model(X)
    with pytest.raises(NotImplementedError, match="have no names"):
        model.save(_path(tmp_path))


def test_a_compile_of_ones_own_needs_both_methods(tmp_path):
    model = CLASSES["OwnCompile"]()
    model.compile("sgd", "mse")
    model.fit(X, X[:, :2], verbose=0)
    with pytest.warns(UserWarning, match="class that overrides `compile` must"):
        again = _reopened(model, tmp_path)
    assert not again.compiled and again(X).tobytes() == model(X).tobytes()
    model = CLASSES["Compiling"]()
    model.compile("sgd", "mse", 0.5)
    model(X)
    again = _reopened(model, tmp_path)
    assert again.compiled and again.extra == 0.5


# ---- before they are built


@pytest.mark.parametrize("kind", ["stack", "users", "mixed"])
def test_a_model_that_is_not_built_is_saved_without_weights(tmp_path, kind):
    model = {
        "stack": lambda: mp.Sequential([layers.Embedding(9, 4), layers.Dropout(0.5), layers.Dense(2, "relu")]),
        "users": lambda: CLASSES["Plain"](5),
        "mixed": lambda: mp.Sequential([CLASSES["Scaled"](3), layers.MultiHeadAttention(1, 2)]),
    }[kind]()
    model.compile(mp.optimizers.Adam(0.01), "mse")
    with pytest.warns(UserWarning, match="is not built"):
        model.save(_path(tmp_path))
    again = mp.load_model(_path(tmp_path), CLASSES)
    assert not again.built and not again.weights and again.compiled
    assert json.loads(again.to_json())["config"].keys() == json.loads(model.to_json())["config"].keys()
    if kind != "mixed":
        x = rng.integers(0, 9, (8, 3)) if kind == "stack" else X
        again.fit(x, np.zeros((len(x), 3, 2) if kind == "stack" else (len(x), 2)), verbose=0)
        model(x)
        assert [v.shape for v in again.weights] == [v.shape for v in model.weights]


def test_weights_alone_need_a_model_that_is_built(tmp_path):
    with pytest.raises(ValueError, match="has no weights yet"):
        mp.Sequential([layers.Dense(2)]).save_weights(tmp_path / "m.weights.h5")


def test_a_stack_that_is_built_in_part_keeps_what_it_has(tmp_path):
    first = layers.Dense(3)
    first.build((None, 4))
    model = mp.Sequential([first, layers.Dense(2)])
    with pytest.warns(UserWarning, match="is not built"):
        again = _reopened(model, tmp_path)
    assert again.layers[0].built and not again.layers[1].built
    assert again.layers[0].kernel.numpy().tobytes() == first.kernel.numpy().tobytes()


# ---- Keras


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("users")
    for name in ("Plain", "Blocks", "Nested", "OfDict"):
        model = _trained(name, INPUTS[name], **ARGUMENTS.get(name, {}))
        model.save(path / f"ours.{name}.keras")
        np.savez(path / f"ours.{name}.npz", model.predict(INPUTS[name], verbose=0))
    np.savez(path / "x.npz", x=X)
    run_with_keras("keras_users.py", path, "jax")
    return path


@pytest.mark.parametrize("name", ["Plain", "Blocks", "Nested", "OfDict"])
def test_files_go_to_keras_and_back(folder, name):
    want, found = (np.load(folder / f"{which}.{name}.npz")["arr_0"] for which in ("ours", "opened"))
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = mp.load_model(folder / f"keras.{name}.keras", CLASSES)
    np.testing.assert_allclose(
        model.predict(INPUTS[name], verbose=0), np.load(folder / f"keras.{name}.npz")["arr_0"], rtol=1e-5, atol=1e-6
    )
    assert int(model.optimizer.iterations) == 6
    other = _trained(name, INPUTS[name])
    other.load_weights(folder / f"keras.{name}.weights.h5")
    assert other.predict(INPUTS[name], verbose=0).tobytes() == model.predict(INPUTS[name], verbose=0).tobytes()


# ---- what Keras' own tests of files ask for


class Stored(layers.Dense):
    """A layer that says itself what files have of it."""

    def build(self, input_shape):
        super().build(input_shape)
        self.stored = np.arange(3.0)

    def save_own_variables(self, store):
        store["variables"] = self.stored

    def load_own_variables(self, store):
        self.stored = np.array(store["variables"])


class Loading(layers.Layer):
    """A layer of another one, without variables of its own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner, self.loaded = layers.Dense(2), None

    def call(self, x):
        return self.inner(x)

    def load_own_variables(self, store):
        self.loaded = dict(store)


def test_a_layer_that_loads_is_asked_to_where_it_has_stored_nothing(tmp_path):
    again = _reopened(mp.Sequential([mp.Input((4,)), Loading()]), tmp_path, {"Loading": Loading})
    assert again.layers[0].loaded == {}


def test_a_layer_that_loads_its_own_variables_is_asked_to(tmp_path):
    def made():
        return mp.Sequential([mp.Input((4,)), Stored(2)])

    model, other = made(), made()
    model.layers[0].stored = np.arange(5.0)
    again = _reopened(model, tmp_path, {"Stored": Stored})
    model.save_weights(tmp_path / "m.weights.h5")
    other.load_weights(tmp_path / "m.weights.h5")
    for each in (again, other):
        np.testing.assert_array_equal(each.layers[0].stored, np.arange(5.0))


def test_weights_are_loaded_from_the_file_of_a_whole_model(tmp_path):
    def made():
        return mp.Sequential([mp.Input((4,)), layers.Dense(2)])

    model, other = made(), made()
    model.save(_path(tmp_path))
    other.load_weights(_path(tmp_path))
    assert other(X).tobytes() == model(X).tobytes()
    _path(tmp_path).write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"must be a .weights.h5 or .keras file"):
        other.load_weights(_path(tmp_path))


@pytest.mark.parametrize(
    ("value", "entry"),
    [
        (np.array([0, 1]), {"class_name": "__numpy__", "config": {"value": [0, 1], "dtype": "int64"}}),
        (b"hello", {"class_name": "__bytes__", "config": {"value": "hello"}}),
        (slice(None, 20, 1), {"class_name": "__slice__", "config": {"start": None, "stop": 20, "step": 1}}),
        (..., {"class_name": "__ellipsis__", "config": {}}),
    ],
)
def test_values_that_json_has_not_are_written_as_keras_writes_them(value, entry):
    assert mp.saving.serialize_keras_object({"a": [value]}) == {"a": [entry]}
    again = mp.saving.deserialize_keras_object(json.loads(json.dumps(entry)))
    assert type(again) is type(value) and np.array_equal(again, value)


def test_damaged_values_are_refused():
    for entry in (
        {"class_name": "__numpy__", "config": {"value": [1]}},
        {"class_name": "__bytes__", "config": {"value": 3}},
    ):
        with pytest.raises(ValueError, match="cannot create"):
            mp.saving.deserialize_keras_object(entry)
    assert mp.saving.deserialize_keras_object(mp.saving.serialize_keras_object(b"\xff\x00")) == b"\xff\x00"


@mp.saving.register_keras_serializable("users")
class Growth:
    """An activation that is an object of a user's class."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor

    def get_config(self):
        return {"factor": self.factor}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


@pytest.mark.parametrize("activation", [layers.LeakyReLU(negative_slope=0.15, name="leaky"), Growth(0.25)])
def test_activations_that_are_layers_or_objects_are_reopened(tmp_path, activation):
    model = mp.Sequential([mp.Input((4,)), layers.Dense(3, activation=activation)])
    again = _reopened(model, tmp_path)
    assert type(again.layers[0].activation) is type(activation)
    assert again.layers[0].activation.get_config() == activation.get_config()
    assert again(X).tobytes() == model(X).tobytes()


class Listed(mp.Model):
    """A base that lists its subclasses, and takes no arguments of classes."""

    names: ClassVar[list] = []

    def __init_subclass__(cls):
        super().__init_subclass__()
        Listed.names.append(cls.__name__)


class OfGraph(Listed):
    """A functional model with the words of mp_core's own graph for what is the user's."""

    def __init__(self, inputs, outputs, edges=(), **kwargs):
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        self.graph = self._graph = {"edges": list(edges)}

    def set_graph(self, edges):
        self.graph = {"edges": edges}

    def get_config(self):
        return super().get_config() | {"edges": self.graph["edges"]}


def test_a_functional_model_of_a_users_class_may_have_a_graph_of_its_own(tmp_path):
    x = mp.Input((4,))
    model = OfGraph(x, layers.Dense(3)(x), [1, 2])
    again = _reopened(model, tmp_path, {"OfGraph": OfGraph})
    assert model.graph == again.graph == {"edges": [1, 2]} and "OfGraph" in Listed.names
    for other in (again, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert isinstance(other, OfGraph) and other(X).tobytes() == model(X).tobytes()
    assert mp.models.clone_model(mp.Model(x, model(x)))(X).shape == (16, 3)
