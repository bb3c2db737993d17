"""Callbacks, with a model that only records the calls."""

import inspect
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import mp_core as mp
from mp_core import callbacks
from mp_core.callbacks import CallbackList

os.environ.setdefault("KERAS_BACKEND", "torch")


class Fake:
    stop_training, built, name = False, True, "fake"

    def __init__(self):
        self.weights, self.done = np.zeros(1), []
        self.optimizer = SimpleNamespace(learning_rate=0.5)

    def get_weights(self):
        return self.weights

    def set_weights(self, weights):
        self.weights = weights

    def direction_of(self, name):
        return {"val_accuracy": "up", "error": "down"}.get(name)

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
        ({"monitor": "val_accuracy", "min_delta": 0.5}, "val_accuracy", [0.1, 0.3, 0.7], 2, 0),
        ({"monitor": "error", "patience": 1}, "error", [3, 4], 2, 0),
        ({"monitor": "loss", "baseline": 1.0}, "loss", [3, 2, 2], 3, 1),
        ({"monitor": "loss", "baseline": 0.5, "patience": 5}, "loss", [0.9, 0.8, 0.7, 0.71, 0.72, 0.73], 5, 2),
        ({"monitor": "loss", "patience": 2}, "loss", [np.nan, 2.0, 1.0, 2.0, 2.0], 5, 2),
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
    assert not tmp_path.exists()


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
    assert calls == [("on_train_begin", {}), ("on_epoch_end", 0, {"loss": 3})]


def test_functions_may_take_fewer_arguments_or_logs_by_name():
    calls = []
    functions = {
        "on_train_begin": lambda: calls.append("begin"), "on_epoch_begin": lambda epoch: calls.append(epoch),
        "on_batch_end": lambda batch, *, logs=None: calls.append((batch, logs)),
        "on_epoch_end": lambda *args: calls.append(args), "on_train_end": lambda *, logs: calls.append(logs),
    }  # fmt: skip
    run(callbacks.LambdaCallback(**functions), [3])
    assert calls == ["begin", 0, (0, {"loss": 3}), (0, {"loss": 3}), {}]
    assert callbacks.LambdaCallback(custom=print).custom is print


def test_the_short_names_of_keras_are_called_too():
    class Short(callbacks.Callback):
        seen = 0

        def on_batch_end(self, batch, logs=None):
            self.seen += logs["loss"]

    short = Short()
    run(short, [3, 4])
    assert short.seen == 7
    assert CallbackList([[short]]).listens("on_train_batch_end")


def test_progress_is_a_line_for_each_epoch_in_a_pipe(capsys):
    for verbose in ("auto", 1, 2):
        found = CallbackList(None, add_progbar=True, model=Fake(), epochs=2, steps=1, verbose=verbose)
        for epoch in range(2):
            found.on_epoch_begin(epoch)
            found.on_train_batch_end(0, {})
            found.on_epoch_end(epoch, {"loss": 0.5})
        printed = capsys.readouterr().out
        assert printed.count("loss: 0.5") == 2


def test_a_terminal_gets_a_line_for_each_epoch(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    found = CallbackList(None, add_progbar=True, model=Fake(), epochs=1, steps=1, verbose="auto")
    found.on_epoch_begin(0)
    found.on_train_batch_end(0, {})
    found.on_epoch_end(0, {"loss": 0.5})
    assert "Epoch 1/1" in capsys.readouterr().out


def test_a_value_that_is_missing_is_warned_of_and_training_goes_on():
    for callback in (callbacks.EarlyStopping(), callbacks.ReduceLROnPlateau()):
        with pytest.warns(UserWarning, match="does nothing: the logs have no `monitor`='val_loss', but loss"):
            _, history = run(callback, [3, 3])
        assert len(history.epoch) == 2


def test_a_checkpoint_without_a_value_is_written_with_a_warning():
    best = callbacks.ModelCheckpoint("m.keras", save_best_only=True, save_freq=2)
    with pytest.warns(UserWarning, match="`monitor`='val_loss' is not in the logs: m.keras is written"):
        model, _ = run(best, [3, 2, 1])
    assert model.done == ["m.keras"]
    with pytest.warns(UserWarning, match=r"is an array of shape \(2,\)"):
        model, _ = run(callbacks.ModelCheckpoint("m.keras", "loss", save_best_only=True), [np.ones(2)])
    assert model.done == ["m.keras"]
    with pytest.warns(UserWarning, match=r"no validation was due, so .* is not written: it needs val_loss"):
        model, _ = run(callbacks.ModelCheckpoint("{epoch}-{val_loss:.2f}.keras"), [3])
    assert model.done == []
    with pytest.raises(KeyError, match=r"names among epoch, loss; {mae}.keras has mae"):
        run(callbacks.ModelCheckpoint("{mae}.keras"), [3])
    model, _ = run(callbacks.ModelCheckpoint("{epoch}-{batch}.keras", save_freq=1), [3, 2])
    assert model.done == ["1-1.keras", "2-1.keras"]
    model, _ = run(callbacks.ModelCheckpoint("m.keras", "loss", save_best_only=True, initial_value_threshold=2), [3, 1])
    assert model.done == ["m.keras"]


def test_an_unknown_mode_counts_as_auto_with_a_warning():
    with pytest.warns(UserWarning, match="ModelCheckpoint mode 'unknown' is unknown") as found:
        checkpoint = callbacks.ModelCheckpoint("m.keras", mode="unknown")
    assert checkpoint.mode == "auto"
    assert found[0].filename == __file__


def test_an_infinite_loss_is_an_error_if_wanted():
    with pytest.raises(RuntimeError, match="batch 0 is inf"):
        run(callbacks.TerminateOnNaN(raise_error=True), [np.inf])


ERRORS = [
    (
        lambda: run(callbacks.EarlyStopping("unknown"), [1]),
        "it is unknown which values of `monitor`='unknown'",
    ),
    (lambda: run(callbacks.EarlyStopping("loss"), [np.ones(3)]), r"'loss' is an array of shape \(3,\)"),
    (lambda: callbacks.LambdaCallback(on_epoch_end=lambda a, b, c: 0), r"callable with \(epoch, logs\)"),
    (lambda: callbacks.EarlyStopping(patience=0.5), "`patience`"),
    (lambda: callbacks.ModelCheckpoint("m.h5"), "must end in .keras"),
    (lambda: callbacks.ModelCheckpoint("m.keras", save_weights_only=True), "must end in .weights.h5"),
    (lambda: callbacks.ModelCheckpoint("m.keras", save_freq=0), "`save_freq`"),
    (lambda: callbacks.LambdaCallback(on_nothing=print), "on_nothing"),
    (lambda: CallbackList([3]), "`callbacks` must be a list of Callback"),
    (lambda: run(callbacks.LearningRateScheduler(lambda epoch, rate: "a"), [1]), "`schedule`"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS, ids=[message for _, message in ERRORS])
def test_bad_arguments_are_refused_by_name(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_a_line_for_each_epoch(tmp_path):
    path = tmp_path / "log.csv"
    run(callbacks.CSVLogger(path), [1.5, 0.5])
    assert path.read_text() == "epoch,loss,val_loss\n0,1.5,NA\n1,0.5,NA\n"
    run(callbacks.CSVLogger(path, append=True), [0.25])
    assert path.read_text().splitlines() == ["epoch,loss,val_loss", "0,1.5,NA", "1,0.5,NA", "0,0.25,NA"]
    path.write_text(path.read_text().rstrip())  # as an editor, or a process that was killed, may leave it
    run(callbacks.CSVLogger(path, append=True), [0.125])
    assert path.read_text().splitlines()[-2:] == ["0,0.25,NA", "0,0.125,NA"]
    run(callbacks.CSVLogger(path, ";"), [2.0])
    assert path.read_text() == "epoch;loss;val_loss\n0;2.0;NA\n"
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


# ---- configurations


def _made(kind, name, value):
    """Return an object of a class with an argument, if it takes that one; what else it needs is 2 or a rate."""
    needed = {
        each.name: 0.1 if each.name == "learning_rate" else 2
        for each in inspect.signature(kind).parameters.values()
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    }
    try:
        return kind(**needed | {name: value})
    except (TypeError, ValueError):
        return None


def test_fractions_in_configurations_are_those_that_were_given():
    seen = 0
    for module in (mp.losses, mp.metrics, mp.optimizers, mp.optimizers.schedules, mp.regularizers, mp.constraints):
        for kind in (getattr(module, name) for name in module.__all__):
            if not isinstance(kind, type) or not hasattr(kind, "get_config"):
                continue
            for name in inspect.signature(kind).parameters:
                for value in (0.4, [0.3, 0.4]):
                    made = _made(kind, name, value)
                    found = None if made is None else made.get_config().get(name)
                    if isinstance(found, float | list):
                        assert found == value, (kind, name)
                        seen += 1
    assert seen > 120
