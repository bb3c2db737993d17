"""tf.keras' tape."""

import numpy as np
import pytest

import mp_core as mp
from mp_core import layers
from mp_core.tf_keras import GradientTape


def squares(x):
    return mp.matmul(x.reshape(1, -1), x.reshape(-1, 1))


def perceptron():
    model = layers.Sequential([layers.Dense(8, "relu"), layers.Dense(3)])
    model.build((None, 5))
    return model


def test_gradients_are_those_of_value_and_grad():
    model, x = perceptron(), np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    with GradientTape() as tape:
        loss = squares(model(x))
    value, expected = mp.value_and_grad(lambda x: squares(model(x)), model.trainable_variables)(x)
    found = tape.gradient(loss, model.trainable_variables)
    assert np.array_equal(loss, [[value]])
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
    assert tape.watched_variables() == tuple(model.trainable_variables)


def test_arrays_are_watched_and_targets_have_output_gradients():
    w = mp.AutoCastVariable(np.float32([[2.0]]))
    with GradientTape(persistent=True) as tape:
        x = tape.watch(np.float32([[3.0], [1.0]]))
        y = mp.matmul(x, w)
    assert tape.gradient(y, {"x": x, "w": w})["x"].tolist() == [[2], [2]]
    assert tape.gradient(y, w).tolist() == [[4]]
    assert tape.gradient([y], [w], output_gradients=[np.float32([[1.0], [0.0]])])[0].tolist() == [[3]]


def test_what_the_target_does_not_depend_on_is_none_and_a_tape_serves_once():
    w, other = (mp.AutoCastVariable(np.float32([[2.0]])) for _ in range(2))
    with GradientTape() as tape:
        y = mp.matmul(w, w)
    assert tape.gradient(y, [w, other])[1] is None
    with pytest.raises(RuntimeError, match="non-persistent"):
        tape.gradient(y, w)
    with pytest.raises(RuntimeError, match="enter it first"):
        GradientTape().watch(w)


def test_variables_may_be_assigned_and_only_watched_ones_have_gradients():
    w, frozen = mp.AutoCastVariable(np.float32([[2.0]])), mp.AutoCastVariable(np.float32([[5.0]]), trainable=False)
    with GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(w)
        y = mp.matmul(w, frozen)
        frozen.assign(y)
    assert frozen.numpy() == 10
    assert tape.gradient(y, w).tolist() == [[5]]


def test_elements_are_read_after_the_block_and_not_in_it():
    w = mp.AutoCastVariable(np.float32([[2.0]]))
    with GradientTape() as tape:
        y = mp.matmul(w, w)
        with pytest.raises(ValueError, match="a decision by its elements"):
            float(y)
        with pytest.raises(ValueError, match=r"numpy\.cbrt"):
            np.cbrt(y)
    assert float(y[0, 0]) == 4 and y.item() == 4 and np.exp(y) > 54 and str(y) == "[[4.]]" and y + 1 == 5
    assert tape.gradient(y, w).tolist() == [[4]]


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_minimize_scales_the_loss_on_its_way_back(scale):
    w = mp.AutoCastVariable(np.float32([[2.0]]))
    optimizer = mp.tf_keras.mixed_precision.LossScaleOptimizer(
        mp.optimizers.SGD(0.25), dynamic=False, initial_scale=scale
    )
    optimizer.minimize(lambda: mp.matmul(w, w), [w])
    assert w.numpy() == 1
    with GradientTape() as tape:
        loss = mp.matmul(w, w)
    optimizer.minimize(loss, lambda: [w], tape=tape, grad_loss=np.float32([[2.0]]))
    assert w.numpy() == 0
    with pytest.raises(ValueError, match="`tape` is required"):
        optimizer.minimize(loss, [w])
