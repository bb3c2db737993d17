"""Classes and functions that users register: configurations of every kind name them, and find them again."""

import numpy as np
import pytest

import mp_core as mp
from mp_core import constraints, losses, metrics, optimizers, regularizers, saving
from mp_core.optimizers import schedules


class OwnLoss(losses.Loss):
    def call(self, y_true, y_pred):
        return mp.ops.mean(mp.ops.absolute(y_true - y_pred), axis=-1)


class OwnMetric(metrics.MeanAbsoluteError):
    pass


class OwnOptimizer(optimizers.SGD):
    pass


class OwnRegularizer(regularizers.L2):
    pass


class OwnConstraint(constraints.NonNeg):
    pass


class OwnSchedule(schedules.CosineDecay):
    pass


def own_function(*arrays):
    return mp.ops.sum(mp.ops.square(arrays[-1]))


KINDS = {
    "losses": (losses, OwnLoss()), "metrics": (metrics, OwnMetric()), "optimizers": (optimizers, OwnOptimizer(0.5)),
    "regularizers": (regularizers, OwnRegularizer(0.5)), "constraints": (constraints, OwnConstraint()),
    "schedules": (schedules, OwnSchedule(0.5, 10)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def registered():
    """Other tests empty the registry."""
    before = dict(saving.get_custom_objects())
    for thing in (own_function, *(type(made) for _, made in KINDS.values())):
        saving.register_keras_serializable("test_registered")(thing)
    yield
    saving.get_custom_objects().clear()
    saving.get_custom_objects().update(before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_registered_class_is_found_again(kind):
    module, made = KINDS[kind]
    config = module.serialize(made)
    assert config["registered_name"] == f"test_registered>{type(made).__name__}"
    again = module.deserialize(config)
    assert type(again) is type(made) and again.get_config() == made.get_config()


@pytest.mark.parametrize("kind", ["losses", "metrics", "regularizers", "constraints"])
def test_a_registered_function_is_found_again(kind):
    module, _ = KINDS[kind]
    assert module.deserialize(module.serialize(own_function)) is own_function


def test_a_model_of_registered_parts_is_saved_whole(tmp_path):
    parts = {
        "kernel_regularizer": own_function,
        "bias_regularizer": OwnRegularizer(),
        "kernel_constraint": OwnConstraint(),
    }
    model = mp.Sequential([mp.Input((3,)), mp.layers.Dense(2, **parts)])
    model.compile(OwnOptimizer(OwnSchedule(0.5, 10)), OwnLoss(), metrics=[OwnMetric(name="own")])
    model.save(tmp_path / "model.keras")
    loaded = mp.load_model(tmp_path / "model.keras")
    config = loaded.layers[-1].get_config()
    assert config["kernel_regularizer"] == "test_registered>own_function"
    assert config["bias_regularizer"]["class_name"] == "OwnRegularizer"
    assert type(loaded.optimizer) is OwnOptimizer and loaded.optimizer.get_config() == model.optimizer.get_config()
    x = np.ones((4, 3), np.float32)
    assert loaded.evaluate(x, x[:, :2], verbose=0) == model.evaluate(x, x[:, :2], verbose=0)


def test_what_is_not_registered_is_left_out_aloud(tmp_path):
    def unknown(x):
        return mp.ops.sum(x)

    model = mp.Sequential([mp.Input((3,)), mp.layers.Dense(2, kernel_regularizer=unknown, kernel_initializer="ones")])
    model.save(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="loads without its kernel_regularizer 'unknown'"):
        loaded = mp.load_model(tmp_path / "model.keras")
    assert loaded.layers[-1].kernel_initializer == "ones" and "kernel_regularizer" not in loaded.layers[-1].get_config()
    again = mp.load_model(tmp_path / "model.keras", custom_objects={"unknown": unknown})
    assert again.losses


def test_a_loaded_model_draws_as_the_saved_one(tmp_path):
    model = mp.Sequential([mp.Input((3,)), mp.layers.Dropout(0.5, noise_shape=(None, 1), seed=3)])
    model.save(tmp_path / "model.keras")
    loaded = mp.load_model(tmp_path / "model.keras")
    x = np.ones((20, 3), np.float32)
    np.testing.assert_array_equal(loaded(x, training=True), model(x, training=True))
