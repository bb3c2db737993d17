"""NumPy inside users' layers: code that runs in a call also trains, in plans, and agrees with float64."""

import re

import numpy as np
import pytest

import mp_core as mp

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 5)).astype(np.float32)
KERNEL = RNG.standard_normal((5, 5)).astype(np.float32)

# What a `call` writes -> the function of inputs and the weights.
CALLS = {
    "x @ w": lambda x, w: x @ w,
    "array @ x": lambda x, w: x @ w + (KERNEL @ x.T).T,
    "numpy.matmul": lambda x, w: np.matmul(np.matmul(x, w), KERNEL),
    "numpy.dot": lambda x, w: np.dot(x, w) + x.dot(KERNEL),
    "numpy.einsum": lambda x, w: np.einsum("ij,jk->ik", x, w),
    "operators": lambda x, w: +(x @ w) ** 3 - abs(x) ** 0.5 + 2.0 ** (x @ w) / 4,
    "logic": lambda x, w: np.where((x > 0) & ~(x > 1) | (x < -1), x @ w, 0.0) + np.where((x > 0) ^ (x < 1), 1.0, x),
    "logical functions": lambda x, w: np.where(np.logical_and(x > 0, np.logical_not(x > 1)), x @ w, x),
    "mean": lambda x, w: (x @ w).mean(axis=1, keepdims=True) + np.mean(x, 0) - x.mean(),
    "sum": lambda x, w: x @ w + x.sum(axis=-1, keepdims=True) * np.sum(x),
    "extremes": lambda x, w: (x @ w).max(1, keepdims=True) - np.min(x, axis=0) + np.amax(x),
    "spread": lambda x, w: (x @ w).std(axis=1, keepdims=True) + np.var(x, axis=0) + x.var(),
    "clip": lambda x, w: np.clip(x @ w, -1, 1) + x.clip(0) + np.clip(x, None, 0.5),
    "astype": lambda x, w: (x @ w).astype(np.float16).astype("float32") + (x > 0).astype(np.float32),
    "shapes": lambda x, w: (x @ w).flatten().reshape(-1, 5) + x.ravel().reshape(x.shape) + x.copy() + np.copy(x).T.T,
    "functions": lambda x, w: np.exp(x @ w / 8) + np.log1p(np.abs(x)) + np.tanh(x) + np.log(np.square(x) + 1.0),
    "whole numbers": lambda x, w: x @ w + np.floor(x) + np.ceil(x) + np.round(x) + x.round() + np.sign(x) + np.rint(x),
    "finite": lambda x, w: np.where(np.isfinite(x) & ~np.isnan(x) & ~np.isinf(x), x @ w, 0.0),
    "joined": lambda x, w: np.concatenate([x @ w, x], axis=1) + np.hstack([x, x]) + np.stack([x, x], 1).reshape(-1, 10),
    "below": lambda x, w: np.vstack([x @ w, x]) + np.concatenate((x, x)),
    "repeated": lambda x, w: np.repeat(x @ w, 2, axis=1) + np.tile(x, (1, 2)) + np.roll(x, 1, 1).repeat(2, 1),
    "taken": lambda x, w: np.take(x @ w, [0, 2], axis=1) + x.take(np.array([1, -1]), 1),
    "pad": lambda x, w: np.pad(x @ w, ((0, 0), (1, 2)), constant_values=0.5),
    "norm": lambda x, w: x / (np.linalg.norm(x @ w, axis=1, keepdims=True) + 1.0),
    "cumsum": lambda x, w: np.cumsum(x @ w, axis=1) + x.cumsum(0),
    "of weights": lambda x, w: x @ np.transpose(w) / np.linalg.norm(w, axis=0) + np.broadcast_to(w[0], x.shape),
    "of weights alone": lambda x, w: x * np.mean(w) + np.sum(w, axis=0) - np.tanh(np.clip(w, -0.5, 0.5))[0] / np.std(w),
    "any and all": lambda x, w: np.where((x > 0).any(1, keepdims=True), x @ w, np.where(np.all(x > -1), x, 1.0)),
    "like": lambda x, w: x @ w + np.zeros_like(x) + np.ones_like(x) * np.full_like(x, 2),
    "reciprocal": lambda x, w: np.reciprocal(np.fabs(x @ w) + 1.0) * np.positive(x),
}  # fmt: skip


class Written(mp.layers.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def build(self, shape):
        self.w = self.add_weight((shape[-1], 5), mp.initializers.Constant(KERNEL), name="w")

    def call(self, inputs):
        return self.function(inputs, self.w)


@pytest.mark.parametrize("name", CALLS)
def test_a_plan_computes_what_the_call_of_a_layer_computes(name):
    layer = Written(CALLS[name])
    expected = layer(X)
    plan = mp.compile(layer, np.zeros_like(X))
    found = plan(X)
    assert found.dtype == expected.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    with np.errstate(all="ignore"):
        exact = CALLS[name](X.astype(np.float64), KERNEL.astype(np.float64))
    tolerance = 5e-3 if name == "astype" else 2e-5
    np.testing.assert_allclose(found, exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", [name for name in CALLS if name != "numpy.einsum"])  # NumPy has none of bfloat16
def test_types_of_16_bits_are_those_that_numpy_gives(name, policy):
    """Between arrays, and with a variable; what NumPy computes in float64 is refused."""
    layer = Written(CALLS[name])
    layer.dtype_policy = policy
    for call in (layer, lambda x: CALLS[name](x, mp.cast(KERNEL, x.dtype))):
        x = mp.cast(X, policy.removeprefix("mixed_"))
        expected = call(x)
        try:
            found = mp.compile(call, x)(x)
        except (mp.plans.UnseenError, TypeError) as error:
            assert policy == "mixed_bfloat16" and re.search("float64|float32 for bfloat16", str(error))
        else:
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=0.1, atol=0.2)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_written_with_numpy_trains(name):
    """One step of SGD moves the weights by the gradient that differences in float64 give."""
    layer = Written(CALLS[name])
    model = mp.Sequential([mp.Input((5,)), layer])
    outputs = CALLS[name](X.astype(np.float64), KERNEL.astype(np.float64))
    target = np.zeros(outputs.shape, np.float32)
    model.compile(mp.optimizers.SGD(1.0), lambda t, p: mp.ops.sum(mp.ops.square(p)))
    if len(outputs) != len(X):  # not a row for each sample: a model refuses that, a plan does not
        gradient = mp.grad(lambda x: mp.ops.sum(mp.ops.square(layer(x))), [layer.w])(X)[0]
    else:
        model.train_on_batch(X, target)
        gradient = KERNEL - layer.w.numpy()
    direction = RNG.standard_normal(KERNEL.shape) * (1 if name != "astype" else 0)

    def value(step):
        with np.errstate(all="ignore"):
            return np.square(CALLS[name](X.astype(np.float64), KERNEL + step * direction)).sum()

    expected = (value(1e-6) - value(-1e-6)) / 2e-6
    if name != "astype":  # whose steps of float16 differences cannot see
        np.testing.assert_allclose((gradient * direction).sum(), expected, rtol=2e-3, atol=1e-3)
    assert np.isfinite(gradient).all() and np.any(gradient)


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_an_embedding_reads_floats_behind_an_input_in_fit_and_in_plans(kind):
    model = mp.Sequential([mp.Input((5,)), mp.layers.Embedding(9, 3), mp.layers.Flatten(), mp.layers.Dense(1)])
    ids = RNG.integers(0, 9, (4, 5))
    model.compile("sgd", "mse")
    before = model.get_weights()[0]
    model.fit(ids.astype(kind), np.ones((4, 1), np.float32), verbose=0)
    assert np.any(model.get_weights()[0] != before)
    for example in (np.float32, np.int32):
        plan = mp.compile(model, np.zeros((4, 5), example))
        np.testing.assert_array_equal(plan(ids.astype(kind)), model(ids))


def test_a_functional_model_with_several_inputs_reads_floats_in_plans():
    ids, numbers = mp.Input((5,)), mp.Input((2,))
    taken = mp.layers.Flatten()(mp.layers.Embedding(9, 3)(ids))
    model = mp.Model([ids, numbers], mp.layers.Concatenate()([taken, numbers]))
    given = [RNG.integers(0, 9, (4, 5)).astype(np.float32), np.ones((4, 2), np.float32)]
    plan = mp.compile(model, [np.zeros_like(each) for each in given])
    np.testing.assert_array_equal(plan(given), model(given))


def test_print_in_a_layer_shows_what_stands_for_an_array(capsys):
    """A line for debugging works when a layer is called, and does not end `fit` or a recording."""

    def shown(x, w):
        print(x, f"{x:}")
        return x @ w

    layer = Written(shown)
    layer(X)
    assert str(X) in capsys.readouterr().out
    mp.compile(layer, X)
    assert "<recorded array: shape=(4, 5), dtype=float32>" in capsys.readouterr().out
    model = mp.Sequential([mp.Input((5,)), Written(shown)])
    model.compile("sgd", "mse")
    model.fit(X, X, verbose=0)


@pytest.mark.parametrize("function", [np.exp, np.mean, np.where])
def test_functions_of_numpy_that_symbolic_arrays_lack_name_ours(function):
    arguments = (mp.Input((5,)),) * (3 if function is np.where else 1)
    with pytest.raises(TypeError, match=rf"numpy.{function.__name__} of <.*> is not an operation of mp_core: use"):
        function(*arguments)
    with pytest.raises(TypeError, match=r"numpy.cbrt of <.*> is not a layer: compute it in the `call` of a Layer"):
        np.cbrt(mp.Input((5,)))


def test_a_metric_in_a_recorded_loss_is_told_where_it_can_count():
    """Keras' guide updates a mean in `compute_loss`, which is recorded here."""

    class Tracking(mp.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.tracker = mp.layers.Dense(5), mp.metrics.Mean(name="loss")

        def call(self, inputs):
            return self.dense(inputs)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            loss = mp.ops.mean(mp.ops.square(y_pred - y))
            self.tracker.update_state(loss)
            return loss

    model = Tracking()
    model.compile("sgd")
    with pytest.raises(mp.plans.UnseenError, match=r"recorded step, such as compute_loss: override compute_metrics$"):
        model.fit(X, X, verbose=0)
