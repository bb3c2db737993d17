"""Callbacks, compared with those of Keras, which get the same logs; and which direction of a metric is better."""

import os
from types import SimpleNamespace

import numpy as np
import pytest

import mp_core as mp
from mp_core import callbacks, layers, metrics, ops

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")

RNG = np.random.default_rng(0)


class Fake:
    """A model whose weight is the number of the epoch."""

    stop_training, built, weights = False, True, 0

    def __init__(self, rate=0.5):
        self.optimizer = SimpleNamespace(learning_rate=np.float32(rate))

    def get_weights(self):
        return self.weights

    def set_weights(self, weights):
        self.weights = weights


def run(callback, epochs, rate=0.5):
    """Call a callback as fit does, with these logs; return the model, and the last epoch."""
    model = Fake(rate)
    callback.set_model(model)
    callback.set_params({"epochs": len(epochs)})
    callback.on_train_begin({})
    for epoch, logs in enumerate(epochs):
        callback.on_epoch_begin(epoch, {})
        model.weights = epoch
        callback.on_epoch_end(epoch, dict(logs))
        model.optimizer.learning_rate = np.float32(model.optimizer.learning_rate)
        if model.stop_training:
            break
    callback.on_train_end({})
    return model, epoch


def _values(count=12):
    """Return random values that are exact in float32, so that Keras compares them as they are."""
    return [{"loss": float(value)} for value in RNG.integers(0, 12, count) / 4]


@pytest.mark.parametrize("mode", ["auto", "min", "max"])
def test_early_stopping_ends_and_restores_as_in_keras(mode):
    for _ in range(60):
        options = {
            "monitor": "loss", "mode": mode, "patience": int(RNG.integers(0, 4)), "min_delta": RNG.integers(0, 3) / 4,
            "baseline": [None, 1.0, 0.25][RNG.integers(3)], "start_from_epoch": int(RNG.integers(0, 3)),
            "restore_best_weights": bool(RNG.integers(2)),
        }  # fmt: skip
        epochs = _values()
        ours, theirs = callbacks.EarlyStopping(**options), keras.callbacks.EarlyStopping(**options)
        (model, last), (other, their_last) = run(ours, epochs), run(theirs, epochs)
        assert (last, model.weights) == (their_last, other.weights), options
        for name in ("best", "stopped_epoch", "best_epoch", "wait", "best_weights"):
            assert getattr(ours, name) == getattr(theirs, name), (name, options)
        assert ours.monitor_op is (ops.greater if mode == "max" else ops.less)


def test_the_rate_falls_as_in_keras_and_reaches_its_least_value_once(capsys):
    for _ in range(60):
        options = {
            "monitor": "loss", "factor": 0.3, "patience": int(RNG.integers(0, 3)), "cooldown": int(RNG.integers(0, 3)),
            "min_delta": 0.25, "min_lr": [0.0, 0.1][RNG.integers(2)], "verbose": 1,
        }  # fmt: skip
        epochs, found = _values(20), []
        for kind in (callbacks.ReduceLROnPlateau, keras.callbacks.ReduceLROnPlateau):
            callback = kind(**options)
            model, _ = run(callback, epochs)
            said = capsys.readouterr().out.count("reducing learning rate")
            found.append((model.optimizer.learning_rate, said, callback.wait, callback.cooldown_counter))
        assert found[0] == found[1], options


def test_the_lines_of_a_file_are_those_of_keras(tmp_path):
    both = {"loss": 0.5, "mae": 0.25, "val_loss": 1.5, "val_mae": 0.75}
    train = {"loss": 0.125, "mae": np.float32(0.1)}
    for epochs in (
        [train, both, train],
        [both, train],
        [{"loss": 1.0, "f1": np.float32([0.5, 0.25])}, {"loss": float("nan"), "f1": [1, 2]}],
        [{}, train],
        [{"loss": np.array(2.0), "what": 'text, "and" more'}],
    ):
        for separator in (",", "\t"):
            found = []
            for kind in (callbacks.CSVLogger, keras.callbacks.CSVLogger):
                path = tmp_path / "log.csv"
                path.unlink(missing_ok=True)
                run(kind(path, separator=separator), epochs)
                run(kind(path, separator=separator, append=True), epochs)
                found.append(path.read_text().replace("\r\n", "\n"))
            assert found[0] == found[1]


# ---- which values are better

NAMED = [
    metrics.F1Score(name="score"), metrics.MeanIoU(2, name="overlap"), metrics.R2Score(),
    metrics.PearsonCorrelation(axis=0), metrics.SensitivityAtSpecificity(0.5), metrics.FalsePositives(name="truly"),
    metrics.CosineSimilarity(), metrics.KLDivergence(name="accuracy of bits"), "mse", "accuracy",
]  # fmt: skip


def test_what_is_compiled_says_which_values_are_better():
    x, y = RNG.random((8, 3)).astype(np.float32), RNG.integers(0, 2, (8, 1)).astype(np.float32)
    inputs = mp.Input((3,))
    # outputs whose names are those of metrics
    outputs = [layers.Dense(1, "sigmoid", name=name)(inputs) for name in ("accident", "true")]
    model = mp.Model(inputs, outputs)
    model.compile("sgd", "mse", metrics=[NAMED, ["mae", mp.losses.binary_crossentropy]])
    history = model.fit(x, [y, y], validation_data=(x, [y, y]), verbose=0).history
    down = {"truly", "accuracy of bits", "mse", "mae", "binary_crossentropy"}
    for name in history:
        plain = name.removeprefix("val_").removeprefix("accident_").removeprefix("true_")
        is_down = plain == "loss" or plain in down
        assert model.direction_of(name) == ("down" if is_down else "up"), name
    for name in ("val_", "score", "iou", "loss_", "accident", "val_val_loss"):
        assert model.direction_of(name) is None


def own_share(y_true, y_pred):
    return np.mean(y_pred, -1)


@pytest.mark.parametrize("kind", [
    callbacks.EarlyStopping, callbacks.ReduceLROnPlateau,
    lambda monitor: callbacks.ModelCheckpoint("m.weights.h5", monitor, save_best_only=True, save_weights_only=True),
])  # fmt: skip
def test_a_metric_of_ones_own_needs_a_mode(kind):
    x, y = RNG.random((8, 3)).astype(np.float32), RNG.random((8, 1)).astype(np.float32)
    model = mp.Sequential([mp.Input((3,)), layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[own_share])
    with pytest.raises(ValueError, match=r"`mode` of \w+ must be 'min' or 'max': .*'own_share'"):
        model.fit(x, y, verbose=0, callbacks=[kind("own_share")])


def test_the_weights_of_the_greatest_iou_are_kept():
    x = np.float32([[-1], [1]])
    y = np.int32([[0], [1]])
    model = mp.Sequential([mp.Input((1,)), layers.Dense(2, use_bias=False)])
    kernels = [np.float32([[-1, 1]]), np.float32([[1, -1]]), np.float32([[1, -1]])]  # right, then wrong

    class Assign(callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            model.set_weights([kernels[epoch]])

    model.compile(mp.optimizers.SGD(0.0), mp.losses.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=[mp.metrics.MeanIoU(2, sparse_y_pred=False)])  # fmt: skip
    stop = callbacks.EarlyStopping("val_mean_io_u", patience=1, restore_best_weights=True)
    model.fit(x, y, epochs=3, verbose=0, callbacks=[Assign(), stop], validation_data=(x, y))
    assert stop.best == pytest.approx(1.0)
    np.testing.assert_array_equal(model.get_weights()[0], kernels[0])


# ---- averages


def averaged(library, folder, options, scale=False):
    """Return the history of a small model that is judged by its averages, its weights, and those of checkpoints."""
    model = library.Sequential([library.Input((3,)), library.layers.Dense(2, use_bias=False)])
    model.set_weights([np.arange(6, dtype=np.float32).reshape(3, 2) / 8])
    optimizer = library.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.75)
    model.compile(library.optimizers.LossScaleOptimizer(optimizer) if scale else optimizer, "mse", metrics=["mae"])
    x, y = np.float32([[1, 0, 2], [0, 1, 1], [2, 1, 0], [1, 1, 1]]), np.float32([[1, 0], [0, 1], [1, 1], [0, 0]])
    path = str(folder / f"{library.__name__}-{{epoch}}.weights.h5")
    listed = [
        library.callbacks.SwapEMAWeights(**options),
        library.callbacks.ModelCheckpoint(path, save_weights_only=True),
    ]
    history = model.fit(
        x, y, batch_size=2, epochs=4, shuffle=False, validation_data=(x, y), verbose=0, callbacks=listed
    )
    found = [model.get_weights()[0], *map(np.asarray, history.history.values())]
    assert history.history["val_loss"][-1] == pytest.approx(model.evaluate(x, y, verbose=0)[0])
    for epoch in range(1, 5):
        model.load_weights(path.format(epoch=epoch))
        found.append(model.get_weights()[0])
    return found


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")  # of Keras
@pytest.mark.parametrize("options", [{}, {"swap_on_epoch": True}])
def test_a_model_is_judged_by_its_averages_as_in_keras(tmp_path, options):
    ours, theirs = averaged(mp, tmp_path, options), averaged(keras, tmp_path, options)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    for one, other in zip(averaged(mp, tmp_path, options, scale=True), ours, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_averages_are_the_weights_also_if_training_stops_early():
    x = np.float32([[1.0], [2.0]])
    found = []
    for listed in ([], [callbacks.SwapEMAWeights(swap_on_epoch=True)]):
        model = mp.Sequential([mp.Input((1,)), layers.Dense(1, kernel_initializer="ones")])
        model.compile(mp.optimizers.SGD(0.1, use_ema=True), "mse")
        stop = callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs, model=model: setattr(model, "stop_training", True)
        )
        model.fit(x, 3 * x, epochs=9, verbose=0, callbacks=[*listed, stop])
        assert not model.optimizer.averages_swapped
        found.append(model.get_weights())
    np.testing.assert_array_equal(found[0][0], found[1][0])


def test_an_optimizer_without_averages_is_refused():
    model = mp.Sequential([mp.Input((1,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="SwapEMAWeights needs an optimizer with `use_ema=True`"):
        model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0, callbacks=[callbacks.SwapEMAWeights()])
    with pytest.raises(ValueError, match="`use_ema` of optimizer 'sgd' must be True"):
        model.optimizer.swap_averages()
