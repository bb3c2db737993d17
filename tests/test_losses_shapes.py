"""Shapes in losses: targets and outputs, and weights and masks with the values of samples."""

import inspect
import os

import numpy as np
import pytest

import mp_core as mp
from mp_core import losses, metrics

os.environ.setdefault("KERAS_BACKEND", "torch")  # on JAX the values are the same, and each new shape takes a second
keras = pytest.importorskip("keras")

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras


def squares(y, p):
    """Return the values of the mean squared error in float64."""
    return ((y.astype(np.float64) - p) ** 2).mean(-1)


def expected(values, weight, reduction):
    """Return the loss of values by weights of samples, the divisor of Keras' last reduction being the sum of these."""
    total = (values * weight.reshape(-1, *[1] * (values.ndim - 1))).sum()
    return total / {"sum": 1, "sum_over_batch_size": values.size, "mean_with_sample_weight": weight.sum()}[reduction]


# ---- weights


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
@pytest.mark.parametrize("shape", [(4, 4, 3), (5, 3, 2), (4, 4, 4, 3), (4, 4, 5, 3), (4, 1, 3)])
def test_a_weight_of_a_sample_counts_for_all_its_values(shape, reduction, rng):
    """Keras aligns (n,) with the last axis: with n == T each step has a weight, else it is an error."""
    y, p = rng.standard_normal((2, *shape)).astype(np.float32)
    weight = rng.uniform(0.1, 2, shape[0]).astype(np.float32)
    exact = expected(squares(y, p), weight, reduction)
    loss = losses.MeanSquaredError(reduction)
    for given in (weight, weight[:, None], weight.reshape(-1, *[1] * (len(shape) - 2))):
        np.testing.assert_allclose(loss(y, p, given), exact, rtol=1e-5)
    other = keras.losses.MeanSquaredError(reduction)(y, p, weight.reshape(-1, *[1] * (len(shape) - 2)))
    np.testing.assert_allclose(exact, float(other), rtol=1e-5)


def identity(loss, shape, **kwargs):
    """Return a model that returns its inputs, compiled with a loss."""
    model = mp.Sequential([mp.Input(shape), mp.layers.Dense(shape[-1], use_bias=False)])
    model.set_weights([np.eye(shape[-1])])
    model.compile(mp.optimizers.SGD(0.0), loss, **kwargs)
    return model


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
def test_training_evaluating_and_passes_have_the_same_weights(reduction, rng):
    x, y = rng.standard_normal((2, 4, 4, 3)).astype(np.float32)
    weight = rng.uniform(0.1, 2, 4).astype(np.float32)
    exact = expected(squares(y, x), weight, reduction)
    metric = (squares(y, x).mean(-1) * weight).sum() / weight.sum()
    model = identity(losses.MeanSquaredError(reduction), (4, 3), weighted_metrics=["mse"])
    for _ in range(2):  # the second call runs a plan
        np.testing.assert_allclose(model.test_on_batch(x, y, weight), [exact, metric], rtol=1e-5)
        np.testing.assert_allclose(model.train_on_batch(x, y, weight), [exact, metric], rtol=1e-5)
    np.testing.assert_allclose(model.train_on_batch(x, y, weight, passes=2), [exact, metric], rtol=1e-5)
    logs = model.fit(x, y, sample_weight=weight, verbose=0, batch_size=4).history
    np.testing.assert_allclose([logs["loss"][0], logs["mse"][0]], [exact, metric], rtol=1e-5)


def test_weights_of_classes_count_for_all_values_of_a_sample(rng):
    x, classes = rng.standard_normal((3, 3)).astype(np.float32), np.array([0, 1, 1])
    y = np.eye(3, dtype=np.float32)[classes]
    model = identity(lambda y_true, y_pred: mp.ops.square(y_true - y_pred), (3,))  # n values a sample, n samples
    exact = ((y - x.astype(np.float64)) ** 2 * np.array([10, 0.5, 0.5])[:, None]).mean()
    for _ in range(2):
        assert model.train_on_batch(x, y, class_weight={0: 10.0, 1: 0.5}) == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("shape", [(6,), (4, 5), (4, 4, 2), (4, 4, 1, 1), (3,)])
def test_weights_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"`sample_weight` must have the shape of the values, \(4, 4\), or"):
        losses.MeanSquaredError()(np.zeros((4, 4, 3)), np.zeros((4, 4, 3)), np.ones(shape))


def test_a_loss_of_all_samples_has_no_weights_of_samples():
    with pytest.raises(ValueError, match=r"`sample_weight` must be one number, as the loss of all samples together"):
        losses.Dice()(np.ones((2, 3)), np.ones((2, 3)), np.ones(2))
    assert losses.Dice()(np.ones((2, 3)), np.zeros((2, 3)), 0.5) == 0.5


# ---- targets

NAMES = [name for name in losses.registry.FUNCTIONS if name == losses.registry.FUNCTIONS[name].__name__]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("of_targets", "of_outputs"), [((2, 3), (1, 3)), ((1, 3), (2, 3)), ((3,), (2, 3)), ((2, 3), (2,)), ((2, 3), ())]
)
def test_shapes_that_would_broadcast_are_refused(name, of_targets, of_outputs):
    own = {"q": 0.5} if name == "categorical_generalized_cross_entropy" else {}
    function = losses.registry.FUNCTIONS[name]
    kind = next((kind for kind in losses.registry.CLASSES.values() if kind.function is function), None)
    for loss in [lambda y, p: function(y, p, **own)] + ([] if kind is None else [kind(**own)]):
        with pytest.raises(ValueError, match=r"shape|axes|label per embedding"):
            loss(np.ones(of_targets), np.full(of_outputs, 0.5))


@pytest.mark.parametrize("name", ["mean_squared_error", "hinge", "poisson", "binary_crossentropy", "cosine_similarity"])
def test_a_column_of_targets_is_not_compared_with_each_output(name):
    with pytest.raises(ValueError, match=r"received \(2, 1\) and \(2, 3\)"):
        losses.get(name)(np.ones((2, 1)), np.full((2, 3), 0.5))


@pytest.mark.parametrize("name", ["mean_squared_error", "root"])
def test_means_of_losses_refuse_them_too(name):
    metric = metrics.RootMeanSquaredError() if name == "root" else metrics.MeanSquaredError()
    with pytest.raises(ValueError, match=r"received \(1, 3\) and \(2, 3\)"):
        metric(np.ones((1, 3)), np.ones((2, 3)))


def test_a_generalized_cross_entropy_needs_a_class_for_each_sample():
    with pytest.raises(ValueError, match=r"must have the shape .*\(2,\)"):
        losses.categorical_generalized_cross_entropy([1], np.full((2, 3), 0.3), 0.5)


# ---- what counts


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "none", "mean_with_sample_weight"])
@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 2, 3], [0, 1, 2, 3, 4, 5], [[1], [1], [1], [1], [1], [1]]])
def test_embeddings_without_a_pair_do_not_count_in_a_circle_loss(labels, reduction, rng):
    vectors = rng.standard_normal((6, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for weight in (None, rng.uniform(0.1, 2, 6).astype(np.float32)):
        mine, theirs = (
            module.Circle(gamma=80.0, margin=0.4, reduction=reduction)(np.array(labels), vectors, weight)
            for module in (losses, keras.losses)
        )
        np.testing.assert_allclose(mine, theirs, rtol=1e-4)


def test_training_by_a_circle_loss_counts_the_same(rng):
    vectors = rng.standard_normal((6, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = np.array([0, 0, 1, 1, 2, 3])
    model = identity(losses.Circle(), (4,))
    theirs = float(keras.losses.Circle()(labels, vectors))
    assert model.train_on_batch(vectors, labels) == pytest.approx(theirs, rel=1e-4)


def masked(library, loss, x):
    """Return a model that returns its inputs, with a mask of the rows that are not zero."""
    inputs = library.Input(x.shape[1:])
    model = library.Model(inputs, library.layers.Dense(4, use_bias=False)(library.layers.Masking()(inputs)))
    model.set_weights([np.eye(4)])
    model.compile(library.optimizers.SGD(0.0), loss)
    return model


@pytest.fixture
def rows(rng):
    """Inputs of three samples, the second of which has no row that counts."""
    x = rng.standard_normal((3, 5, 4)).astype(np.float32)
    x[0, 3:] = x[1] = 0
    return x


@pytest.mark.parametrize("name", ["Dice", "Tversky"])
@pytest.mark.parametrize("axis", [None, -1, 2])
def test_masks_beside_sums_over_sets_are_those_of_keras(name, axis, rows, rng):
    y = rng.integers(0, 2, rows.shape).astype(np.float32)
    mine, theirs = (masked(library, getattr(library.losses, name)(axis=axis), rows) for library in (mp, keras))
    expected = theirs.evaluate(rows, y, verbose=0)
    assert mine.evaluate(rows, y, verbose=0) == pytest.approx(expected, rel=1e-5)
    assert mine.train_on_batch(rows, y) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("axis", [1, (1, 2), 0])
def test_a_sum_over_a_set_counts_if_one_of_its_elements_does(axis, rows, rng):
    """In Keras it is an error, or by chance of lengths a mask of another axis."""
    y = rng.integers(0, 2, rows.shape).astype(np.float32)
    kept = np.broadcast_to((rows != 0).any(-1, keepdims=True), rows.shape).any(axis)
    model = masked(mp, losses.Dice(axis=axis), rows)
    expected = losses.dice(y, rows, axis)[kept].mean(dtype=np.float64)
    assert model.evaluate(rows, y, verbose=0) == pytest.approx(expected, rel=1e-5)
    assert model.train_on_batch(rows, y) == pytest.approx(expected, rel=1e-5)


def test_a_sequence_counts_in_a_ctc_loss_if_one_of_its_times_does(rows):
    labels = np.array([[1, 2], [1, 0], [3, 0]])
    expected = losses.ctc(labels, rows)[[0, 2]].mean(dtype=np.float64)
    model = masked(mp, "ctc", rows)
    assert model.evaluate(rows, labels, verbose=0) == pytest.approx(expected, rel=1e-5)
    assert model.train_on_batch(rows, labels) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_an_ignored_class_and_a_mask_both_leave_out(column, weighted, rows, rng):
    y = rng.integers(0, 4, (3, 5, 1) if column else (3, 5))
    given = {"sample_weight": rng.uniform(0, 1, (3, 5)).astype(np.float32)} if weighted else {}
    loss = {"from_logits": True, "ignore_class": 1}
    mine, theirs = (
        masked(library, library.losses.SparseCategoricalCrossentropy(**loss), rows) for library in (mp, keras)
    )
    expected = theirs.evaluate(rows, y, verbose=0, **given)
    assert mine.evaluate(rows, y, verbose=0, **given) == pytest.approx(expected, rel=1e-5)
    assert mine.train_on_batch(rows, y, **given) == pytest.approx(expected, rel=1e-5)


def test_classes_may_be_along_any_axis(rows, rng):
    y = rng.integers(0, 4, (3, 5))
    for own in ({}, {"ignore_class": 1}):
        loss = losses.SparseCategoricalCrossentropy(from_logits=True, axis=1, **own)
        other = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **own)
        np.testing.assert_allclose(loss(y, rows.swapaxes(1, 2)), float(other(y, rows)), rtol=1e-5)


@pytest.mark.parametrize("name", ["Dice", "Tversky", "SparseCategoricalCrossentropy"])
def test_arguments_have_the_order_of_keras(name):
    mine, theirs = (inspect.signature(getattr(module, name)).parameters for module in (losses, keras.losses))
    assert list(mine) == list(theirs)


def test_a_mean_by_weights_that_are_all_zero_divides_by_nothing():
    loss = losses.MeanSquaredError("mean_with_sample_weight")
    assert loss([[1.0], [2.0]], [[3.0], [4.0]], [0.0, 0.0]) == 0  # and does not warn
