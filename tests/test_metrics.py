"""Metrics, compared with Keras', over several batches, with weights and hostile values."""

import os

import numpy as np
import pytest

from mp_core import metrics
from mp_core.autocast import AutoCastVariable
from mp_core.dtypes import ALLOWED

os.environ.setdefault("KERAS_BACKEND", "torch")  # on JAX the values are the same, and each new shape takes a second
keras = pytest.importorskip("keras")

pytestmark = [  # of Keras
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:More independent predictors than datapoints:UserWarning"),
]

CASES = [
    ("MeanSquaredError", {}, "numbers"),
    ("RootMeanSquaredError", {}, "numbers"),
    ("MeanAbsoluteError", {}, "numbers"),
    ("MeanAbsolutePercentageError", {}, "numbers"),
    ("MeanSquaredLogarithmicError", {}, "numbers"),
    ("CosineSimilarity", {}, "numbers"),
    ("LogCoshError", {}, "numbers"),
    ("Poisson", {}, "numbers"),
    ("KLDivergence", {}, "shares"),
    ("Hinge", {}, "binary"),
    ("SquaredHinge", {}, "binary"),
    ("CategoricalHinge", {}, "one-hot"),
    ("BinaryCrossentropy", {}, "binary"),
    ("BinaryCrossentropy", {"from_logits": True, "label_smoothing": 0.1}, "binary"),
    ("CategoricalCrossentropy", {}, "one-hot"),
    ("SparseCategoricalCrossentropy", {"from_logits": True}, "classes"),
    ("Accuracy", {}, "equal"),
    ("BinaryAccuracy", {"threshold": 0.4}, "binary"),
    ("CategoricalAccuracy", {}, "one-hot"),
    ("SparseCategoricalAccuracy", {}, "classes"),
    ("TopKCategoricalAccuracy", {"k": 2}, "one-hot"),
    ("SparseTopKCategoricalAccuracy", {"k": 2}, "classes"),
    ("TruePositives", {}, "flat"),
    ("FalsePositives", {"thresholds": [0.2, 0.8]}, "flat"),
    ("TrueNegatives", {}, "flat"),
    ("FalseNegatives", {"thresholds": 0.3}, "flat"),
    ("Precision", {}, "flat"),
    ("Precision", {"thresholds": [0.8, 0.2, 0.5]}, "flat"),
    ("Precision", {"top_k": 2}, "one-hot"),
    ("Precision", {"class_id": 1}, "one-hot"),
    ("Recall", {}, "flat"),
    ("Recall", {"top_k": 2, "class_id": 0}, "one-hot"),
    ("AUC", {}, "flat"),
    ("AUC", {"num_thresholds": 13, "summation_method": "minoring"}, "flat"),
    ("AUC", {"curve": "PR"}, "flat"),
    ("AUC", {"curve": "PR", "summation_method": "majoring"}, "flat"),
    ("AUC", {"curve": "PRGAIN"}, "flat"),
    ("AUC", {"curve": "PRGAIN", "summation_method": "minoring"}, "flat"),
    ("AUC", {"curve": "PRGAIN", "multi_label": True, "num_labels": 4, "num_thresholds": 7}, "binary"),
    ("AUC", {"thresholds": [0.2, 0.35, 0.9]}, "flat"),
    ("AUC", {"multi_label": True, "num_labels": 4}, "binary"),
    ("AUC", {"multi_label": True, "label_weights": [1.0, 2.0, 0.0, 1.0]}, "binary"),
    ("F1Score", {}, "one-hot"),
    ("F1Score", {"average": "micro"}, "one-hot"),
    ("F1Score", {"average": "macro", "threshold": 0.3}, "binary"),
    ("FBetaScore", {"average": "weighted", "beta": 2.0}, "one-hot"),
    ("R2Score", {}, "numbers"),
    ("R2Score", {"class_aggregation": "variance_weighted_average", "num_regressors": 2}, "numbers"),
    ("R2Score", {"class_aggregation": None}, "numbers"),
    ("IoU", {"num_classes": 4, "target_class_ids": [0, 2], "dtype": "float32"}, "equal"),
    ("BinaryIoU", {"threshold": 0.4, "dtype": "float32"}, "flat"),
    ("MeanIoU", {"num_classes": 4, "ignore_class": 1, "dtype": "float32"}, "equal"),
    ("OneHotIoU", {"num_classes": 4, "target_class_ids": [1, 3], "dtype": "float32"}, "one-hot"),
    ("OneHotMeanIoU", {"num_classes": 4, "dtype": "float32"}, "one-hot"),
    ("SensitivityAtSpecificity", {"specificity": 0.6}, "flat"),
    ("SpecificityAtSensitivity", {"sensitivity": 0.4, "num_thresholds": 1}, "flat"),
    ("PrecisionAtRecall", {"recall": 0.7, "num_thresholds": 13}, "flat"),
    ("RecallAtPrecision", {"precision": 0.3, "class_id": 1}, "one-hot"),
    ("RecallAtPrecision", {"precision": 1.0}, "flat"),
    ("PearsonCorrelation", {}, "numbers"),
    ("ConcordanceCorrelation", {}, "numbers"),
]
IDS = [f"{name}-{kind}-{'-'.join(map(str, own.values()))}" for name, own, kind in CASES]


def batch(kind, rng, rows=9):
    logits = rng.standard_normal((rows, 4)).astype(np.float32)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    classes = rng.integers(0, 4, rows)
    ones = rng.integers(0, 2, (rows, 4)).astype(np.float32)
    numbers = rng.uniform(0.1, 3, (2, rows, 4)).astype(np.float32)
    return {
        "numbers": tuple(numbers),
        "shares": (numbers[0] / numbers[0].sum(-1, keepdims=True), shares),
        "binary": (ones, 1 / (1 + np.exp(-logits))),
        "flat": (ones[:, 0], 1 / (1 + np.exp(-logits[:, 0]))),
        "one-hot": (np.eye(4, dtype=np.float32)[classes], shares),
        "classes": (classes, shares),
        "equal": (classes, rng.integers(0, 4, rows)),
    }[kind]


def both(name, own):
    return getattr(metrics, name)(**own), getattr(keras.metrics, name)(**own)


def number(metric):
    return keras.ops.convert_to_numpy(metric.result())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "own", "kind"), CASES, ids=IDS)
def test_values_over_batches_are_those_of_keras(name, own, kind, weighted, rng):
    mine, other = both(name, own)
    for rows in (9, 9, 4):
        y_true, y_pred = batch(kind, rng, rows)
        weight = rng.uniform(0, 2, rows).astype(np.float32) if weighted else None
        mine.update_state(y_true, y_pred, weight)
        other.update_state(y_true, y_pred, sample_weight=weight)
        np.testing.assert_allclose(mine.result(), number(other), rtol=1e-4, atol=1e-6)
    assert all(variable.true_dtype.itemsize == 8 for variable in mine.variables)  # float64, or int64 in IoU
    assert [v.shape for v in mine.variables] == [v.shape for v in other.variables]
    mine.reset_state()
    other.reset_state()
    np.testing.assert_array_equal(mine.result(), number(other))


@pytest.mark.parametrize(("name", "own", "kind"), CASES, ids=IDS)
def test_configurations_are_those_of_keras_and_load_in_both(name, own, kind):
    mine, other = getattr(metrics, name)(**own, name="it"), getattr(keras.metrics, name)(**own, name="it")
    theirs = other.get_config()
    if theirs.get("label_weights") is not None:
        theirs["label_weights"] = keras.ops.convert_to_numpy(theirs["label_weights"]).tolist()
    assert theirs.items() <= mine.get_config().items()
    assert metrics.deserialize(metrics.serialize(mine)).get_config() == mine.get_config()
    assert keras.metrics.deserialize(metrics.serialize(mine)).name == "it"


@pytest.mark.parametrize("name", ["Mean", "Sum"])
@pytest.mark.parametrize("shape", [(), (5,), (5, 3)])
def test_means_and_sums_are_those_of_keras(name, shape, rng):
    mine, other = both(name, {})
    for _ in range(3):
        values, weight = rng.standard_normal((2, *shape)).astype(np.float32)
        for arguments in ((values,), (values, weight)):
            np.testing.assert_allclose(mine(*arguments), keras.ops.convert_to_numpy(other(*arguments)), rtol=1e-4)


def test_nothing_has_a_mean_of_0():
    assert metrics.Mean().result() == 0 and metrics.Precision().result() == 0


def test_the_area_of_a_perfect_and_of_a_reversed_order_is_1_and_0():
    y_true, y_pred = np.repeat([0, 1], 50), np.linspace(0, 1, 100)
    assert metrics.AUC()(y_true, y_pred) == pytest.approx(1, abs=1e-6)
    assert metrics.AUC()(1 - y_true, y_pred) == pytest.approx(0, abs=1e-6)


def test_counts_of_many_thresholds_are_those_of_a_loop(rng):
    thresholds = np.sort(rng.uniform(0, 1, 20)).astype(np.float32)
    y_true, y_pred = rng.integers(0, 2, 500), rng.choice(thresholds, 500)  # every output equals a threshold
    weight = rng.uniform(0, 1, 500).astype(np.float32)
    found = metrics.TruePositives(thresholds.tolist())(y_true, y_pred, weight)
    expected = [weight[(y_true == 1) & (y_pred > t)].sum(dtype=np.float64) for t in thresholds]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_targets_and_outputs_of_one_axis_and_of_two_agree(rng):
    y_true, y_pred = batch("flat", rng)
    for name in ("BinaryAccuracy", "MeanSquaredError", "AUC", "Precision"):
        flat = getattr(metrics, name)()(y_true, y_pred)
        assert (
            flat
            == getattr(metrics, name)()(y_true, y_pred[:, None])
            == getattr(metrics, name)()(y_true[:, None], y_pred)
        )


def test_wrong_top_k_targets_are_not_right():
    outputs = [[0.1, 0.2, 0.7], [0.1, np.nan, 0.7], [0.1, 0.2, 0.7]]
    np.testing.assert_array_equal(metrics.sparse_top_k_categorical_accuracy([3, 1, -1], outputs, k=3), [0, 0, 0])


def test_a_metric_of_ones_own():
    class Largest(metrics.Metric):
        def __init__(self, name=None, dtype=None):
            super().__init__(dtype, name)
            self.largest = self.add_variable(name="largest")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.largest.assign(max(float(self.largest), float(np.max(y_pred))))

        def result(self):
            return float(self.largest)

    metric = Largest()
    assert metric(None, [1.0, 3.0]) == 3.0 and metric(None, [2.0]) == 3.0
    metric.reset_state()
    assert metric.result() == 0.0
    assert metrics.deserialize(metrics.serialize(metric), {"Largest": Largest}).name == "largest"


def test_names_are_those_of_keras():
    from keras.src.metrics import ALL_OBJECTS_DICT

    from mp_core import losses

    needs = {}  # what raises in both: a class with arguments
    for name, kind in ALL_OBJECTS_DICT.items():
        if kind is keras.metrics.Metric:
            continue
        found = []
        for module in (metrics, keras.metrics):
            try:
                found.append(module.get(name))
            except TypeError:
                needs[name] = needs.get(name, 0) + 1
        assert [type(each).__name__ for each in found] in ([kind.__name__] * 2, []), name
        assert not found or found[1].name.startswith(found[0].name)  # Keras counts what has no name
    assert set(needs.values()) == {2} and "mean_io_u" in needs
    for name in ("mse", "MAE", "mean_squared_error", "kld", "log_cosh", "binary_accuracy", "cosine_similarity"):
        assert isinstance(metrics.get(name), metrics.Metric)
    assert metrics.get("huber") is losses.huber and metrics.get(None) is None
    assert isinstance(metrics.get(metrics.AUC), metrics.AUC)
    assert metrics.get(losses.mean_squared_error) is losses.mean_squared_error


@pytest.mark.parametrize("dtype", ["float16", ">f2", "bfloat16", "float8_e4m3fn"])
def test_a_metric_of_ones_own_sees_float32(dtype):
    seen = []

    class Own(metrics.Mean):
        def update_state(self, y_true, y_pred, sample_weight=None):
            seen.append((y_true, y_pred, sample_weight))
            super().update_state(np.mean(y_pred["a"][0]))

    narrow = np.full(300, 0.5).astype(ALLOWED.get(dtype, dtype))  # whose sum in bfloat16 stops at 128
    ids = np.arange(3, dtype=np.int8)
    metric = Own()
    assert metric(ids, {"a": [narrow]}, sample_weight=narrow) == 0.5
    metric.update_state(ids, y_pred={"a": (narrow, "text")})
    for y_true, y_pred, weight in seen:
        assert y_true is ids and y_pred["a"][0].dtype == np.float32
        assert weight is None or weight.dtype == np.float32


def test_metrics_in_metrics_are_part_of_them():
    class Inner(metrics.Metric):
        def __init__(self):
            super().__init__()
            self.count = self.add_variable(name="count")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.count.assign_add(1.0)

        def result(self):
            return float(self.count)

    class Outer(Inner):
        def __init__(self):
            super().__init__()
            self.one, self.more, self.again = Inner(), {"a": [Inner(), (Inner(),)]}, None
            self.again = self.one
            self.held = [AutoCastVariable(np.float32(1), name="held")]

        def update_state(self, y_true, y_pred, sample_weight=None):
            for metric in (self.one, self.more["a"][0], self.more["a"][1][0]):
                metric.update_state(y_true, y_pred)

    metric = Outer()
    assert metric([1], [1]) == 0 and len(metric.variables) == 5
    assert [float(v) for v in metric.variables] == [0, 1, 1, 1, 1]
    metric.reset_state()
    assert [float(v) for v in metric.variables] == [0] * 5


def test_a_layers_variable_that_a_metric_watches_stays_the_layers():
    from mp_core.layers import Dense

    layer = Dense(2, kernel_initializer="ones")
    layer.build((None, 2))
    metric = metrics.Sum()
    metric.kernel, metric.more = layer.kernel, [layer.bias]
    metric.reset_state()
    assert len(metric.variables) == 1 and layer.kernel.numpy().all()


@pytest.mark.parametrize("far", [-0.5, 1.5, np.inf])
@pytest.mark.parametrize("make", [metrics.AUC, lambda: metrics.AUC(curve="PR"), lambda: metrics.PrecisionAtRecall(0.5)])
def test_areas_and_shares_of_logits_are_refused(make, far):
    metric = make()
    with pytest.raises(ValueError, match=r"`y_pred` must be from 0 to 1; received values from .* to .*: .*(logits)"):
        metric.update_state([1, 0], [far, 0.5])
    assert not any(variable.numpy().any() for variable in metric.variables)
    metric.update_state([1, 0], [1.0000002, -2e-7])  # what rounding puts beyond
    assert metric.result() == pytest.approx(1, abs=1e-6)


def test_the_area_of_logits_is_that_of_their_order(rng):
    y_true = rng.integers(0, 2, 200)
    logits = rng.standard_normal(200) * 3 + y_true
    above = logits[y_true == 1][:, np.newaxis] - logits[y_true == 0]
    area = ((above > 0) + (above == 0) / 2).mean()  # Mann and Whitney
    mine, other = both("AUC", {"from_logits": True})
    assert mine(y_true, logits) == pytest.approx(area, abs=5e-3)
    assert mine.result() == pytest.approx(float(other(y_true, logits)), abs=1e-5)


def test_arguments_come_back_as_they_were_given():
    thresholds = [0.4, 0.9]
    assert metrics.Precision(thresholds).thresholds == thresholds == metrics.TruePositives(thresholds).thresholds
    assert metrics.TopKCategoricalAccuracy(k=3).k == 3 and metrics.BinaryAccuracy(threshold=0.4).threshold == 0.4
    area = metrics.AUC(None, thresholds=thresholds)
    assert area.num_thresholds == 4 and area.get_config()["thresholds"] == thresholds


@pytest.mark.parametrize("weight", [None, [0.5, 2.0]])
def test_the_mean_of_a_function_is_that_of_keras(weight):
    y_true, y_pred = np.float32([[0, 1], [1, 1]]), np.float32([[0.5, 1], [0, 3]])
    own = {"fn": lambda t, p, power: abs(t - p) ** power, "name": "it", "power": 2}
    mine, other = both("MeanMetricWrapper", own)
    expected = other(y_true, y_pred, sample_weight=None if weight is None else np.float32(weight))
    assert mine(y_true, y_pred, weight) == pytest.approx(float(expected))
    assert mine.name == "it" and mine._direction is None


@pytest.mark.parametrize("fn", ["mean_squared_error", "binary_accuracy", "dice"])
def test_the_mean_of_a_function_comes_back_from_its_configuration(fn):
    from mp_core import losses

    function = getattr(metrics, fn, None) or getattr(losses, fn)
    metric = metrics.MeanMetricWrapper(function, name="it")
    back = metrics.deserialize(metrics.serialize(metric))
    y_true, y_pred = np.float32([[0, 1], [1, 1]]), np.float32([[0.5, 1], [0, 0.75]])
    assert back.get_config() == metric.get_config() and back(y_true, y_pred) == metric(y_true, y_pred)
    assert back._direction == metric._direction == ("up" if fn == "binary_accuracy" else "down")
    config = {"class_name": "function", "config": fn, "registered_name": "function"}  # as Keras writes it
    assert (
        metrics.MeanMetricWrapper.from_config(metric.get_config() | {"fn": config}).get_config() == metric.get_config()
    )
    of_object = metrics.MeanMetricWrapper(losses.Huber(0.5))
    again = metrics.MeanMetricWrapper.from_config(of_object.get_config())
    assert of_object.name == "huber_loss" and again(y_true, y_pred) == of_object(y_true, y_pred)


@pytest.mark.parametrize("weight", [None, [0.5, 1.5, 2.0]])
def test_an_ignored_class_counts_as_in_keras(weight):
    y_true, y_pred = [0, 1, 2], np.float32([[0.8, 0.1, 0.1], [0.05, 0.95, 0], [0.1, 0.8, 0.1]])
    mine, other = both("SparseCategoricalCrossentropy", {"ignore_class": 0})
    expected = other(np.array(y_true), y_pred, sample_weight=None if weight is None else np.float32(weight))
    assert mine(y_true, y_pred, weight) == pytest.approx(float(expected), rel=1e-5)


def test_counts_may_begin_with_an_array():
    start = np.arange(4).reshape(2, 2)
    metric = metrics.MeanIoU(2)
    metric.total_cm = metric.add_variable((2, 2), initializer=start, dtype="int64", name="total_cm")
    metric.update_state(np.array([[0, 1], [1, 1]], np.uint8), np.array([[0, 1], [0, 1]], np.int16))
    np.testing.assert_array_equal(metric.total_cm.numpy() - start, [[1, 0], [1, 2]])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: metrics.AUC(1), ValueError, "`num_thresholds` must be an integer > 1"),
        (lambda: metrics.AUC(curve="roc"), ValueError, '`curve` must be "ROC", "PR" or "PRGAIN"'),
        (lambda: metrics.AUC(summation_method="x"), ValueError, "`summation_method` must be"),
        (lambda: metrics.AUC(num_labels=3), ValueError, "only when `multi_label`"),
        (lambda: metrics.AUC(thresholds=[2.0]), ValueError, "`thresholds` must be a number from 0 to 1"),
        (lambda: metrics.AUC()([1], [np.nan]), ValueError, "`y_pred` must hold numbers; received NaN"),
        (lambda: metrics.Precision()([1, 0], [0.5]), ValueError, "must have one shape"),
        (lambda: metrics.Precision(class_id=7)([[1, 0]], [[0.5, 0.5]]), ValueError, "`class_id` must be a class"),
        (lambda: metrics.Precision(top_k=0), ValueError, "`top_k` must be a positive integer"),
        (lambda: metrics.F1Score("mean"), ValueError, "`average` must be"),
        (lambda: metrics.F1Score()([1], [1]), ValueError, "must have one shape"),
        (lambda: metrics.FBetaScore(beta=1), ValueError, "`beta` must be a finite float above 0; received beta=1"),
        (lambda: metrics.FBetaScore(beta=np.inf), ValueError, "`beta` must be a finite float"),
        (lambda: metrics.FBetaScore(threshold=1), ValueError, "`threshold` must be a float above 0"),
        (lambda: metrics.F1Score(threshold=0.0), ValueError, "`threshold` must be a float above 0"),
        (lambda: metrics.F1Score(threshold=1.1), ValueError, "`threshold` must be a float above 0"),
        (lambda: metrics.Precision(class_id=0)([1], [0.5]), ValueError, r"must have shape \(samples, classes\)"),
        (lambda: metrics.Metric().add_variable((), "one"), ValueError, "`initializer` must be 'zeros'"),
        (lambda: metrics.get(metrics.MeanIoU), TypeError, "num_classes"),
        (lambda: metrics.MeanMetricWrapper("mse"), TypeError, "`fn` must be a function"),
        (lambda: metrics.MeanMetricWrapper.from_config({"fn": "nope"}), ValueError, "`fn` must be the name"),
        (lambda: metrics.FBetaScore(beta=0.0), ValueError, "`beta` must be a finite float above 0"),
        (lambda: metrics.Mean()([1.0, 2.0], [1.0, 2.0, 3.0]), ValueError, "`sample_weight` must broadcast"),
        (lambda: metrics.sparse_categorical_accuracy([1], np.ones((2, 3))), ValueError, "`y_true` must have the shape"),
        (lambda: metrics.Mean(name=3), TypeError, "`name` must be a string"),
        (lambda: metrics.Metric().result(), NotImplementedError, "must define `result`"),
        (lambda: metrics.RecallAtPrecision(2.0), ValueError, "`precision` must be a number from 0 to 1"),
        (lambda: metrics.PrecisionAtRecall(0.5, 0), ValueError, "`num_thresholds` must be a positive integer"),
        (lambda: metrics.SensitivityAtSpecificity(), TypeError, "specificity"),
        (lambda: metrics.pearson_correlation([[1, 2]], [[1, 2, 3]]), ValueError, "must have one shape"),
        (lambda: metrics.get("auc2"), ValueError, "Unknown metric class_name='auc2'"),
        (lambda: metrics.get(3), ValueError, "Could not interpret metric identifier: 3"),
        (lambda: metrics.F1Score()(np.eye(4), np.eye(4), np.ones((2, 2))), ValueError, r"the shape \(4,\) or \(4, 1\)"),
        (lambda: metrics.F1Score()(np.ones((4, 1)), np.ones((4, 1)), np.ones((1, 4))), ValueError, "`sample_weight`"),
        (
            lambda: metrics.MeanMetricWrapper(lambda t, p: None, "none")([1], [2]),
            TypeError,
            "the metric 'none' must return numbers; received None",
        ),
    ],
)
def test_wrong_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("name", ["Accuracy", "BinaryAccuracy", "CategoricalAccuracy", "TopKCategoricalAccuracy"])
@pytest.mark.parametrize(
    "shapes", [((1, 3), (2, 3)), ((2, 3), (1, 3)), ((4,), (4, 4)), ((4, 1), (4, 4)), ((4, 1), (1, 4))]
)
def test_targets_that_would_only_broadcast_to_outputs_are_refused(name, shapes):
    with pytest.raises(ValueError, match="`y_true` and `y_pred` must have one shape"):
        getattr(metrics, name)()(*map(np.ones, shapes))


BETTER = {"true_positives": "up", "true_negatives": "up", "false_positives": "down", "false_negatives": "down"}
"""The counts, of which Keras says nothing."""


@pytest.mark.parametrize(("name", "own", "kind"), CASES, ids=IDS)
def test_better_values_lie_where_keras_says(name, own, kind):
    mine, other = both(name, own)
    assert mine._direction == getattr(other, "_direction", BETTER.get(mine.name))


def test_nothing_is_known_of_means_and_sums_and_of_metrics_of_ones_own():
    class Own(metrics.Metric):
        pass

    assert [kind()._direction for kind in (metrics.Mean, metrics.Sum, Own)] == [None, None, None]


def test_a_users_metric_may_keep_arguments_of_its_own():
    class Shifted(metrics.Mean):
        def __init__(self, name="shifted", dtype=None, **kwargs):
            super().__init__(name, dtype)
            self._arguments = kwargs

        def get_config(self):
            return super().get_config() | self._arguments

    config = Shifted(by=2).get_config()
    assert config == {"name": "shifted", "dtype": "float32", "by": 2} == Shifted.from_config(config).get_config()
