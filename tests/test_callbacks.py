"""Callbacks, with a model that only notes what is done to it."""

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from mp_core import callbacks
from mp_core.callbacks import CallbackList

os.environ.setdefault("KERAS_BACKEND", "torch")


class Fake:
    stop_training = False

    def __init__(self):
        self.weights, self.done = np.zeros(1), []
        self.optimizer = SimpleNamespace(learning_rate=0.5)

    def get_weights(self):
        return self.weights

    def set_weights(self, weights):
        self.weights = weights

    def save(self, path):
        self.done.append(path.name)

    save_weights = save_training_state = save

    def load_training_state(self, path):
        self.done.append(f"load {path.name}")


def run(callback, values, name="loss"):
    """Call a callback as fit does, with these values after the epochs, each of one batch; return model and History."""
    model = Fake()
    found = CallbackList([callback], add_history=True, model=model, epochs=len(values), steps=1, verbose=0)
    found.on_train_begin()
    for epoch, value in enumerate(values):
        found.on_epoch_begin(epoch)
        model.weights = np.full(1, epoch)
        found.on_train_batch_end(0, {name: value})
        found.on_epoch_end(epoch, {name: value})
        if model.stop_training:
            break
    found.on_train_end({})
    return model, model.history


@pytest.mark.parametrize(
    ("options", "name", "values", "epochs", "best"),
    [
        ({"monitor": "loss"}, "loss", [3, 2, 2.5, 1], 3, 1),
        ({"monitor": "loss", "patience": 2}, "loss", [3, 2, 2.5, 1, 2, 3], 6, 3),
        ({"monitor": "loss", "min_delta": 1.5}, "loss", [3, 2, 1], 2, 0),
        ({"monitor": "val_accuracy"}, "val_accuracy", [0.1, 0.3, 0.2], 3, 1),
        ({"monitor": "score", "mode": "max"}, "score", [1, 2, 1], 3, 1),
        ({"monitor": "loss", "baseline": 1.0}, "loss", [3, 2, 2], 2, 0),
        ({"monitor": "loss", "start_from_epoch": 2}, "loss", [1, 2, 3, 2, 3], 5, 3),
    ],
)
def test_early_stopping_stops_and_restores_the_best_weights(options, name, values, epochs, best):
    model, history = run(callbacks.EarlyStopping(restore_best_weights=True, **options), values, name)
    assert len(history.epoch) == epochs
    assert model.weights[0] == best


def test_checkpoints_are_written_when_it_is_better():
    model, _ = run(callbacks.ModelCheckpoint("m{epoch}-{loss:.1f}.keras", "loss", save_best_only=True), [3, 2, 4, 1])
    assert model.done == ["m1-3.0.keras", "m2-2.0.keras", "m4-1.0.keras"]
    model, _ = run(callbacks.ModelCheckpoint("m.weights.h5", save_weights_only=True, save_freq=2), [3, 2, 4, 1])
    assert model.done == ["m.weights.h5"] * 2


def test_a_backup_is_taken_up_and_removed_in_the_end(tmp_path):
    (tmp_path / "training.state").write_bytes(b"")
    model, _ = run(callbacks.BackupAndRestore(tmp_path), [3, 2])
    assert model.done == ["load training.state", "training.state", "training.state"]
    assert [*tmp_path.iterdir()] == []


def test_the_rate_is_set_before_epochs_and_told_after_them():
    model, history = run(callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2), [3, 2])
    assert model.optimizer.learning_rate == 0.125
    assert history.history["learning_rate"] == [0.25, 0.125]


def test_an_infinite_loss_stops_training(capsys):
    _, history = run(callbacks.TerminateOnNaN(), [3, np.inf, 1])
    assert len(history.epoch) == 2
    assert "Invalid loss" in capsys.readouterr().out


def test_functions_are_called_at_their_places():
    calls = []
    functions = {
        name: lambda *args, name=name: calls.append((name, *args)) for name in ("on_train_begin", "on_epoch_end")
    }
    run(callbacks.LambdaCallback(**functions), [3])
    assert calls == [("on_train_begin",), ("on_epoch_end", 0, {"loss": 3})]


def test_progress_is_silent_in_a_pipe_and_a_line_for_each_epoch_if_wanted(capsys):
    for verbose, lines in (("auto", 0), (2, 2)):
        found = CallbackList(None, add_progbar=True, model=Fake(), epochs=2, steps=1, verbose=verbose)
        for epoch in range(2):
            found.on_epoch_begin(epoch)
            found.on_train_batch_end(0, {})
            found.on_epoch_end(epoch, {"loss": 0.5})
        printed = capsys.readouterr().out
        assert printed.count("loss: 0.5") == lines


def test_a_terminal_gets_a_line_for_each_epoch(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    found = CallbackList(None, add_progbar=True, model=Fake(), epochs=1, steps=1, verbose="auto")
    found.on_epoch_begin(0)
    found.on_train_batch_end(0, {})
    found.on_epoch_end(0, {"loss": 0.5})
    assert "Epoch 1/1" in capsys.readouterr().out


ERRORS = [
    (lambda: callbacks.EarlyStopping(mode="up"), "`mode` must be one of"),
    (lambda: callbacks.EarlyStopping(patience=0.5), "`patience`"),
    (lambda: callbacks.ModelCheckpoint("m.h5"), "must end in .keras"),
    (lambda: callbacks.ModelCheckpoint("m.keras", save_weights_only=True), "must end in .weights.h5"),
    (lambda: callbacks.ModelCheckpoint("m.keras", save_freq=0), "`save_freq`"),
    (lambda: callbacks.LambdaCallback(on_nothing=print), "on_nothing"),
    (lambda: CallbackList([3]), "`callbacks` must be a list of Callback"),
    (lambda: run(callbacks.EarlyStopping(), [1]), "`monitor` must be one of loss; received 'val_loss'"),
    (lambda: run(callbacks.LearningRateScheduler(lambda epoch, rate: "a"), [1]), "`schedule`"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS, ids=[message for _, message in ERRORS])
def test_bad_arguments_are_refused_by_name(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_a_line_for_each_epoch(tmp_path):
    path = tmp_path / "log.csv"
    run(callbacks.CSVLogger(path), [1.5, 0.5])
    assert path.read_text() == "epoch,loss\n0,1.5\n1,0.5\n"
    run(callbacks.CSVLogger(path, append=True), [0.25])
    assert path.read_text().splitlines() == ["epoch,loss", "0,1.5", "1,0.5", "0,0.25"]
    run(callbacks.CSVLogger(path, ";"), [2.0])
    assert path.read_text() == "epoch;loss\n0;2.0\n"
    with pytest.raises(ValueError, match="`separator` must be one character"):
        callbacks.CSVLogger(path, "::")


@pytest.mark.parametrize(
    ("values", "arguments", "rates"),
    [
        ([3, 2, 1], {"patience": 1}, 0.5),
        ([1, 1, 1], {"patience": 2}, 0.25),
        ([1, 1, 1, 1, 1], {"patience": 1, "cooldown": 2}, 0.125),
        ([1, 0.99995, 1], {"patience": 2}, 0.25),
        ([1, 1, 1, 1], {"patience": 1, "min_lr": 0.2}, 0.2),
        ([1, 2, 2, 2], {"patience": 2, "mode": "max"}, 0.25),
    ],
)
def test_the_rate_falls_on_a_plateau(values, arguments, rates):
    keras = pytest.importorskip("keras")
    model, _ = run(callbacks.ReduceLROnPlateau("loss", 0.5, **arguments), values)
    assert model.optimizer.learning_rate == rates
    other = keras.callbacks.ReduceLROnPlateau("loss", 0.5, **arguments)
    theirs = Fake()
    theirs.optimizer = SimpleNamespace(learning_rate=np.float64(0.5))
    other.set_model(theirs)
    other.on_train_begin()
    for epoch, value in enumerate(values):
        other.on_epoch_end(epoch, {"loss": value})
    assert float(theirs.optimizer.learning_rate) == pytest.approx(rates)
    with pytest.raises(ValueError, match="`factor` must be below 1"):
        callbacks.ReduceLROnPlateau(factor=1.0)


def test_the_loss_curve_is_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    for name, start in (("curve.png", b"\x89PNG"), ("curve.svg", b"<?xml")):
        run(callbacks.LossCurve(tmp_path / name), [1.0, 0.5])
        assert (tmp_path / name).read_bytes().startswith(start)
