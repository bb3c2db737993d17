"""Modified states of training and files of weights: an error, and the model keeps its bits."""

import json
import os
import socket
import sys

import numpy as np
import pytest

import mp_core as mp
from mp_core import callbacks, layers, optimizers
from mp_core.files import hdf5
from mp_core.interop.keras import load_keras

rng = np.random.default_rng(7)
X, Y = rng.standard_normal((40, 4)).astype(np.float32), rng.standard_normal((40, 2)).astype(np.float32)


def model(optimizer=None, policy=None):
    found = mp.Sequential([mp.Input((4,)), layers.Dense(8, "tanh", dtype=policy), layers.Dropout(0.5), layers.Dense(2)])
    optimizer = optimizers.LossScaleOptimizer(optimizers.Adam(0.01, use_ema=True)) if optimizer is None else optimizer
    found.compile(optimizer, "mse", metrics=["mae"])
    return found


class Save(callbacks.Callback):
    runs_last = True

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.save_training_state(self.path)
            self.model.stop_training = True


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return the state of a training that was interrupted in the middle of an epoch."""
    path = tmp_path_factory.mktemp("state") / "training.state"
    listed = [callbacks.EarlyStopping("loss", restore_best_weights=True), Save(path)]
    model().fit(X, Y, batch_size=10, epochs=3, verbose=0, callbacks=listed)
    return path


@pytest.fixture
def trained():
    found = model()
    found.fit(X, Y, batch_size=10, epochs=1, verbose=0)
    return found


def bits(trained):
    """Return all that a state holds of a model, as bytes."""
    compiled, optimizer = trained._training_state, trained.optimizer
    store = {}
    optimizer.save_own_variables(store)
    metrics = [v.numpy().tobytes() for _, metric in compiled.named_metrics for v in metric.variables]
    weights = [(v.version, v.numpy().tobytes()) for v in trained.variables]
    means = [(tracker.name, *tracker.state) for tracker in compiled.losses]
    kept = {name: np.asarray(x).tobytes() for name, x in store.items()}
    return weights, kept, metrics, means, compiled.place, compiled.seed, compiled.last_logs, compiled.resumed


def leaves_of(value, where=()):
    """Yield the place of each value in a tree of JSON."""
    yield where
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from leaves_of(part, (*where, key))


def changed(path, target, where, value):
    """Write a state with one value of its JSON replaced."""
    tree = hdf5.read(path.read_bytes())
    about = json.loads(bytes(tree["about"]))
    part = about
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    tree["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    with open(target, "wb") as file:
        hdf5.write(file, tree)
    return target


HOSTILE = (None, -1, 0.5, float("nan"), 10**30, True, "x", [], {}, {"__array__": [0, "float64"]}, {"__array__": 7})
TAKEN = ("logs", "callbacks", "stopped", "means", "metrics", "example")
"""Parts of a state that may have some of these values: means may be any number, callbacks look at theirs, and of an
example only shapes and dtypes matter."""


@pytest.mark.slow
@pytest.mark.parametrize("first", [False, True], ids=["trained", "new"])
def test_no_changed_value_changes_a_part_of_the_model(path, trained, tmp_path, first):
    about = json.loads(bytes(hdf5.read(path.read_bytes())["about"]))
    trained.load_training_state(path)
    for where in [*leaves_of(about)][1:]:
        if not first and where[1:2] == ("example",):
            continue  # metrics are made already
        for value in HOSTILE:
            target = changed(path, tmp_path / "state", where, value)
            trained = model() if first else trained
            before = bits(trained)
            try:
                trained.load_training_state(target)
            except ValueError as error:
                assert str(target) in str(error)
                assert bits(trained) == before, (where, value)
            else:
                assert where[1] in TAKEN, (where, value)


def arrays():
    return {
        "transposed": lambda x: np.ascontiguousarray(x.T) if x.ndim > 1 and x.shape != x.T.shape else None,
        "longer": lambda x: np.concatenate([np.ravel(x), np.ravel(x)]),
        "double": lambda x: x.astype(np.float64) if x.dtype == np.float32 else x.astype(np.float32),
        "integers": lambda x: x.astype(np.int8),
        "a group": lambda x: {"0": x},
    }


@pytest.mark.parametrize("change", arrays())
def test_each_array_has_the_shape_and_dtype_of_its_variable(path, trained, tmp_path, change):
    tree, before = hdf5.read(path.read_bytes()), bits(trained)
    listed = json.loads(bytes(tree["about"]))["state"]
    of_callbacks = {each["__array__"][0] for _, own in listed["callbacks"] for each in own.get("best_weights") or []}
    count = 0
    for name, x in tree["arrays"].items():
        value = arrays()[change](np.asarray(x))
        if value is None or int(name) in of_callbacks:
            continue
        with open(tmp_path / "state", "wb") as file:
            hdf5.write(file, tree | {"arrays": tree["arrays"] | {name: value}})
        with pytest.raises(ValueError, match=r"`filepath` must be a file of "):
            trained.load_training_state(tmp_path / "state")
        assert bits(trained) == before, (name, change)
        count += 1
    assert count >= 4


def test_an_epoch_behind_the_last_one_calls_no_hooks(path, trained, tmp_path):
    class Data:
        calls = 0

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return X[10 * index : 10 * index + 10], Y[10 * index : 10 * index + 10]

        def on_epoch_end(self):
            self.calls += 1

    trained.load_training_state(changed(path, tmp_path / "state", ("state", "place"), [10**12, 0]))
    trained.stop_training, data = False, Data()
    with pytest.warns(UserWarning) as found:
        trained.fit(data, epochs=3, verbose=0)
    assert any("nothing is trained: 1000000000000 epochs are over, `epochs` is 3" in str(w.message) for w in found)
    assert not data.calls


@pytest.mark.parametrize("number", [99, 1, 2.0, True, None, "2"])
def test_another_format_is_refused(path, trained, tmp_path, number):
    with pytest.raises(ValueError, match=r"its format is .*; only 2 can be read"):
        trained.load_training_state(changed(path, tmp_path / "state", ("format",), number))


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (0, np.int32(-3), "Variable 'iteration' of optimizer 'adam' must be at least 0"),
        (0, np.float32(2.5), "must be integers from"),
        (0, np.float32(np.nan), "must be integers from"),
        (1, np.float32(np.inf), "Variable 'learning_rate' of optimizer 'adam' must be finite"),
    ],
)
def test_counts_and_rates_of_an_optimizer_are_possible_ones(index, value, message):
    found = model(optimizers.Adam(0.01))
    found.fit(X, Y, epochs=1, verbose=0)
    store, before = {}, bits(found)
    found.optimizer.save_own_variables(store)
    values = [value if place == index else x for place, x in enumerate(store.values())]
    with pytest.raises((TypeError, ValueError), match=message):
        found.optimizer.load_own_variables(store | {str(index): value})
    with pytest.raises((TypeError, ValueError), match=message):
        found.optimizer.set_weights(values)
    assert bits(found) == before


@pytest.mark.parametrize("scale", [np.float32(np.nan), np.float32(0), np.float32(-1)])
@pytest.mark.parametrize("counter", [np.int32(0), np.int32(-1), np.float32(0.5)])
def test_a_loss_scale_is_a_possible_one(trained, scale, counter):
    store, before = {}, bits(trained)
    trained.optimizer.save_own_variables(store)
    with pytest.raises((TypeError, ValueError)):
        trained.optimizer.load_own_variables(store | {"2": counter, "3": scale})
    assert bits(trained) == before


def test_callbacks_take_their_states_all_or_none(path, tmp_path):
    class Refuses(callbacks.Callback):
        state_attributes = ("seen",)
        seen = 0

        def set_state(self, state):
            raise KeyError("seen")

    first, last = callbacks.EarlyStopping("loss"), Refuses()
    listed = callbacks.CallbackList([first, last], model=model())
    state = first.get_state() | {"wait": 3}
    with pytest.raises(ValueError, match="does not fit callback Refuses"):
        listed.set_states([["EarlyStopping", state], ["Refuses", {"seen": 1}]])
    assert first.wait == 0
    turned = [np.zeros((8, 4), np.float32)]
    for changes in {"wait": -1}, {"wait": 0.5}, {"best": "x"}, {"best_weights": turned}, {"best_weights": 3}:
        with pytest.raises(ValueError, match="does not fit callback EarlyStopping"):
            listed.set_states([["EarlyStopping", state | changes]])
        assert first.get_state() == first.get_state() | {"wait": 0, "best": None, "best_weights": None}


@pytest.mark.parametrize("state", [{"names": 3}, {"start": -1}, {"start": "x"}, {"lines": 7}, {"lines": None}])
def test_a_log_keeps_its_lines_if_its_state_does_not_fit(tmp_path, state):
    log = callbacks.CSVLogger(tmp_path / "log.csv")
    log.on_train_begin()
    log.on_epoch_end(0, {"loss": 1.0})
    before = (tmp_path / "log.csv").read_bytes()
    with pytest.raises(ValueError, match="does not fit callback CSVLogger"):
        callbacks.CallbackList([log]).set_states([["CSVLogger", log.get_state() | state]])
    assert (tmp_path / "log.csv").read_bytes() == before


# ---- weights


def test_fractions_for_a_variable_of_integers_are_refused_before_any_weight_has_changed(tmp_path):
    found = mp.Sequential([mp.Input((4,)), layers.Dense(3), layers.Dense(2)])
    found.layers[1].quantize("int8")
    found.save_weights(tmp_path / "m.weights.h5")
    tree = hdf5.read((tmp_path / "m.weights.h5").read_bytes())
    stored = tree["layers"]["dense_1"]["vars"]
    stored["0"] = stored["0"] + np.float32(0.5)
    with open(tmp_path / "m.weights.h5", "wb") as file:
        hdf5.write(file, tree)
    before = [(v.version, v.numpy().tobytes()) for v in found.weights]
    with pytest.raises(ValueError, match=r"must be a file of this model; .*m\.weights\.h5: .*must be integers"):
        found.load_weights(tmp_path / "m.weights.h5")
    assert [(v.version, v.numpy().tobytes()) for v in found.weights] == before


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
def test_a_layer_that_refuses_its_weights_leaves_all_of_them(tmp_path, suffix):
    @mp.saving.register_keras_serializable("hostile")
    class Refuses(layers.Dense):
        def load_own_variables(self, store):
            self.kernel.assign(np.zeros(self.kernel.shape))
            raise ValueError("not these")

    found = mp.Sequential([mp.Input((4,)), layers.Dense(8), Refuses(2)])
    found.compile("sgd", "mse")
    (found.save if suffix == ".keras" else found.save_weights)(tmp_path / f"m{suffix}")
    found.set_weights([w + 1 for w in found.get_weights()])
    before = [(v.version, v.numpy().tobytes()) for v in found.weights]
    with pytest.raises(ValueError, match="not these"):
        found.load_weights(tmp_path / f"m{suffix}")
    assert [(v.version, v.numpy().tobytes()) for v in found.weights] == before


def _socket(path):
    with socket.socket(socket.AF_UNIX) as found:
        found.bind(path)


NO_FILES = {
    "pipe": os.mkfifo if hasattr(os, "mkfifo") else None,
    "device": lambda path: os.symlink("/dev/zero", path),
    "folder": os.mkdir,
    "socket": _socket,
}
READERS = {
    "x.weights.h5": lambda path: model().load_weights(path),
    "x.keras": lambda path: model().load_weights(path),
    "y.keras": load_keras,
    "z.keras": mp.load_model,
    "state": lambda path: model().load_training_state(path),
    "training.state": lambda path: model().fit(
        X, Y, verbose=0, callbacks=[callbacks.BackupAndRestore(path.parent, double_checkpoint=True)]
    ),
}


@pytest.mark.skipif(sys.platform == "win32", reason="needs pipes and devices in the file system")
@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_regular_file_is_refused_by_its_name(tmp_path, monkeypatch, name, kind):
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    NO_FILES[kind](name)
    with pytest.raises((ValueError, IsADirectoryError), match=rf"{name}.*(is not a regular file|$)"):
        READERS[name](tmp_path / name)
