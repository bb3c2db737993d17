"""Configurations of losses, metrics, optimizers and their parts, compared with those of Keras."""

import json
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import pytest

import mp_core as mp
from mp_core import saving

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of torch

OBJECTS = {
    "loss": lambda k: k.losses.Huber(0.5, name="h"),
    "loss named as a metric": lambda k: k.losses.MeanSquaredError(name="m"),
    "metric": lambda k: k.metrics.MeanSquaredError(name="m"),
    "optimizer": lambda k: k.optimizers.Adam(0.25),
    "schedule": lambda k: k.optimizers.schedules.CosineDecay(0.25, 10, name="c"),
    "optimizer of a schedule": lambda k: k.optimizers.SGD(k.optimizers.schedules.CosineDecay(0.25, 10)),
    "loss scale": lambda k: k.optimizers.LossScaleOptimizer(k.optimizers.SGD(0.5)),
    "initializer": lambda k: k.initializers.Identity(2.0),
    "regularizer": lambda k: k.regularizers.L2(0.25),
    "constraint": lambda k: k.constraints.UnitNorm(1),
    "quantizer": lambda k: k.quantizers.AbsMaxQuantizer(0),
    "layer named as an initializer": lambda k: k.layers.Identity(name="i"),
    "seeds": lambda k: k.random.SeedGenerator(3, name="s"),
    "model": lambda k: k.Sequential([k.layers.Dense(2, name="d")], name="m"),
}


def _written(serialize, x):
    return json.loads(json.dumps(serialize(x)))


@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_what_either_serializes_is_found_again_by_both(make):
    ours, theirs = make(mp), make(keras)
    config = _written(saving.serialize_keras_object, ours)
    of_keras = _written(keras.saving.serialize_keras_object, theirs)
    assert config["class_name"] == of_keras["class_name"]
    assert of_keras["module"] == config["module"] or of_keras["module"].startswith("keras.src.backend.torch.optimizers")
    assert type(saving.deserialize_keras_object(of_keras)) is type(ours)
    again = saving.deserialize_keras_object(config)
    assert type(again) is type(ours) and again.get_config() == ours.get_config()
    assert type(keras.saving.deserialize_keras_object(config)) is type(theirs)  # it changes `config`


@pytest.mark.parametrize("mode", ["Int8", "Int4", "Float8"])
def test_quantization_configs_are_found_again(mode):
    ours = getattr(mp.quantizers, f"{mode}QuantizationConfig")()
    again = saving.deserialize_keras_object(_written(saving.serialize_keras_object, ours))
    assert type(again) is type(ours) and again.get_config() == ours.get_config()


@pytest.mark.parametrize("function", [mp.activations.relu, mp.losses.mean_squared_error, mp.metrics.binary_accuracy])
def test_functions_are_found_again(function):
    assert saving.deserialize_keras_object(_written(saving.serialize_keras_object, function)) is function


def test_nothing_is_executed():
    assert saving.deserialize_keras_object([1], safe_mode=True) == [1]
    with pytest.raises(ValueError, match="`safe_mode` must be True"):
        saving.deserialize_keras_object([1], safe_mode=False)


def test_a_model_that_was_a_configuration_is_trained():
    model = mp.Sequential([mp.Input((3,)), mp.layers.Dense(2)])
    again = saving.deserialize_keras_object(_written(saving.serialize_keras_object, model))
    again.compile("sgd", "mse")
    assert again.evaluate([[1.0, 2.0, 3.0]], [[0.0, 0.0]], verbose=0) >= 0
