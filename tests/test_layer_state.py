"""Layers that assign to their own variables in `call`: counts, averages, codebooks."""

import layer_state_cases as cases
import numpy as np
import pytest
from conftest import run_with_keras

import mp_core as mp
from mp_core.plans import UnseenError

LAYERS = cases.layers_of(mp)


@pytest.fixture(scope="module")
def keras(tmp_path_factory):
    """The weights of Keras' models after each step."""
    path = tmp_path_factory.mktemp("states")
    run_with_keras("keras_layer_state.py", path, "jax")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", cases.CASES)
def test_states_and_weights_after_training_evaluation_and_calls_are_those_of_keras(keras, name):
    found = cases.run(cases.model_of(mp, name), name)
    np.testing.assert_allclose(found, np.load(keras / f"{name}.npy"), rtol=1e-5, atol=1e-5)


def _trained(model, name, steps, first=0):
    for number in range(first, first + steps):
        model.train_on_batch(*cases.batch(name, number))
    return [v.numpy().tobytes() for v in model.weights]


@pytest.mark.parametrize("name", ["Count", "Mean", "Codebook"])
def test_a_saved_model_goes_on_with_the_same_bits(tmp_path, name):
    model = cases.model_of(mp, name)
    _trained(model, name, 3)
    model.save(tmp_path / "model.keras")
    again = mp.load_model(tmp_path / "model.keras", custom_objects=LAYERS)
    want = _trained(model, name, 3, 3)
    assert _trained(again, name, 3, 3) == want
    assert want != _trained(cases.model_of(mp, name), name, 3)


@pytest.mark.parametrize("name", ["Count", "Mean", "Codebook"])
def test_a_resumed_run_goes_on_with_the_same_bits(tmp_path, name):
    model, again = cases.model_of(mp, name), cases.model_of(mp, name)
    _trained(model, name, 3)
    model.save_training_state(tmp_path / "state")
    again.load_training_state(tmp_path / "state")
    assert _trained(again, name, 3, 3) == _trained(model, name, 3, 3)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_steps_without_a_plan_have_the_bits_of_a_plan(policy):
    def weights(last):
        mean = LAYERS["Mean"](dtype=policy)
        drop = mp.layers.Dropout(0.5, seed=3, dtype=policy)
        layers = [mp.layers.Dense(4, dtype=policy), mean, drop, last, mp.layers.Dense(1, dtype=policy)]
        model = mp.Sequential([mp.Input((3,)), *layers])
        cases._set_weights(model)
        model.compile(mp.optimizers.SGD(0.05), "mse")
        _trained(model, "Mean", 4)
        return [v.numpy().tobytes() for v in model.weights if v.name != "count"], mean

    class Idle(mp.layers.Layer):
        def call(self, inputs):
            return inputs

    (counted, mean), (planned, _) = weights(LAYERS["Count"](dtype=policy)), weights(Idle(dtype=policy))
    assert counted == planned
    assert float(mean.steps) == 4


@pytest.mark.parametrize("name", ["Count", "Mean", "Codebook"])
def test_the_number_of_threads_changes_no_bit(name):
    found = []
    for threads in (1, 3):
        with mp.config.num_threads(threads):
            found.append(_trained(cases.model_of(mp, name), name, 3))
    assert found[0] == found[1]


class Steps(mp.layers.Layer):
    """Counts steps of training in float32."""

    def build(self, input_shape):
        self.steps = self.add_weight((), "zeros", trainable=False, name="steps")

    def call(self, inputs, training=False):
        if training:
            self.steps.assign_add(1.0)
        return inputs


def _model(layer):
    model = mp.Sequential([mp.Input((3,)), layer, mp.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_passes_count_a_batch_once_and_refuse_what_samples_decide():
    x = np.ones((2100, 3), np.float32)
    steps, count, mean = Steps(), LAYERS["Count"](), LAYERS["Mean"]()
    for layer in (steps, count):
        _model(layer).fit(x, x[:, :1], batch_size=2100, passes=2, verbose=0)
    assert float(steps.steps) == int(count.count.numpy()) == 1
    with pytest.raises(ValueError, match="passes"):
        _model(mean).fit(x, x[:, :1], batch_size=2100, passes=2, verbose=0)
    assert not any(np.any(v.numpy()) for v in mean.weights)


def test_a_step_that_fails_leaves_the_states_as_they_are():
    class Failing(mp.optimizers.SGD):
        def apply_gradients(self, grads_and_vars):
            raise RuntimeError("no")

    layer = LAYERS["Mean"]()
    model = mp.Sequential([mp.Input((3,)), layer, LAYERS["Count"](), mp.layers.Dense(1)])
    model.compile(Failing(), "mse")
    before = [v.numpy().tobytes() for v in model.weights]
    with pytest.raises(RuntimeError, match="no"):
        model.train_on_batch(*cases.batch("Mean", 0))
    assert [v.numpy().tobytes() for v in model.weights] == before


def test_shapes_summaries_and_masks_count_no_call():
    layer = LAYERS["Count"]()
    x = mp.Input((None, 3))
    model = mp.Model(x, mp.layers.Dense(2)(layer(mp.layers.Masking()(x))))
    model.summary(print_fn=lambda text: None)
    assert model.compute_mask(np.zeros((2, 4, 3), np.float32)).shape == (2, 4)
    assert layer.compute_output_shape((None, 4, 3)) == (None, 4, 3)
    assert int(layer.count.numpy()) == 0
    model(np.zeros((2, 4, 3), np.float32))
    assert int(layer.count.numpy()) == 1


def test_a_decision_by_a_state_follows_its_value():
    class Warm(Steps):
        def call(self, inputs, training=False):
            inputs = super().call(inputs, training)
            return inputs * 0.0 if float(self.steps) < 3 else inputs

    layer = Warm()
    model = _model(layer)
    kernel, moved = model.layers[-1].kernel, []
    for _ in range(4):
        before = kernel.numpy()
        model.train_on_batch(np.ones((4, 3), np.float32), np.full((4, 1), 9, np.float32))
        moved.append(bool(np.any(kernel.numpy() != before)))
    assert moved == [False, False, True, True]


def test_a_layer_may_assign_constants_inputs_and_other_variables():
    class Last(mp.layers.Layer):
        def build(self, input_shape):
            self.row, self.first, self.copy, self.flag = (
                self.add_weight(shape, "zeros", trainable=False, name=name)
                for shape, name in [((3,), "row"), ((3,), "first"), ((3,), "copy"), ((), "flag")]
            )

        def call(self, inputs, training=False):
            self.copy.assign(self.row)
            self.row.assign(inputs[-1])
            self.first.assign(inputs[:, ::-1][0])
            self.flag.assign(7.0)
            return inputs

    layer = Last()
    model = _model(layer)
    for number in range(3):
        x, y = cases.batch("Mean", number)
        model.train_on_batch(x, y)
        assert np.array_equal(layer.row.numpy(), x[-1])
        assert np.array_equal(layer.first.numpy(), x[0, ::-1])
        assert float(layer.flag) == 7
    assert np.array_equal(layer.copy.numpy(), cases.batch("Mean", 1)[0][-1])


def test_what_no_variable_holds_is_refused_and_changes_nothing():
    class Fraction(LAYERS["Count"]):
        def call(self, inputs):
            self.count.assign_add(mp.ops.mean(inputs))
            return inputs

    class Trained(mp.layers.Dense):
        def call(self, inputs):
            self.kernel.assign(self.kernel * 0.5)
            return super().call(inputs)

    x = np.full((4, 3), 0.25, np.float32)
    for layer, error in [(Fraction(), TypeError), (Trained(3), UnseenError)]:
        model = _model(layer)
        before = [v.numpy().tobytes() for v in model.weights]
        with pytest.raises(error, match=r"count|kernel"):
            model.train_on_batch(x, x[:, :1])
        assert [v.numpy().tobytes() for v in model.weights] == before


def test_value_and_grad_assigns_once_all_is_computed():
    w, count = mp.AutoCastVariable(np.float32([[2.0]])), mp.AutoCastVariable(0, trainable=False)
    total = mp.AutoCastVariable(np.float32(0), trainable=False)

    def loss(x, fails=False):
        count.assign_add(1)
        total.assign_add(mp.ops.sum(x))
        if fails:
            raise RuntimeError("late")
        return mp.matmul(x, w)

    found = mp.value_and_grad(loss, [w])
    for step in (1, 2, 3):
        value, (gradient,) = found(np.float32([[3.0]]))
        assert (float(value), gradient.item(), int(count), float(total)) == (6, 3, step, 3 * step)
    with pytest.raises(RuntimeError, match="late"):
        found(np.float32([[3.0]]), fails=True)
    assert (int(count), float(total)) == (3, 9)


def test_a_gradient_tape_assigns_at_once():
    layer = LAYERS["Mean"]()
    layer.build((None, 3))
    x = np.ones((4, 3), np.float32)
    with mp.tf_keras.GradientTape() as tape:
        loss = mp.ops.sum(layer(tape.watch(x), training=True))
    assert np.allclose(layer.mean.numpy(), 0.25)
    assert float(layer.steps) == 1
    assert np.isclose(float(loss), 12 * 0.75)
