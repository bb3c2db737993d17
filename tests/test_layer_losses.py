"""`layer.losses`: the terms that layers added to the loss in the latest call, as in Keras 3.15."""

import copy
import gc
import pickle

import numpy as np
import pytest

import mp_core as mp
from mp_core.arrays.recorded import is_recorded

X = np.arange(6, dtype=np.float32).reshape(2, 3)  # its sum is 15


class Add(mp.layers.Layer):
    def call(self, inputs):
        self.add_loss(mp.ops.sum(inputs))
        return inputs


def losses(layer):
    return [pytest.approx(float(loss), rel=1e-6) for loss in layer.losses]


def test_each_outermost_call_begins_anew():
    layer = Add()
    assert layer.losses == []
    for factor in (1, 2):
        layer(factor * X)
        assert losses(layer) == [15 * factor]


def test_an_activity_regularizer_counts_for_each_sample_before_those_of_weights():
    layer = mp.layers.Dense(2, kernel_initializer="ones", activity_regularizer="l2", kernel_regularizer="l1")
    for factor in (1, 2):
        layer(factor * X)
        squares = 2 * ((3 * factor) ** 2 + (12 * factor) ** 2)
        assert losses(layer) == [0.01 * squares / 2, 0.01 * 6]
    layer = mp.layers.ActivityRegularization(l1=0.1, l2=0.2)
    layer(X)
    assert losses(layer) == [(0.1 * 15 + 0.2 * 55) / 2]


def test_a_model_lists_those_below_it_in_their_order():
    dense = mp.layers.Dense(2, kernel_initializer="ones", activity_regularizer=mp.regularizers.L2(0.1))
    model = mp.Sequential([mp.Input((3,)), Add(), dense, Add()])
    for _ in range(2):
        model(X)
        assert losses(model) == [15, 15.3, 30]
    assert [losses(layer) for layer in model.layers] == [[15], [15.3], [30]]


def test_a_shared_layer_adds_at_each_of_its_calls_and_a_call_of_its_own_replaces_them():
    shared, x = Add(), mp.Input((3,))
    model = mp.Model(x, mp.layers.add([shared(x), shared(mp.layers.Rescaling(2.0)(x))]))
    outer = mp.Sequential([model, Add()])
    for _ in range(2):
        outer(X)
        assert losses(outer) == [15, 30, 45]
        assert losses(model) == [15, 30]
    shared(X)
    assert losses(model) == [15]


def test_shapes_copies_and_training_leave_them_as_they_are():
    layer = Add()
    model = mp.Sequential([mp.Input((3,)), layer, mp.layers.Dense(1)])
    assert losses(model) == []
    model(X)
    assert copy.deepcopy(layer).losses == []
    model.compute_output_shape((2, 3))
    model.summary(print_fn=lambda text: None)
    model.compile("sgd", "mse")
    model.fit(X, X[:, :1], epochs=2, verbose=0)
    assert losses(model) == [15]
    assert not any(is_recorded(loss) for loss in model.losses)


def test_a_pickled_layer_has_none():
    layer = mp.layers.ReLU(activity_regularizer="l2")
    layer(X)
    assert len(layer.losses) == 1
    assert pickle.loads(pickle.dumps(layer)).losses == []


def test_calls_do_not_let_a_plan_be_recorded_anew():
    layer = Add()
    plan = mp.compile(layer, X)
    before = plan._last[1]
    layer(X)
    layer(X)
    plan(X)
    assert plan._last[1] is before


def test_a_step_of_ones_own_sees_what_was_added_with_its_gradient():
    class Own(mp.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.add = mp.layers.Dense(1, use_bias=False), Add()

        def call(self, inputs):
            return self.add(self.dense(inputs))

    model = Own()
    model(X)

    def loss(x):
        model(x)
        return sum(model.losses)

    for _ in range(2):
        value, (gradient,) = mp.value_and_grad(loss, model.trainable_variables)(X)
        assert float(value) == pytest.approx(float(np.sum(X @ model.dense.kernel.numpy())), rel=1e-6)
        np.testing.assert_allclose(gradient, X.sum(axis=0)[:, np.newaxis])
    assert not any(is_recorded(each) for each in model.losses)


def test_what_was_added_goes_with_the_layer():
    from mp_core.layers.base import losses

    gc.collect()
    before = len(losses._added)
    layer = Add()
    layer(X)
    assert len(losses._added) == before + 1
    del layer
    gc.collect()
    assert len(losses._added) == before
