"""Attributes that users read: states of random numbers, metrics, regularizers of outputs, weights of counts."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import pytest

import mp_core as mp


def with_dropout(library):
    """Return a built layer that has a trained and a frozen layer, and draws."""

    class Drawing(library.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense = library.layers.Dense(2)
            self.drops = [library.layers.Dropout(0.5, seed=7)]
            self.frozen = library.layers.BatchNormalization(trainable=False)

        def build(self, shape):
            self.dense.build(shape)
            self.frozen.build((None, 2))

    layer = Drawing()
    layer.build((None, 3))
    return layer


def test_variables_have_the_states_of_random_numbers_and_weights_have_not_as_in_keras():
    mine, other = with_dropout(mp), with_dropout(keras)
    for name in ("variables", "non_trainable_variables", "trainable_variables", "weights", "non_trainable_weights"):
        found, expected = (sorted(v.name for v in getattr(layer, name)) for layer in (mine, other))
        assert found == expected, name
    assert mine.drops[0].variables[0].numpy().tolist() == [7, 0]
    assert len(mine.get_weights()) == len(other.weights)


def test_metrics_of_a_layer_are_those_of_the_layers_in_it_and_their_variables_are_none_of_its_own():
    for library in (mp, keras):
        inner = library.layers.Dense(2)
        inner.seen = library.metrics.MeanSquaredError(name="seen")

        class Around(library.layers.Layer):
            def build(self, shape):
                self.inner, self.means = inner, [library.metrics.Mean()]  # noqa: B023 - used in this round
                inner.build(shape)  # noqa: B023

        layer = Around()
        layer.build((None, 3))
        assert sorted(metric.name for metric in layer.metrics) == ["mean", "seen"]
        assert (len(layer.metrics_variables), len(layer.weights), len(layer.variables)) == (4, 2, 2)


def test_the_regularizer_of_outputs_is_an_attribute_that_can_be_set():
    layer = mp.layers.Dense(2, kernel_initializer="ones", activity_regularizer="l2")
    assert isinstance(layer.activity_regularizer, mp.regularizers.L2)
    layer(np.ones((4, 3), np.float32))
    assert [float(x) for x in layer.losses] == pytest.approx([2 * 9 * 0.01])
    layer.activity_regularizer = mp.regularizers.L1(0.5)
    layer(np.ones((4, 3), np.float32))
    assert [float(x) for x in layer.losses] == [2 * 3 * 0.5]
    layer.activity_regularizer = None
    layer(np.ones((4, 3), np.float32))
    assert layer.losses == [] and "activity_regularizer" not in layer.get_config()
    layer.activity_regularizer = "l1"
    assert mp.layers.Dense.from_config(layer.get_config()).activity_regularizer.get_config() == {"l1": 0.01}
    with pytest.raises(ValueError):
        layer.activity_regularizer = "no such one"
    assert layer.activity_regularizer.get_config() == {"l1": 0.01}


def test_counts_of_categories_are_weighted_as_in_keras():
    x = np.array([[0, 1], [0, 0], [1, 2], [3, 1]], np.int32)
    weights = np.float32([[0.1, 0.2], [0.1, 0.1], [0.2, 0.3], [0.4, 0.2]])
    expected = keras.layers.CategoryEncoding(4, "count")(x, count_weights=weights)
    layer = mp.layers.CategoryEncoding(4, "count", name="count")
    np.testing.assert_allclose(layer(x, count_weights=weights), expected)
    inputs = mp.Input((2,), dtype="int32"), mp.Input((2,))
    model = mp.Model(inputs, layer(inputs[0], count_weights=inputs[1]))
    np.testing.assert_allclose(model.predict((x, weights), verbose=0), expected)
    with pytest.raises(ValueError, match="must have the shape"):
        layer(x, count_weights=weights[:1])
    with pytest.raises(ValueError, match="in mode 'multi_hot'"):
        mp.layers.CategoryEncoding(4)(x, count_weights=weights)


def test_padding_of_one_axis_says_where_the_channels_are_as_in_keras():
    config = mp.layers.ZeroPadding1D((1, 2)).get_config()
    assert config.keys() == keras.layers.ZeroPadding1D((1, 2)).get_config().keys()
    assert mp.layers.ZeroPadding1D.from_config(config | {"data_format": "channels_first"}).data_format[9:] == "first"


@pytest.mark.parametrize("name", ["flatten", "children", "whole"])
def test_a_layer_of_a_user_has_any_name_that_keras_leaves_free(tmp_path, name):
    """Guides of TensorFlow and Keras write `self.flatten = Flatten()`."""

    class Mine(mp.Model):
        def __init__(self):
            super().__init__()
            setattr(self, name, mp.layers.Flatten())
            self.dense = mp.layers.Dense(2)

        def call(self, x):
            return self.dense(getattr(self, name)(x))

    model, x, y = Mine(), np.ones((4, 2, 3), np.float32), np.ones((4, 2), np.float32)
    model.compile("sgd", "mse")
    model.fit(x, y, verbose=0)
    assert [layer.name for layer in model.layers] == [getattr(model, name).name, model.dense.name]
    outputs = model.predict(x, verbose=0)
    assert np.array_equal(mp.compile(model, x)(x), outputs)
    model.save(tmp_path / "model.keras")
    again = mp.load_model(tmp_path / "model.keras", custom_objects={"Mine": Mine})
    assert np.array_equal(again.predict(x, verbose=0), outputs)
    model.quantize("int8")
    assert model.dense.quantized and model.count_params() > 0
