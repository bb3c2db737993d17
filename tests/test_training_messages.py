"""Errors of compile, fit and evaluate for a wrong loss, target, weight or metric: they name the argument."""

import numpy as np
import pytest

import mp_core as mp
from mp_core import losses, metrics

X = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
Y, CLASSES = X[:, :1].copy(), np.arange(8) % 3
IDS = np.array([[1, 2, 0, 0, 0], [3, 4, 5, 6, 0]])


def single(loss="mse", units=1, **given):
    """Return a model of one output."""
    model = mp.Sequential([mp.Input((3,)), mp.layers.Dense(units, name="dense")])
    model.compile("sgd", loss, **given)
    return model


def double(**given):
    """Return a model of two outputs, "a" and "b"."""
    inputs = mp.Input((3,))
    model = mp.Model(inputs, [mp.layers.Dense(1, name="a")(inputs), mp.layers.Dense(1, name="b")(inputs)])
    model.compile("sgd", **{"loss": "mse"} | given)
    return model


def masked(**given):
    """Return a model whose outputs have the mask of its inputs."""
    model = mp.Sequential([mp.Input((5,), dtype="int32"), mp.layers.Embedding(7, 4, mask_zero=True)])
    model.compile("sgd", "mse", **given)
    return model


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: single(metrics.AUC()), "`loss` must be a Loss, .*; received the metric <AUC name=auc>"),
        (lambda: single(mp.layers.Dense(1)), "`loss` must be a Loss, a function or a name; received the layer <Dense"),
        (lambda: single(mp.optimizers.SGD()), "Could not interpret loss identifier"),
        (lambda: single("AUC"), "Unknown loss class_name='AUC'"),
        (lambda: single(["mse", "mae"]).fit(X, Y, verbose=0), "`loss` must be for 1 outputs"),
        (lambda: double(loss=[["mse", "mae"], "mse"]).fit(X, [Y, Y], verbose=0), "`loss` must be one loss for"),
        (lambda: single(losses.MeanSquaredError("none")).fit(X, Y, verbose=0),
         r"must be one number for a batch; received shape \(8,\): its `reduction` is 'none'"),
        (lambda: single(losses.MeanSquaredError("none")).evaluate(X, Y, verbose=0), "its `reduction` is 'none'"),
        (lambda: single(loss_weights="a"), "`loss_weights` must be a number"),
        (lambda: single(loss_weights=float("nan")), "`loss_weights` must be a number"),
        (lambda: single(metrics="mae"), "`metrics` must be a list, tuple or dict of metrics; received 'mae'"),
        (lambda: single(weighted_metrics=metrics.AUC()), "`weighted_metrics` must be a list, tuple or dict"),
        (lambda: single(metrics=[3]), "Could not interpret metric identifier: 3"),
        (lambda: single(metrics=[None]).evaluate(X, Y, verbose=0), "`metrics` must be .*received None for .output"),
        (lambda: single().fit(X, None, verbose=0), "the loss .* of output .* needs targets: `y` has none"),
        (lambda: single().fit(X, [None], verbose=0), "needs targets: `y` has none"),
        (lambda: double().fit(X, [Y, None], verbose=0), "the loss 'mean_squared_error' of output 'b' needs targets"),
        (lambda: double().fit(X, {"a": Y}, verbose=0), "the loss 'mean_squared_error' of output 'b' needs targets"),
        (lambda: single("sparse_categorical_crossentropy", 3).evaluate(X, CLASSES + 1, verbose=0),
         "`y_true` must be classes from 0 to 2; received 3"),
        (lambda: single("sparse_categorical_crossentropy", 3).evaluate(X, CLASSES - 1, verbose=0), "received -1"),
        (lambda: single().fit(X, Y, initial_epoch=-1, verbose=0), "`initial_epoch` must be an epoch from 0 on"),
        (lambda: single().fit(X, np.eye(8)[:, :3] + 1, class_weight={1: 2.0}, verbose=0), "rows .* must be one-hot"),
        (lambda: single().fit(X, np.int32([[2, 0, 1]] * 8), class_weight={0: 9.0}, verbose=0),
         r"one class for each sample: .* received shape \(8, 3\) with other sums"),
        (lambda: mp.callbacks.LearningRateScheduler(0.1), "`schedule` must be a function of the epoch number"),
        (lambda: single().fit(X, Y, verbose=0, callbacks=[mp.callbacks.ModelCheckpoint("{}.keras")]),
         "`filepath` must have names in braces"),
        (lambda: single().fit(X, Y, validation_data=3.0, verbose=0), "in `validation_data` `x` must have an axis"),
        (lambda: single().fit(X, Y, validation_data=(X, Y[:4]), verbose=0), "in `validation_data` arrays must"),
        (lambda: losses.MeanSquaredError()(np.ones((2, 3)), np.ones((2, 3)), mask=np.ones(5)), "`mask` must have"),
        (lambda: losses.MeanSquaredError()(np.ones((2, 3)), np.ones((2, 3)), mask=np.ones((2, 4))),
         r"`mask` must have the shape of the values, \(2, 3\)"),
        (lambda: masked(metrics=[lambda t, p: np.abs(t - p).mean()]).evaluate(IDS, np.ones((2, 5, 4)), verbose=0),
         r"the metric '<lambda>' does not fit output .*: shapes are targets \(2, 5, 4\), .* the mask \(2, 5\)"),
    ],
)  # fmt: skip
def test_the_argument_at_fault_is_named(call, message):
    with pytest.raises((IndexError, TypeError, ValueError), match=message):
        call()


@pytest.mark.parametrize("name", ["categorical_crossentropy", "CategoricalCrossentropy"])
def test_a_categorical_cross_entropy_of_one_class_warns(name):
    with pytest.warns(UserWarning, match="a categorical cross-entropy of one class is the same for all"):
        assert single(name).evaluate(X, np.ones((8, 1)), verbose=0) < 1e-6


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 5), (2, 5, 1)])
def test_weights_of_any_rank_meet_a_mask_from_the_axis_of_samples_on(shape):
    y = np.random.default_rng(1).standard_normal((2, 5, 4)).astype(np.float32)
    weights = np.random.default_rng(2).uniform(0.1, 2, shape).astype(np.float32)
    model = masked(weighted_metrics=["mae"])
    model.compile("sgd", losses.MeanAbsoluteError("sum"), weighted_metrics=["mae"])
    errors = np.abs(y - model.predict(IDS, verbose=0).astype(np.float64)).mean(-1)
    kept = (IDS != 0) * np.broadcast_to(weights.reshape(2, -1), (2, 5))
    expected = [(errors * kept).sum(), (errors * kept).sum() / kept.mean(1).sum() / 5]
    np.testing.assert_allclose(model.evaluate(IDS, y, sample_weight=weights, verbose=0), expected, rtol=1e-5)
