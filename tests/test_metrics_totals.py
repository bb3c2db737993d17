"""Sums and counts of metrics over many batches, compared with exact integers and with NumPy in float64."""

import numpy as np
import pytest

from mp_core import metrics
from mp_core.training.objectives import LossTracker

MANY = 2**24
"""From here on a float32 does not change if 1 is added."""

COUNTS = [
    ("TruePositives", {}, [1], [0.75]),
    ("TruePositives", {"thresholds": [0.25, 0.5]}, [1], [0.75]),
    ("FalsePositives", {}, [0], [0.75]),
    ("TrueNegatives", {}, [0], [0.25]),
    ("FalseNegatives", {}, [1], [0.25]),
    ("Precision", {}, [0], [0.75]),
    ("Recall", {}, [1], [0.25]),
    ("AUC", {}, [1], [0.75]),
    ("AUC", {"multi_label": True}, [[1, 0]], [[0.75, 0.25]]),
    ("SensitivityAtSpecificity", {"specificity": 0.5}, [1], [0.75]),
    ("F1Score", {}, [[1, 0]], [[0.75, 0.25]]),
    ("FBetaScore", {"average": "micro", "beta": 2.0}, [[1, 0]], [[0.75, 0.25]]),
    ("R2Score", {}, [[1.0]], [[2.0]]),
    ("MeanIoU", {"num_classes": 2}, [1], [1]),
    ("MeanIoU", {"num_classes": 2, "dtype": "float32"}, [1], [1]),
    ("BinaryAccuracy", {}, [1], [0.75]),
    ("CategoricalAccuracy", {}, [[1, 0]], [[0.75, 0.25]]),
    ("MeanSquaredError", {}, [[1.0]], [[2.0]]),
]
IDS = [f"{name}-{'-'.join(map(str, own.values()))}" for name, own, _, _ in COUNTS]


def filled(metric, y_true, y_pred, count):
    """Return the metric as if it had seen a batch so many times."""
    metric.update_state(y_true, y_pred)
    for variable in metric.variables:
        variable.assign(variable.numpy() * count)
    return metric


@pytest.mark.parametrize(("name", "own", "y_true", "y_pred"), COUNTS, ids=IDS)
def test_counts_do_not_stop_at_2_to_the_24(name, own, y_true, y_pred):
    metric = filled(getattr(metrics, name)(**own), y_true, y_pred, MANY)
    for _ in range(3):
        metric.update_state(y_true, y_pred)
    for variable in metric.variables:
        values = variable.numpy()
        assert np.isin(values, [0, MANY + 3]).all() and (values > MANY).any() == values.any()
    assert any(variable.numpy().any() for variable in metric.variables)


def test_the_value_of_a_count_is_exact():
    metric = filled(metrics.TruePositives(), [1], [0.75], MANY)
    assert metric([1], [0.75]) == MANY + 1


def test_counts_of_an_int32_metric_go_beyond_2_to_the_31():
    metric = filled(metrics.IoU(2, [1]), [1], [1], 2**31 - 1)
    metric.update_state([1, 1], [1, 0])
    np.testing.assert_array_equal(metric.total_cm.numpy(), [[0, 0], [1, 2**31]])


@pytest.mark.parametrize("make", [metrics.Mean, metrics.MeanAbsoluteError, LossTracker])
def test_means_of_many_values_are_right(make):
    metric = make()
    add = metric.update_state if make is not metrics.MeanAbsoluteError else lambda x: metric.update_state([[0.0]], x)
    if make is LossTracker:
        metric.state = [float(MANY), MANY]
    else:
        metric.total.assign(MANY)
        metric.count.assign(MANY)
    for _ in range(64):
        add([[3.0]] if make is metrics.MeanAbsoluteError else 3.0)
    assert metric.result() == np.float32((MANY + 3 * 64) / (MANY + 64))
    assert metric.result() > 1


def test_sums_of_fractions_are_those_of_float64(rng):
    values = rng.uniform(0, 1, (2000, 7)).astype(np.float32)
    weights = rng.uniform(0, 1, (2000, 7)).astype(np.float32)
    mean, total, right = metrics.Mean(), metrics.Sum(), metrics.TruePositives()
    for x, w in zip(values, weights, strict=True):
        mean.update_state(x, w)
        total.update_state(x, w)
        right.update_state(x > 0.5, x, w)
    wide_x, wide_w = values.astype(np.float64), weights.astype(np.float64)
    assert mean.result() == np.float32((wide_x * wide_w).sum() / wide_w.sum())
    assert total.result() == np.float32((wide_x * wide_w).sum())
    np.testing.assert_allclose(right.result(), wide_w[values > 0.5].sum(), rtol=1e-13)


@pytest.mark.parametrize("own", [{}, {"class_aggregation": None}, {"class_aggregation": "variance_weighted_average"}])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("far", [0.0, 1e4, 1e6])
@pytest.mark.parametrize("weighted", [False, True])
def test_scores_of_targets_far_from_0_are_right(far, dtype, own, weighted, rng):
    truth = (far + rng.standard_normal((300, 2)) * [1, 3]).astype(dtype)
    found = (truth + rng.standard_normal((300, 2)) * 0.3).astype(dtype)
    weight = rng.uniform(0, 2, 300).astype(dtype) if weighted else None
    metric = metrics.R2Score(**own)
    for part in np.split(np.arange(300), [1, 2, 90, 90]):
        metric.update_state(truth[part], found[part], None if weight is None else weight[part])
    x, y = truth.astype(np.float64), found.astype(np.float64)
    w = np.ones((300, 1)) if weight is None else weight.astype(np.float64)[:, np.newaxis]
    total = (w * (x - (w * x).sum(0) / w.sum()) ** 2).sum(0)
    scores = 1 - (w * (x - y) ** 2).sum(0) / total
    kinds = {"variance_weighted_average": (scores * total).sum() / total.sum(), None: scores}
    np.testing.assert_allclose(metric.result(), kinds.get(own.get("class_aggregation", 0), scores.mean()), rtol=1e-6)


def test_targets_of_float64_are_not_rounded_to_the_outputs():
    truth = np.array([[1e9], [1e9 + 1], [1e9 + 2]])
    assert metrics.R2Score()(truth, truth.astype(np.float32)) == 1 - 5 / 2  # float32 has 1e9 for all
    assert metrics.R2Score()(truth, truth) == 1


@pytest.mark.parametrize("name", ["pearson_correlation", "concordance_correlation"])
@pytest.mark.parametrize("far", [0.0, 1e3, 1e6])
def test_correlations_of_values_far_from_0_are_right(name, far, rng):
    x = (far + rng.standard_normal((4, 257))).astype(np.float32)
    y = (x + rng.standard_normal((4, 257)) * 0.5 + 0.5).astype(np.float32)
    a, b = x.astype(np.float64), y.astype(np.float64)
    cov = ((a - a.mean(-1, keepdims=True)) * (b - b.mean(-1, keepdims=True))).mean(-1)
    below = a.std(-1) * b.std(-1)
    if name == "concordance_correlation":
        below = (a.var(-1) + b.var(-1) + (a.mean(-1) - b.mean(-1)) ** 2) / 2
    np.testing.assert_allclose(getattr(metrics, name)(x, y), cov / below, rtol=3e-6)


def test_shares_of_the_rest_are_no_differences():
    weight = np.float64([1e16, 1.0])
    assert metrics.TrueNegatives()([0, 0], [0.75, 0.25], weight) == 1  # 1e16 + 1 - 1e16 is 0
