"""Metrics that a model was compiled with, or that are attributes of it and its layers."""

import os

import numpy as np
import pytest

import mp_core as mp

os.environ.setdefault("KERAS_BACKEND", "torch")


def constant(y_true, y_pred):
    return mp.ops.zeros_like(y_pred)


@pytest.mark.parametrize(
    ("given", "direction"),
    [
        (mp.losses.mean_squared_error, "down"), (mp.losses.dice, "down"), (mp.losses.Huber(), "down"),
        (mp.losses.cosine_similarity, "down"), (mp.metrics.cosine_similarity, "up"),
        (mp.metrics.binary_accuracy, "up"), ("mse", "down"), ("acc", "up"), ("accuracy", "up"), ("R2Score", "up"),
        (mp.metrics.FalsePositives(), "down"), (mp.metrics.Mean(), None), (constant, None),
    ],
)  # fmt: skip
def test_compiled_metrics_know_where_better_values_lie(given, direction, rng):
    model = mp.Sequential([mp.Input((3,)), mp.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "mse", metrics=[given])
    x = rng.standard_normal((4, 3)).astype("float32")
    if direction is None and given is not constant:
        model.compile("sgd", "mse")
        model.own = given
    model.train_on_batch(x, x[:, :1] > 0)
    compiled = [metric for found in model.metrics for metric in getattr(found, "metrics", [found])]
    assert compiled[-1]._direction == direction


def rounding(policy="bfloat16"):
    """Return a model whose outputs are 0.62 for all of 600 samples, in 16 bits, and its data."""
    model = mp.Sequential([mp.Input((2,), dtype=policy), mp.layers.Dense(1, dtype=policy)])
    model.set_weights([np.full((2, 1), 0.31), np.zeros(1)])
    return model, np.ones((600, 2), np.float32), np.zeros((600, 1), np.float32)


class Mean(mp.metrics.Metric):
    """The mean of outputs, as one writes it in NumPy."""

    def __init__(self, name="own", dtype=None):
        super().__init__(dtype, name)
        self.value = self.add_variable(name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(np.mean(y_pred if sample_weight is None else y_pred * sample_weight))

    def result(self):
        return float(self.value)


@pytest.mark.parametrize("policy", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["function", "metric", "attribute", "in a layer"])
@pytest.mark.parametrize("column", ["metrics", "weighted_metrics"])
def test_metrics_of_ones_own_see_float32(policy, kind, column):
    def own(y_true, y_pred):
        return np.full(len(y_pred), np.mean(y_pred))

    model, x, y = rounding(policy)
    given = {"function": own, "metric": Mean()}.get(kind)
    if kind in ("attribute", "in a layer"):
        holder = model if kind == "attribute" else model.layers[0]
        holder.own_metric = Mean()

        class Counting(mp.Sequential):
            def compute_metrics(self, x, y, y_pred, sample_weight=None):
                holder.own_metric.update_state(y, y_pred)
                return self.get_metrics_result()

        model.__class__ = Counting
    model.compile(mp.optimizers.SGD(0.0), "mse", **{column: [] if given is None else [given]})
    outputs = model.predict(x, verbose=0)
    assert outputs.dtype.name == policy
    right = np.mean(outputs.astype(np.float64))
    weight = np.ones(600) if column == "weighted_metrics" and kind in ("function", "metric") else None
    found = {
        "fit": model.fit(x, y, 600, sample_weight=weight, verbose=0).history["own"][0],
        "evaluate": model.evaluate(x, y, 600, sample_weight=weight, verbose=0, return_dict=True)["own"],
        "train_on_batch": model.train_on_batch(x, y, weight, return_dict=True)["own"],
        "test_on_batch": model.test_on_batch(x, y, weight, return_dict=True)["own"],
    }
    assert found == pytest.approx(dict.fromkeys(found, right), rel=1e-5)


def test_metrics_of_nested_outputs_see_float32():
    seen = {}

    def first(y_true, y_pred):
        seen["first"] = y_true.dtype, y_pred.dtype
        return np.mean(y_pred)

    def second(y_true, y_pred):
        seen["second"] = y_true.dtype, y_pred.dtype
        return np.mean(y_pred)

    x = mp.Input((2,), dtype="bfloat16")
    parts = [mp.layers.Dense(1, dtype="bfloat16", name=name)(x) for name in "ab"]
    model = mp.Model(x, {"a": parts[0], "b": parts[1]})
    model.compile("sgd", "mse", metrics={"a": [first], "b": second})
    narrow = mp.cast(np.ones((4, 1)), "float16")
    model.train_on_batch(np.ones((4, 2)), {"a": narrow, "b": np.ones((4, 1), np.int32)})
    assert seen == {"first": (np.float32, np.float32), "second": (np.int32, np.float32)}


# ---- steps of one's own, as in Keras' guides


def step_of(base, value_and_grad):
    """Return a class with the `train_step` and the `test_step` of Keras' guide."""

    class Own(base):
        def train_step(self, data):
            x, y, weight = data if len(data) == 3 else (*data, None)
            loss, outputs = value_and_grad(self, x, y, weight)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, outputs, sample_weight=weight)
            return {metric.name: metric.result() for metric in self.metrics}

        def test_step(self, data):
            x, y = data
            outputs = self(x, training=False)
            loss = self.compute_loss(y=y, y_pred=outputs)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, outputs)
            return self.get_metrics_result()

    return Own


def of_mp_core(model, x, y, weight):
    def function(x, y, weight):
        outputs = model(x, training=True)
        return model.compute_loss(x, y, outputs, weight), outputs

    variables = model.trainable_variables
    (loss, outputs), gradients = mp.value_and_grad(function, variables, has_aux=True)(x, y, weight)
    model.optimizer.apply(gradients, variables)
    return loss, outputs


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loop_over_metrics_of_keras_guide_gives_the_logs_of_keras(weighted, rng):
    keras = pytest.importorskip("keras")
    x, y = rng.random((60, 3)).astype("float32"), rng.random((60, 1)).astype("float32")
    weight = rng.random((60, 1)).astype("float32") if weighted else None
    start = [rng.standard_normal((3, 1)), np.zeros(1)]
    logs = []
    for home, base in ((mp, step_of(mp.Sequential, of_mp_core)), (keras, keras.Sequential)):
        model = base([home.Input((3,)), home.layers.Dense(1)])
        model.set_weights(start)
        model.compile(home.optimizers.SGD(0.1), "mse", metrics=["mae", "mse"], weighted_metrics=["mse"])
        history = model.fit(x, y, 20, epochs=3, sample_weight=weight, shuffle=False, verbose=0).history
        logs.append([history, model.evaluate(x, y, 20, verbose=0, return_dict=True)])
        assert [metric.name for metric in model.metrics] == ["loss", "compile_metrics"]
    for mine, theirs in zip(*logs, strict=True):
        assert mine.keys() == theirs.keys() == {"loss", "mae", "mse", "weighted_mse"}
        for name, values in mine.items():
            np.testing.assert_allclose(values, theirs[name], rtol=1e-5)


def test_trackers_of_a_model_that_has_metrics_of_its_own_are_reset_each_epoch(rng):
    class Own(mp.Sequential):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.tracker, self.mae = mp.metrics.Mean(name="loss"), mp.metrics.MeanAbsoluteError(name="mae")

        def train_step(self, data):
            loss, outputs = of_mp_core(self, *data, None)
            self.tracker.update_state(loss)
            self.mae.update_state(data[1], outputs)
            return {"loss": self.tracker.result(), "mae": self.mae.result()}

        @property
        def metrics(self):
            return [self.tracker, self.mae]

    x, y = rng.random((60, 3)).astype("float32"), rng.random((60, 1)).astype("float32")
    own, plain = Own([mp.Input((3,)), mp.layers.Dense(1)]), mp.Sequential([mp.Input((3,)), mp.layers.Dense(1)])
    histories = []
    for model in (own, plain):
        model.set_weights([np.ones((3, 1)), np.zeros(1)])
        model.compile(mp.optimizers.SGD(0.1), "mse", metrics=None if model is own else ["mae"])
        histories.append(model.fit(x, y, 20, epochs=3, shuffle=False, verbose=0).history)
    assert histories[0].keys() == histories[1].keys()
    for name, values in histories[0].items():
        np.testing.assert_allclose(values, histories[1][name], rtol=1e-6)


def test_compute_metrics_of_ones_own_is_used_everywhere(rng):
    class Own(mp.Sequential):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return super().compute_metrics(x, y, y_pred, sample_weight) | {"most": np.abs(y - y_pred).max()}

    x, y = rng.random((20, 3)).astype("float32"), rng.random((20, 1)).astype("float32")
    model = Own([mp.Input((3,)), mp.layers.Dense(1)])
    model.compile(mp.optimizers.SGD(0.0), "mse", metrics=["mae"])
    most = float(np.abs(model.predict(x, verbose=0) - y).max())
    assert model.fit(x, y, verbose=0, validation_data=(x, y)).history["most"] == [most]
    assert list(model.history.history) == ["loss", "mae", "most", "val_loss", "val_mae", "val_most"]
    assert model.evaluate(x, y, verbose=0, return_dict=True)["most"] == most
    assert model.train_on_batch(x, y)[-1] == model.test_on_batch(x, y)[-1] == most


def test_the_metrics_of_layers_are_those_of_the_model_and_reset_with_them():
    class Layer(mp.layers.Layer):
        def __init__(self):
            super().__init__()
            self.metric = mp.metrics.Mean(name="of_layer")
            self.more = [{"a": mp.metrics.Sum(name="in_list")}, self.metric]

        def call(self, x):
            return x

    layer, inner = Layer(), mp.Sequential([mp.Input((1,)), mp.layers.Dense(1)])
    inner.own = mp.metrics.Mean(name="of_inner_model")
    model = mp.Sequential([mp.Input((1,)), layer, inner])
    assert [metric.name for metric in model.metrics] == ["of_layer", "in_list"]
    model.compile("sgd", "mse", metrics=["mae"])
    assert [metric.name for metric in model.metrics] == ["loss", "compile_metrics", "of_layer", "in_list"]
    layer.metric.update_state(3.0)
    assert model.get_metrics_result() == {"loss": 0.0, "of_layer": 3.0, "in_list": 0.0}
    model.reset_metrics()
    assert layer.metric.result() == 0


# ---- errors that name the fault


@pytest.mark.parametrize(
    ("given", "y", "error", "message"),
    [
        ({"loss": mp.metrics.MeanSquaredError()}, None, TypeError, "`loss` must be .*received the metric"),
        ({"loss": mp.metrics.AUC}, None, TypeError, "`loss` must be .*received the metric"),
        ({"loss": [mp.metrics.AUC()]}, None, TypeError, "`loss` must be .*received the metric"),
        ({"metrics": ["maee"]}, None, ValueError, "Unknown metric class_name='maee'"),
        ({"metrics": [{"class_name": "Own", "config": {}}]}, None, ValueError, "Unknown metric class_name='Own'"),
        ({"metrics": [None]}, [[0.0]] * 4, ValueError, "`metrics` must be names, functions or metrics"),
        ({"metrics": ["sparse_categorical_crossentropy"]}, [0, 1, 2, 3], IndexError,
         r"metric 'sparse_categorical_crossentropy' does not fit output .*shapes are targets \(4,\)"),
        ({"metrics": ["AUC"]}, [[0.0]] * 4, ValueError, "metric 'AUC' does not fit .*must have one shape"),
    ],
)  # fmt: skip
def test_errors_name_the_metric_and_the_fault(given, y, error, message):
    model = mp.Sequential([mp.Input((2,)), mp.layers.Dense(3, "softmax")])
    with pytest.raises(error, match=message):
        model.compile("sgd", **given)
        model.test_on_batch(np.ones((4, 2)), np.array(y))


def test_an_output_with_a_metric_needs_targets():
    x = mp.Input((2,))
    model = mp.Model(x, [mp.layers.Dense(1, name="a")(x), mp.layers.Dense(1, name="b")(x)])
    model.compile("sgd", {"a": "mse"}, metrics={"b": ["mae"]})
    with pytest.raises(ValueError, match="the metric 'mae' of output 'b' needs targets: `y` has none"):
        model.test_on_batch(np.ones((4, 2)), {"a": np.ones((4, 1))})


@pytest.mark.parametrize("name", ["accuracy", "Accuracy", "ACC"])
def test_accuracy_in_any_case_is_that_of_the_targets(name, rng):
    model = mp.Sequential([mp.Input((2,)), mp.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=[name])
    x, y = rng.standard_normal((20, 2)), rng.integers(0, 2, (20, 1))
    right = float(((model.predict(x, verbose=0) > 0.5) == y).mean())
    assert model.evaluate(x, y, verbose=0, return_dict=True)[name] == pytest.approx(right)


def test_totals_beyond_float32_survive_an_interruption(tmp_path, rng):
    def compiled():
        model = mp.Sequential([mp.Input((2,)), mp.layers.Dense(1, "sigmoid")])
        model.set_weights([np.ones((2, 1)), np.zeros(1)])
        model.compile("sgd", "mse", metrics=["AUC", "R2Score", mp.metrics.TruePositives(0.0)])
        model.own, model.layers[0].own = mp.metrics.Mean(name="own"), [mp.metrics.Sum(name="of_layer")]
        return model

    x, y = rng.standard_normal((8, 2)), rng.integers(0, 2, (8, 1)).astype(np.float32)
    first, second = compiled(), compiled()
    first.train_on_batch(x, y)
    first.own.update_state(3.0)
    first.layers[0].own[0].update_state(5.0)
    for variable in (v for metric in first.metrics for v in metric.variables):
        variable.assign(variable.numpy() * (2**40 + 1))
    second.train_on_batch(x, y)
    first.save_training_state(tmp_path / "state")
    second.load_training_state(tmp_path / "state")
    pairs = zip(*((v.numpy() for m in model.metrics for v in m.variables) for model in (first, second)), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    logs = second.get_metrics_result()
    assert logs["true_positives"] == (2**40 + 1) * y.sum()
    assert logs["own"] == 3 and logs["of_layer"] == np.float32(5 * (2**40 + 1))


def test_a_metric_that_counted_before_begins_anew_with_the_first_batch(rng):
    x, y = rng.standard_normal((8, 3)).astype(np.float32), rng.standard_normal((8, 1)).astype(np.float32)
    model, metric = mp.Sequential([mp.Input((3,)), mp.layers.Dense(1)]), mp.metrics.MeanAbsoluteError()
    for _ in range(2):
        model.compile(mp.optimizers.SGD(0.5), "mse", metrics=[metric])
        exact = np.abs(model.predict(x).astype(np.float64) - y).mean()
        np.testing.assert_allclose(model.evaluate(x, y, verbose=0)[1], exact, rtol=1e-5)
        model.fit(x, y, verbose=0)
