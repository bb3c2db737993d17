"""Training that was killed and called again ends like uninterrupted training: weights, history, files, callbacks."""

import json
import signal
import sys
import textwrap

import numpy as np
import processes
import pytest

import mp_core as mp
from mp_core import callbacks, layers, optimizers
from mp_core.files import hdf5

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")

SCRIPT = """
    import json, os, signal, sys, numpy as np, mp_core as mp
    from mp_core import callbacks, layers

    kill, save_freq = sys.argv[1], json.loads(sys.argv[2])
    mp.random.set_seed(4 if kill == "again" else 3)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((90, 6)).astype(np.float32)
    classes, numbers = np.eye(3, dtype=np.float32)[rng.integers(0, 3, 90)], x[:, :1] * 2 + 1

    inputs = mp.Input((6,), name="x")
    hidden = layers.Dropout(0.3)(layers.Dense(8, "relu")(inputs))
    outputs = [layers.Dense(3, "softmax", name="kind")(hidden), layers.Dense(1, name="size")(hidden)]
    model = mp.Model(inputs, outputs)
    state = np.random.default_rng(1)
    model.set_weights([state.uniform(-0.5, 0.5, w.shape) for w in model.get_weights()])
    metrics = [["accuracy", mp.metrics.F1Score(average="macro")], ["mae"]]
    model.compile(mp.optimizers.Adam(0.1, use_ema=EMA, ema_momentum=0.5),
                  ["categorical_crossentropy", "mse"], metrics=metrics)

    class Losses(callbacks.Callback):
        state_attributes = ("epochs", "current")
        epochs, current = [], []
        def on_epoch_begin(self, epoch, logs=None):
            self.current = []
        def on_batch_end(self, batch, logs=None):
            self.current = [*self.current, float(logs["loss"])]
        def on_epoch_end(self, epoch, logs=None):
            self.epochs = [*self.epochs, self.current]

    class Kill(callbacks.Callback):
        runs_last = True  # it is after BackupAndRestore
        epoch = 0
        def now(self, *place):
            if "-".join(map(str, place)) == kill:
                os.kill(os.getpid(), signal.SIGKILL)
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch
            self.now(epoch, "begin")
        def on_train_batch_end(self, batch, logs=None):
            self.now(self.epoch, batch)
        def on_test_begin(self, logs=None):
            self.now(self.epoch, "test")
        def on_epoch_end(self, epoch, logs=None):
            self.now(epoch, "end")

    class KillAtTheEnd(callbacks.Callback):
        def on_train_end(self, logs=None):
            if kill == "end":
                os.kill(os.getpid(), signal.SIGKILL)

    losses = Losses()
    listed = [
        KillAtTheEnd(),
        callbacks.BackupAndRestore("backup", save_freq=save_freq),
        callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.875),
        callbacks.ReduceLROnPlateau("val_loss", 0.5, patience=1, cooldown=1),
        callbacks.EarlyStopping("val_kind_accuracy", patience=2, restore_best_weights=True, start_from_epoch=1),
        callbacks.ModelCheckpoint("best.weights.h5", "val_kind_f1_score", save_best_only=True, save_weights_only=True),
        callbacks.ModelCheckpoint("at-{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=7),
        callbacks.CSVLogger("log.csv", append=APPEND),
        losses, *EXTRA, Kill(),
    ]
    history = model.fit(x, [classes, numbers], batch_size=13, epochs=9, validation_split=0.25, validation_freq=FREQ,
                        verbose=0, callbacks=listed)
    found = {"epoch": history.epoch, "history": history.history, "losses": losses.epochs, "rate":
             float(model.optimizer.learning_rate)}
    open("found.json", "w").write(json.dumps(found))
    model.save_weights("end.weights.h5")
"""
PLAIN = {"EMA": "False", "APPEND": "False", "EXTRA": "[]", "FREQ": "1"}


def run(folder, kill, save_freq, options):
    script = textwrap.dedent(SCRIPT)
    for name, value in options.items():
        script = script.replace(name, value)
    command = [sys.executable, "-W", "ignore:EarlyStopping does nothing", "-c", script, kill, json.dumps(save_freq)]
    return processes.run(command, cwd=folder, capture_output=True, text=True, check=False)


def ended(folder, kills, save_freq, options=PLAIN):
    """Return the files of a training that is killed at these places, one after the other, and called again."""
    folder.mkdir()
    (folder / "log.csv").write_text("epoch,loss,val_loss\n7,1.0,2.0\n")
    for kill in kills:
        found = run(folder, kill, save_freq, options)
        assert found.returncode == -signal.SIGKILL, found.stderr
    last = run(folder, "again" if kills else "never", save_freq, options)
    assert last.returncode == 0, last.stderr
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    found = ended(tmp_path_factory.mktemp("whole") / "run", [], "epoch")
    epochs = len(json.loads(found["found.json"])["epoch"])
    assert 3 < epochs < 9  # EarlyStopping has ended it
    assert "backup" not in found
    return found


@pytest.mark.parametrize(
    ("kills", "save_freq"),
    [
        (["1-3"], 2),
        (["1-end"], "epoch"),
        (["2-2"], "epoch"),
        (["1-4", "2-test"], 1),  # in validation no batch of the epoch is left
        (["end"], "epoch"),
    ],
)
def test_a_killed_run_ends_like_one_that_was_not(whole, tmp_path, kills, save_freq):
    assert ended(tmp_path / "run", kills, save_freq) == whole


@pytest.mark.parametrize(("kills", "save_freq"), [(["2-1"], 3), (["1-end", "3-begin", "end"], "epoch")])
def test_so_does_one_with_averages_that_are_swapped_and_a_file_that_grows(tmp_path, kills, save_freq):
    options = {
        "EMA": "True", "APPEND": "True", "FREQ": "2",
        "EXTRA": "[callbacks.SwapEMAWeights(True), callbacks.ModelCheckpoint('ema-{epoch}.weights.h5', "
                 "save_weights_only=True)]",
    }  # fmt: skip
    whole = ended(tmp_path / "whole", [], "epoch", options)
    assert whole["log.csv"].startswith(b"epoch,loss,val_loss\n7,1.0,2.0\n0,")
    assert ended(tmp_path / "run", kills, save_freq, options) == whole


# ---- in one process

X = np.random.default_rng(5).standard_normal((40, 3)).astype(np.float32)
Y = X @ np.float32([[1.0], [2.0], [-1.0]])


def model(**options):
    found = mp.Sequential([mp.Input((3,)), layers.Dense(4, "tanh"), layers.Dense(1)])
    state = np.random.default_rng(1)
    found.set_weights([state.uniform(-0.5, 0.5, w.shape).astype(w.dtype) for w in found.get_weights()])
    found.compile(optimizers.Adam(0.01), "mse", **options)
    return found


def same(first, second):
    return all(map(np.array_equal, first.get_weights(), second.get_weights()))


class Interrupt(callbacks.Callback):
    """Raises KeyboardInterrupt after a batch, when all other callbacks have seen it."""

    runs_last = True

    def __init__(self, epoch, batch):
        super().__init__()
        self.place, self.epoch = (epoch, batch), 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.place:
            raise KeyboardInterrupt


def interrupted(folder, place, make=model, first=(), again=(), x=X, **options):
    """Fit a model that is interrupted behind a batch, and one that goes on; return that and its history."""
    options = {"epochs": 4, "batch_size": 10, "verbose": 0} | options
    backup = callbacks.BackupAndRestore(folder, save_freq=1)
    mp.random.set_seed(1)
    with pytest.raises(KeyboardInterrupt):
        make().fit(
            x() if callable(x) else x, Y if x is X else None, callbacks=[backup, *first, Interrupt(*place)], **options
        )
    mp.random.set_seed(2)
    trained = make()
    backup = callbacks.BackupAndRestore(folder, save_freq=1)
    history = trained.fit(x() if callable(x) else x, Y if x is X else None, callbacks=[backup, *again], **options)
    return trained, history


def uninterrupted(make=model, given=(), x=X, **options):
    mp.random.set_seed(1)
    trained = make()
    options = {"epochs": 4, "batch_size": 10, "verbose": 0} | options
    return trained, trained.fit(x() if callable(x) else x, Y if x is X else None, callbacks=list(given), **options)


class Batches:
    """Batches that begin anew with each iteration, and do not say how many there are."""

    def __iter__(self):
        return ((X[start : start + 10], Y[start : start + 10]) for start in range(0, 40, 10))


class Shuffled:
    """Batches by index, which take another order after each epoch."""

    def __init__(self):
        self.epoch, self.order = 0, np.arange(40)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        chosen = self.order[10 * index : 10 * index + 10]
        return X[chosen], Y[chosen]

    def on_epoch_end(self):
        self.epoch += 1
        self.order = np.random.default_rng(self.epoch).permutation(40)


def generator():
    while True:
        yield from Batches()


@pytest.mark.parametrize("options", [
    {"steps_per_epoch": 3}, {"initial_epoch": 1}, {"steps_per_epoch": 3, "initial_epoch": 1},
    {"x": Batches, "batch_size": None}, {"x": Batches, "batch_size": None, "steps_per_epoch": 3},
    {"x": generator, "batch_size": None, "steps_per_epoch": 3, "initial_epoch": 1},
    {"x": Shuffled, "batch_size": None}, {"x": Shuffled, "batch_size": None, "steps_per_epoch": 3, "initial_epoch": 1},
])  # fmt: skip
def test_data_go_on_where_they_were_left(tmp_path, options):
    whole, wanted = uninterrupted(**options)
    trained, history = interrupted(tmp_path / "state", (2, 1), **options)
    assert same(trained, whole)
    assert (history.epoch, history.history) == (wanted.epoch, wanted.history)


@pytest.mark.parametrize("frequency", [1, 2])
def test_validation_data_go_on_where_they_were_left(tmp_path, frequency):
    def trained(fit, *place):
        options = {"validation_data": Shuffled(), "validation_steps": 2, "validation_freq": frequency}
        return fit(*place, epochs=5, **options)[1]

    wanted = trained(uninterrupted)

    def again(folder, place, **options):
        backup = callbacks.BackupAndRestore(folder)
        mp.random.set_seed(1)
        with pytest.raises(KeyboardInterrupt):
            model().fit(X, Y, batch_size=10, verbose=0, callbacks=[backup, Interrupt(*place)], **options)
        options["validation_data"] = Shuffled()
        return uninterrupted(given=[callbacks.BackupAndRestore(folder)], **options)

    assert trained(again, tmp_path / "state", (3, 1)).history == wanted.history


class Stop(callbacks.Callback):
    """Stops training in the middle of an epoch; it has no state."""

    def on_train_batch_end(self, batch, logs=None):
        if self.model.metrics[0].state[1] == 20 and logs["loss"] < 10 and self.params["epochs"] == 4:
            self.model.stop_training = True


def test_training_that_a_callback_had_stopped_stays_stopped(tmp_path):
    whole, wanted = uninterrupted(given=[Stop()])
    assert wanted.epoch == [0]
    trained, history = interrupted(tmp_path / "state", (0, 1), first=[Stop()])
    assert same(trained, whole)
    assert (history.epoch, history.history) == (wanted.epoch, wanted.history)


def test_a_training_that_has_ended_goes_on_with_more_epochs(tmp_path):
    whole, wanted = uninterrupted(epochs=6)
    mp.random.set_seed(1)
    for epochs in (2, 6):
        trained = model()
        keep = callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
        history = trained.fit(X, Y, epochs=epochs, batch_size=10, verbose=0, callbacks=[keep])
    assert same(trained, whole)
    assert history.history == wanted.history


def test_what_has_stopped_a_training_that_ended_does_not_stop_the_next_one(tmp_path):
    for last in (1, 2, 3):
        stop = callbacks.EarlyStopping("loss", min_delta=100)  # nothing is better by so much
        keep = callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
        history = model().fit(X, Y, epochs=8, batch_size=10, verbose=0, callbacks=[stop, keep])
        assert history.epoch == list(range(last + 1))


def test_a_state_loaded_by_hand_is_gone_on_with_as_it_was_changed(tmp_path):
    class Save(callbacks.Callback):
        runs_last = True

        def on_epoch_end(self, epoch, logs=None):
            self.model.save_training_state(tmp_path / "state")

    whole, wanted = uninterrupted()
    mp.random.set_seed(1)
    first = model()
    first.fit(X, Y, epochs=2, batch_size=10, verbose=0, callbacks=[Save()])
    second = model()
    second.load_training_state(tmp_path / "state")
    assert second.fit(X, Y, epochs=4, batch_size=10, verbose=0).history == wanted.history
    assert same(second, whole)
    with pytest.warns(UserWarning, match="nothing is trained: 4 epochs are over, `epochs` is 3") as found:
        second.save_training_state(tmp_path / "end")
        second.load_training_state(tmp_path / "end")
        second.fit(X, Y, epochs=3, batch_size=10, verbose=0)
    assert found[0].filename == __file__
    third = model()
    third.load_training_state(tmp_path / "state")
    third.optimizer.learning_rate = 0.0
    third.fit(X, Y, epochs=4, batch_size=10, verbose=0)
    assert same(third, first)


class Step(mp.Sequential):
    """Has a metric of its own, and one of its own class, which makes its variables when it sees a batch."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.error = mp.metrics.Mean(name="error")

    def train_step(self, data):
        found = super().train_step(data)
        self.error.update_state(abs(data[1] - self(data[0])))
        return found | {"error": float(self.error.result())}


def own():
    found = Step([mp.Input((3,)), layers.Dense(1, kernel_initializer="ones")])
    found.compile("sgd", "mse", metrics=[mp.metrics.R2Score(), "mae"])
    return found


def test_the_means_of_metrics_of_all_kinds_go_on_in_an_epoch(tmp_path):
    _, wanted = uninterrupted(own, validation_split=0.25)
    _, history = interrupted(tmp_path / "state", (1, 1), own, validation_split=0.25)
    assert history.history == wanted.history


def test_the_logs_of_a_step_are_those_of_the_epoch_if_no_batch_is_left(tmp_path):
    def make():
        found = Logged([mp.Input((3,)), layers.Dense(1, kernel_initializer="ones")])
        found.compile("sgd", "mse")
        return found

    class Logged(mp.Sequential):
        def train_step(self, data):
            return {"loss": super().train_step(data)["loss"], "batch": float(data[0].sum())}

    _, wanted = uninterrupted(make)
    _, history = interrupted(tmp_path / "state", (2, 3), make)  # behind the last batch of an epoch
    assert history.history == wanted.history


def test_other_metrics_are_refused_in_the_middle_of_an_epoch(tmp_path):
    interrupted_at = {"epochs": 4, "batch_size": 10, "verbose": 0}
    backup = callbacks.BackupAndRestore(tmp_path, save_freq=1)
    with pytest.raises(KeyboardInterrupt):
        model(metrics=["mae"]).fit(X, Y, callbacks=[backup, Interrupt(1, 1)], **interrupted_at)
    other = model(metrics=["mape"])
    before = other.get_weights()
    with pytest.raises(ValueError, match="it has the metrics mae; compiled are mape"):
        other.fit(X, Y, callbacks=[callbacks.BackupAndRestore(tmp_path)], **interrupted_at)
    assert all(map(np.array_equal, other.get_weights(), before))


def test_a_damaged_file_is_replaced_by_the_one_before(tmp_path):
    whole, wanted = uninterrupted()
    options = {"epochs": 4, "batch_size": 10, "verbose": 0}
    mp.random.set_seed(1)
    with pytest.raises(KeyboardInterrupt):
        model().fit(X, Y, callbacks=[callbacks.BackupAndRestore(tmp_path, 1, True), Interrupt(2, 2)], **options)
    (tmp_path / "training.state").write_bytes(b"0")
    with pytest.raises(ValueError, match="must be a file of save_training_state"):
        model().fit(X, Y, callbacks=[callbacks.BackupAndRestore(tmp_path)], **options)
    trained = model()
    with pytest.warns(UserWarning, match=r"continues from .*training.state.previous"):
        history = trained.fit(X, Y, callbacks=[callbacks.BackupAndRestore(tmp_path, 1, True)], **options)
    assert same(trained, whole)
    assert history.history == wanted.history


def test_what_does_not_fit_is_said(tmp_path):
    class Odd(callbacks.Callback):
        state_attributes = ("state",)
        state = frozenset({1, 2})

    class Counts(callbacks.Callback):
        state_attributes = ("count",)
        count = 3

    with pytest.raises(TypeError, match=r"received frozenset: \['callbacks'\]\[0\]\[1\]\['state'\]"):
        uninterrupted(given=[Odd(), callbacks.BackupAndRestore(tmp_path)])
    with pytest.warns(UserWarning, match="has a state of Counts, which is not among the callbacks"):
        interrupted(tmp_path / "lost", (1, 1), first=[Counts()])
    with pytest.warns(UserWarning, match="has no state of Counts, which starts from scratch"):
        interrupted(tmp_path / "new", (1, 1), again=[Counts()])
    unbuilt = mp.Sequential([layers.Dense(1)])
    unbuilt.compile("sgd", "mse")
    with pytest.raises(ValueError, match="needs a model that is built before `fit`"):
        unbuilt.fit(X, Y, verbose=0, callbacks=[callbacks.BackupAndRestore(tmp_path / "unbuilt")])


@pytest.mark.parametrize("damage", [
    {"weights": []}, {"weights": [[1.0]] * 4}, {"place": [1]}, {"metrics": 3}, {"callbacks": [[1, 2]]},
    {"means": {"a": 1}}, {"optimizer": {}}, {"variables": {"__array__": [0, "object"]}},
    {"logs": {"__array__": [99, "int8"]}},
    {"example": [[["x", [["a"], "O"], None]], None], "place": [1, 1], "metrics": [["mae", []]]}, None,
])  # fmt: skip
def test_a_state_that_somebody_changed_changes_nothing(tmp_path, damage):
    first, second = model(metrics=["mae"]), model(metrics=["mae"])
    first.fit(X, Y, verbose=0)
    first.save_training_state(tmp_path / "state")
    tree = hdf5.read((tmp_path / "state").read_bytes())
    about = json.loads(bytes(tree["about"]))
    about["state"] = None if damage is None else about["state"] | damage
    tree = dict(tree) | {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    with open(tmp_path / "state", "wb") as file:
        hdf5.write(file, tree)
    before = second.get_weights()
    with pytest.raises(ValueError, match="`filepath` must be a file of"):
        second.load_training_state(tmp_path / "state")
    assert all(map(np.array_equal, second.get_weights(), before))
    assert second.optimizer.iterations.numpy() == 0


def test_states_of_callbacks_keep_types_and_values(tmp_path):
    import ml_dtypes

    kept = {
        "numbers": [1, 2.5, None, True, float("inf"), np.float32(0.1), np.int64(7), np.bool_(True)],
        "arrays": {"bfloat16": np.arange(3).astype(ml_dtypes.bfloat16), "bool": np.array([True, False]),
                   "float64": np.array([0.1]), "int64": np.array([2**60]), "empty": np.zeros((0, 3), np.float16)},
    }  # fmt: skip

    class Keeps(callbacks.Callback):
        def get_state(self):
            return kept

        def set_state(self, state):
            self.found = state

    again = Keeps()
    interrupted(tmp_path / "state", (1, 1), first=[Keeps()], again=[again])
    numbers = again.found["numbers"]
    assert numbers == [1, 2.5, None, True, float("inf"), float(np.float32(0.1)), 7, True]
    for name, array in kept["arrays"].items():
        found = again.found["arrays"][name]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found, array)
