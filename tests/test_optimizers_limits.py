"""Arguments of optimizers: numbers beyond their limits, and weights that do not fit, are errors and change nothing."""

import os

import numpy as np
import pytest

from mp_core import optimizers
from mp_core.autocast import AutoCastVariable

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras


@pytest.mark.parametrize("optimizer", [optimizers.Adam(0.5), optimizers.Adam(0.5, use_ema=True)], ids=["fused", "each"])
def test_a_step_beyond_what_iterations_can_count_is_refused_and_changes_nothing(optimizer):
    variable = AutoCastVariable([1.0, 2.0])
    optimizer.build([variable])
    optimizer.iterations = 2**31 - 2
    optimizer.apply([np.float32([1, 1])], [variable])
    assert optimizer.iterations == 2**31 - 1
    before = variable.numpy()
    with pytest.raises(OverflowError, match="`iterations` must be below 2147483647 before a step"):
        optimizer.apply([np.float32([1, 1])], [variable])
    assert optimizer.iterations == 2**31 - 1
    np.testing.assert_array_equal(variable.numpy(), before)


def test_weights_of_an_optimizer_are_set_as_in_keras():
    weights = [np.int32(3), np.float32(0.25), np.float32([1, 2]), np.float32([3, 4])]
    ours, theirs = optimizers.SGD(0.1, momentum=0.9), keras.optimizers.SGD(0.1, momentum=0.9)
    ours.build([AutoCastVariable(np.zeros(2, np.float32)), AutoCastVariable(np.zeros(2, np.float32))])
    theirs.build([keras.Variable(np.zeros(2, np.float32)), keras.Variable(np.zeros(2, np.float32))])
    for optimizer in (ours, theirs, optimizers.LossScaleOptimizer(ours)):
        optimizer.set_weights(weights)
        for variable, weight in zip(optimizer.variables, weights, strict=True):
            np.testing.assert_array_equal(variable.numpy(), weight)


def test_weights_that_do_not_fit_an_optimizer_change_nothing():
    optimizer = optimizers.SGD(0.1, momentum=0.9)
    with pytest.raises(ValueError, match=r"must be 2 arrays, .* because it is not built: call `build`"):
        optimizer.set_weights([np.int32(3), np.float32(0.25), np.zeros(2, np.float32)])
    optimizer.build([AutoCastVariable(np.zeros(2, np.float32))])
    with pytest.raises(ValueError, match="must be 3 arrays, one per variable of optimizer 'sgd'; received 1"):
        optimizer.set_weights([np.int32(3)])
    with pytest.raises(ValueError, match=r"has shape \(2,\); `weights` has \(3,\)"):
        optimizer.set_weights([np.int32(3), np.float32(0.25), np.zeros(3, np.float32)])
    assert int(optimizer.iterations) == 0


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("lr", "SGD has no argument `lr`: use `learning_rate`"),
        ("decay", "SGD has no argument `decay`: give a schedule .* as `learning_rate`"),
        ("clip_norm", r"SGD has no argument `clip_norm`; did you mean clipnorm\?"),
        ("momentun", r"SGD has no argument `momentun`; did you mean momentum\?"),
        ("other", "SGD has no argument `other`$"),
    ],
)
def test_an_argument_that_an_optimizer_does_not_have_is_named_with_what_to_use(argument, message):
    with pytest.raises(TypeError, match=message):
        optimizers.SGD(**{argument: 0.1})


def test_ftrl_refuses_a_rate_of_zero_by_which_it_divides():
    variable = AutoCastVariable(np.float32([1.0]))
    optimizer = optimizers.Ftrl(lambda: 0.0)
    with pytest.raises(ValueError, match=r"`learning_rate` of Ftrl must not be 0.* step 1"):
        optimizer.apply([np.float32([1.0])], [variable])
    assert (variable.numpy(), int(optimizer.iterations)) == ([1.0], 0)
