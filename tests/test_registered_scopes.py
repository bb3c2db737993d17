"""Names in a scope or in ``custom_objects`` while a model is loaded or compiled: the model keeps them."""

import json

import numpy as np
import pytest

import mp_core as mp
from mp_core import constraints, losses, metrics, optimizers, regularizers, saving
from mp_core.layers import initializers


class Scaled(losses.Loss):
    def __init__(self, factor=3.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, y_true, y_pred):
        return mp.ops.mean(mp.ops.square(y_true - y_pred), axis=-1) * self.factor

    def get_config(self):
        return super().get_config() | {"factor": self.factor}


class Distance(metrics.MeanAbsoluteError):
    pass


class Steps(optimizers.SGD):
    pass


class Rate(optimizers.schedules.CosineDecay):
    pass


def scaled(y_true, y_pred):
    return mp.ops.mean(mp.ops.square(y_true - y_pred), axis=-1) * 2.0


def distance(y_true, y_pred):
    return mp.ops.mean(mp.ops.absolute(y_true - y_pred), axis=-1)


def quarters(shape, dtype=None):
    return np.full(shape, 0.25, np.float32)


def twice(x):
    return x * 2.0


def squares(weight):
    return mp.ops.sum(mp.ops.square(weight)) * 0.1


def same(weight):
    return weight


OWN = {thing.__name__: thing for thing in (
    Scaled, Distance, Steps, Rate, scaled, distance, quarters, twice, squares, same
)}  # fmt: skip
X = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
Y = X[:, :1].copy()


def model(loss, metric):
    inner = mp.Sequential([mp.Input((3,)), mp.layers.Dense(2, kernel_initializer=quarters, activation=twice)])
    last = mp.layers.Dense(1, kernel_initializer=quarters, kernel_regularizer=squares, kernel_constraint=same)
    found = mp.Sequential([mp.Input((3,)), inner, last])
    found.compile(Steps(Rate(0.01, 100)), loss, metrics=[metric])
    found.fit(X, Y, verbose=0)
    return found


def loaded_with_an_argument(made, folder):
    made.save(folder / "m.keras")
    return mp.load_model(folder / "m.keras", custom_objects=OWN)


def loaded_in_a_scope(made, folder):
    made.save(folder / "m.keras")
    with saving.custom_object_scope(OWN):
        return mp.load_model(folder / "m.keras")


def from_json(made, folder):
    found = mp.models.model_from_json(made.to_json(), custom_objects=OWN)
    found.set_weights(made.get_weights())
    return found


def compiled_from_its_configuration(made, folder):
    config = json.loads(json.dumps(saving.serialize_keras_object(made.get_compile_config())))
    found = loaded_with_an_argument(made, folder)
    with saving.custom_object_scope(OWN):
        found.compile_from_config(config)
    return found


@pytest.mark.parametrize("way", [
    loaded_with_an_argument, loaded_in_a_scope, from_json, compiled_from_its_configuration
])  # fmt: skip
@pytest.mark.parametrize(("loss", "metric"), [(scaled, distance), (Scaled(5.0), Distance())])
def test_a_model_trains_on_after_the_scope_has_ended(way, loss, metric, tmp_path):
    made = model(loss, metric)
    expected = made.evaluate(X, Y, verbose=0)
    errors = made.predict(X, verbose=0).astype(np.float64) - Y
    assert expected[1] == pytest.approx(np.abs(errors).mean(), rel=1e-5)
    found = way(made, tmp_path)
    assert found.evaluate(X, Y, verbose=0) == expected
    found.fit(X, Y, verbose=0)
    again = loaded_with_an_argument(found, tmp_path)
    assert again.evaluate(X, Y, verbose=0) == found.evaluate(X, Y, verbose=0)


@pytest.mark.parametrize("missing", ["scaled", "distance", "Steps", "Rate", "twice"])
def test_an_unknown_name_is_an_error_of_loading(missing, tmp_path):
    model(scaled, distance).save(tmp_path / "m.keras")
    known = {name: thing for name, thing in OWN.items() if name != missing}
    with pytest.raises((ValueError, NotImplementedError), match=missing):
        mp.load_model(tmp_path / "m.keras", custom_objects=known)
    if missing != "twice":
        assert not mp.load_model(tmp_path / "m.keras", custom_objects=known, compile=False).compiled


@pytest.mark.parametrize("given", [
    {"loss": "nope"}, {"loss": ["nope"]}, {"loss": {"dense": "nope"}}, {"loss": {"class_name": "Nope", "config": {}}},
    {"loss": "mse", "metrics": ["nope"]}, {"loss": "mse", "metrics": {"dense": ["nope"]}},
    {"loss": "mse", "weighted_metrics": ["mae", "nope"]}, {"optimizer": "nope"},
])  # fmt: skip
def test_an_unknown_name_is_an_error_of_compile_which_changes_nothing(given):
    found = mp.Sequential([mp.Input((3,)), mp.layers.Dense(1, name="dense")])
    found.compile("sgd", "mse", metrics=["mae"])
    before = found.get_compile_config()
    with pytest.raises(ValueError, match=r"class_name='[nN]ope'"):
        found.compile(**given)
    assert found.get_compile_config() == before


@pytest.mark.parametrize("given", ["Scaled", Scaled, "scaled", {"class_name": "Scaled", "config": {}}])
def test_a_name_in_scope_or_a_class_is_compiled(given):
    found = mp.Sequential([mp.Input((3,)), mp.layers.Dense(1, kernel_initializer="ones")])
    with saving.custom_object_scope(OWN):
        found.compile("sgd", given, metrics=[Distance, "distance"])
    factor = 2 if given == "scaled" else 3
    assert found.evaluate(X, Y, verbose=0)[0] == pytest.approx(factor * np.square(X.sum(1) - X[:, 0]).mean(), rel=1e-5)


def test_a_class_is_made_with_its_defaults_as_in_keras():
    made = losses.get(losses.Huber), metrics.get(metrics.AUC), regularizers.get(regularizers.L2)
    assert [type(each) for each in made] == [losses.Huber, metrics.AUC, regularizers.L2]
    assert isinstance(constraints.get(constraints.NonNeg), constraints.NonNeg)
    with pytest.raises(ValueError, match="Could not interpret loss identifier"):
        losses.get(metrics.AUC)


def test_initializers_of_a_scope_build_layers_after_it():
    stack = mp.Sequential([mp.layers.Dense(1, kernel_initializer=quarters)])
    found = mp.models.model_from_json(stack.to_json(), custom_objects=OWN)
    np.testing.assert_allclose(found(X), X.sum(1, keepdims=True) / 4, rtol=1e-5)
    with saving.custom_object_scope(OWN):
        layer = mp.layers.Dense(1, kernel_initializer="quarters")
    np.testing.assert_array_equal(layer(X), found(X))
    assert initializers.checked("he_normal") == "he_normal"  # configurations keep the names of built-in ones
