"""Metrics beside Keras', over several batches, with weights and hostile values."""

import os

import numpy as np
import pytest

from mp_core import metrics

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
    assert all(variable.true_dtype == np.float32 for variable in mine.variables)
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


def test_short_names_are_found():
    from mp_core import losses

    assert metrics.get("mse") is losses.mean_squared_error and metrics.get("binary_accuracy") is metrics.binary_accuracy
    assert isinstance(metrics.get("AUC"), metrics.AUC) and metrics.get(None) is None


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: metrics.AUC(1), ValueError, "`num_thresholds` must be an integer > 1"),
        (lambda: metrics.AUC(curve="roc"), ValueError, '`curve` must be "ROC" or "PR"'),
        (lambda: metrics.AUC(summation_method="x"), ValueError, "`summation_method` must be"),
        (lambda: metrics.AUC(num_labels=3), ValueError, "only when `multi_label`"),
        (lambda: metrics.AUC(thresholds=[2.0]), ValueError, "`thresholds` must be a number from 0 to 1"),
        (lambda: metrics.AUC()([1], [np.nan]), ValueError, "`y_pred` must hold numbers; received NaN"),
        (lambda: metrics.Precision()([1, 0], [0.5]), ValueError, "must have one shape"),
        (lambda: metrics.Precision(class_id=7)([[1, 0]], [[0.5, 0.5]]), ValueError, "`class_id` must be a class"),
        (lambda: metrics.Precision(top_k=0), ValueError, "`top_k` must be a positive integer"),
        (lambda: metrics.F1Score("mean"), ValueError, "`average` must be"),
        (lambda: metrics.F1Score()([1], [1]), ValueError, "must have one shape"),
        (lambda: metrics.FBetaScore(beta=0.0), ValueError, "`beta` must be a finite number above 0"),
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
    ],
)
def test_wrong_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
