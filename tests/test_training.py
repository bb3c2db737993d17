"""Training: data as batches, steps, loops, loss scales, and continuing after an interruption."""

import copy
import hashlib
import pickle
import signal
import sys
import textwrap

import numpy as np
import processes
import pytest

import mp_core as mp
from mp_core import callbacks, layers, optimizers
from mp_core.training import batches

rng = np.random.default_rng(0)
X = rng.standard_normal((100, 6)).astype(np.float32)
W = rng.standard_normal((6, 2)).astype(np.float32)
Y = X @ W


def model(policy="float32", units=2, seed=0):
    found = mp.Sequential([mp.Input((6,)), layers.Dense(8, "relu"), layers.Dense(units, dtype="float32")])
    found = found if policy == "float32" else found.with_policy(policy)
    state = np.random.default_rng(seed)
    found.set_weights([state.uniform(-0.5, 0.5, w.shape).astype(w.dtype) for w in found.get_weights()])
    return found


def compiled(optimizer="sgd", loss="mse", **options):
    found = model()
    found.compile(optimizer, loss, **options)
    return found


def digest(trained):
    return hashlib.sha256(b"".join(w.tobytes() for w in trained.get_weights())).hexdigest()


# ---- data


def _rows(data):
    return [(b.x.tolist(), None if b.y is None else b.y.tolist()) for b in data.epoch(0)]


@pytest.mark.parametrize("kind", ["arrays", "generator", "sequence", "list of batches"])
def test_batches_come_from_everything_that_keras_takes(kind):
    parts = [(X[i : i + 32], Y[i : i + 32]) for i in range(0, 100, 32)]

    class Parts:
        def __len__(self):
            return len(parts)

        def __getitem__(self, index):
            return parts[index]

    source = {
        "arrays": lambda: batches.batches_of(X, Y), "generator": lambda: batches.batches_of(part for part in parts),
        "sequence": lambda: batches.batches_of(Parts()), "list of batches": lambda: batches.batches_of(iter(parts)),
    }[kind]()  # fmt: skip
    assert _rows(source) == [(x.tolist(), y.tolist()) for x, y in parts]


class Table:
    """What is an array by `__array__` alone, as a table of pandas, which has rows and columns too."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array

    def __len__(self):
        return len(self.array)

    def __getitem__(self, name):
        raise KeyError(name)


def test_tables_of_other_libraries_are_arrays():
    first, second = compiled(), compiled()
    first.fit(X, Y, shuffle=False, verbose=0)
    second.fit(Table(X), Table(Y), shuffle=False, verbose=0)
    assert digest(first) == digest(second)
    assert second.evaluate(Table(X), Table(Y), verbose=0) == first.evaluate(X, Y, verbose=0)


def test_an_order_has_each_sample_once_and_depends_on_seed_and_epoch_alone():
    from mp_core.training.order import order_of

    order = order_of(lambda: 3)
    assert sorted(order(100, 0)) == list(range(100))
    np.testing.assert_array_equal(order(100, 5), order_of(lambda: 3)(100, 5))
    words = np.random.Philox(key=np.array([3, 5], np.uint64)).random_raw(100)
    np.testing.assert_array_equal(order(100, 5), np.argsort(words, kind="stable"))
    assert (order(100, 5) != order(100, 6)).any()


def test_weights_of_classes_become_weights_of_samples():
    labels = np.array([0, 2, 1, 2])
    data = batches.batches_of(X[:4], labels, class_weight={0: 2.0, 2: 0.5})
    (batch,) = data.epoch(0)
    assert batch.weights.tolist() == [2.0, 0.5, 1.0, 0.5]
    (hot,) = batches.batches_of(X[:4], np.eye(3)[labels], class_weight={0: 2.0, 2: 0.5}).epoch(0)
    (far,) = batches.batches_of(X[:4], labels, class_weight={2**31 - 1: 3.0}).epoch(0)
    assert far.weights.tolist() == [1.0] * 4
    assert hot.weights.tolist() == batch.weights.tolist()


def test_a_split_takes_the_last_samples():
    trained, held = batches.split(batches.Batch(X, Y), 0.25)
    np.testing.assert_array_equal(trained.x, X[:75])
    np.testing.assert_array_equal(held.y, Y[75:])


# ---- steps


def test_a_step_is_that_of_the_formula():
    trained = compiled(optimizers.SGD(0.1))
    w1, b1, w2, b2 = (w.astype(np.float64) for w in trained.get_weights())
    hidden = np.maximum(X @ w1 + b1, 0)
    d = 2 * (hidden @ w2 + b2 - Y) / Y.size
    loss = np.mean((hidden @ w2 + b2 - Y) ** 2)
    below = (d @ w2.T) * (hidden > 0)
    assert trained.train_on_batch(X, Y) == pytest.approx(loss, rel=1e-5)
    want = w1 - 0.1 * X.T @ below, b1 - 0.1 * below.sum(0), w2 - 0.1 * hidden.T @ d, b2 - 0.1 * d.sum(0)
    for got, expected in zip(trained.get_weights(), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_weights_of_samples_count_in_the_loss():
    trained, weights = compiled(), rng.random(100).astype(np.float32)
    errors = ((trained.predict(X, verbose=0) - Y) ** 2).mean(1)
    assert trained.test_on_batch(X, Y, sample_weight=weights) == pytest.approx((errors * weights).mean(), rel=1e-5)
    trained.reset_metrics()
    assert trained.train_on_batch(X, Y, sample_weight=weights) == pytest.approx((errors * weights).mean(), rel=1e-5)


def test_fit_runs_epochs_batches_and_validation_in_keras_order():
    calls, trained = [], compiled()
    note = {name: lambda *args, name=name: calls.append(name[3:]) for name in callbacks.base.EVENTS}
    history = trained.fit(
        X, Y, batch_size=50, epochs=2, validation_data=(X[:10], Y[:10]), validation_freq=2, verbose=0,
        callbacks=[callbacks.LambdaCallback(**note)],
    )  # fmt: skip
    batch = ["train_batch_begin", "train_batch_end"] * 2
    test = ["test_begin", "test_batch_begin", "test_batch_end", "test_end"]
    want = ["train_begin", "epoch_begin", *batch, "epoch_end", "epoch_begin", *batch, *test, "epoch_end", "train_end"]
    assert calls == want
    assert {name: len(values) for name, values in history.history.items()} == {"loss": 2, "val_loss": 1}


def test_the_loss_of_an_epoch_is_the_mean_of_its_samples():
    trained = compiled(optimizers.SGD(0.0))
    (loss,) = trained.fit(X, Y, batch_size=32, verbose=0, shuffle=False).history["loss"]
    assert loss == pytest.approx(np.mean((trained.predict(X, verbose=0) - Y) ** 2), rel=1e-5)
    assert trained.evaluate(X, Y, verbose=0) == pytest.approx(loss, rel=1e-6)
    assert trained.evaluate(X, Y, verbose=0, return_dict=True) == {"loss": pytest.approx(loss, rel=1e-6)}


def test_steps_per_epoch_go_through_the_data_and_begin_again():
    seen = []

    class Seen(mp.Model):
        def train_step(self, data):
            seen.extend(data[0][:, 0].tolist())
            return super().train_step(data)

    start = mp.Input((6,))
    trained = Seen(start, layers.Dense(2)(start))
    trained.compile("sgd", "mse")
    trained.fit(X, Y, batch_size=25, epochs=2, steps_per_epoch=3, shuffle=False, verbose=0)
    assert seen == [*X[:, 0].tolist(), *X[:50, 0].tolist()]


def test_the_seed_of_the_process_gives_the_weights_again():
    digests = set()
    for seed in (5, 5, 6):
        mp.random.set_seed(seed)
        trained = mp.Sequential([
            mp.Input((6,)), layers.Dense(8, kernel_initializer="he_normal"), layers.Dropout(0.5), layers.Dense(2)
        ])  # fmt: skip
        trained.compile("adam", "mse")
        trained.fit(X, Y, epochs=2, verbose=0)
        digests.add(digest(trained))
    mp.random.set_seed(None)
    assert len(digests) == 2
    with pytest.raises(ValueError, match="`seed` must be from 0"):
        mp.random.set_seed(-1)


@pytest.mark.parametrize("name", ["glorot_uniform", "glorot_normal", "he_uniform", "he_normal", "lecun_normal"])
def test_initial_weights_have_the_variance_of_keras(name):
    layer = layers.Dense(300, kernel_initializer=name)
    layer.build((None, 200))
    want = {"glorot": 2 / 500, "he": 2 / 200, "lecun": 1 / 200}[name.partition("_")[0]]
    kernel = layer.kernel.numpy().astype(np.float64)
    assert kernel.var() == pytest.approx(want, rel=0.03)
    assert abs(kernel.mean()) < 4 * np.sqrt(want / kernel.size)


def test_a_shuffled_fit_is_the_same_again():
    digests = set()
    for _ in range(2):
        mp.random.set_seed(1)
        trained = compiled("adam")
        trained.fit(X, Y, epochs=3, verbose=0)
        digests.add(digest(trained))
    mp.random.set_seed(None)
    assert len(digests) == 1


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_weights_do_not_depend_on_the_number_of_threads_or_the_instruction_set(policy):
    digests = set()
    for isa, threads in [(mp.config.isa(), 1), (mp.config.isa(), 2), (mp.config.isa(), 4), ("avx2", 2), ("scalar", 1)]:
        if isa not in mp.config.available_isas():
            continue
        before = mp.config.isa()
        mp.config.set_isa(isa)
        try:
            with mp.config.num_threads(threads), mp.config.reproducible():
                mp.random.set_seed(1)
                trained = model(policy)
                trained.compile("adam", "mse")
                trained.fit(X, Y, epochs=2, verbose=0)
                digests.add(digest(trained))
        finally:
            mp.config.set_isa(before)
    assert len(digests) == 1


def test_several_outputs_have_losses_weights_and_names():
    start = mp.Input((6,))
    hidden = layers.Dense(8, "relu")(start)
    outputs = [layers.Dense(2, name="one")(hidden), layers.Dense(1, name="other")(hidden)]
    trained = mp.Model(start, outputs)
    trained.compile("sgd", {"one": "mse", "other": "mae"}, loss_weights={"one": 0.5})
    first, second = trained.predict(X, verbose=0)
    logs = trained.evaluate(X, {"one": Y, "other": Y[:, :1]}, batch_size=100, verbose=0, return_dict=True)
    one, other = 0.5 * np.mean((first - Y) ** 2), np.mean(np.abs(second - Y[:, :1]))
    assert logs["loss"] == pytest.approx(one + other, rel=1e-5)
    assert set(logs) == {"loss", "one_loss", "other_loss"}
    history = trained.fit(X, [Y, Y[:, :1]], epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0]


def test_metrics_are_those_of_the_targets_and_count_all_batches():
    labels = rng.integers(0, 2, 100)
    trained = model()
    trained.compile("sgd", mp.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    logs = trained.evaluate(X, labels, batch_size=32, verbose=0, return_dict=True)
    assert logs["accuracy"] == pytest.approx(np.mean(trained.predict(X, verbose=0).argmax(1) == labels))
    assert trained.metrics_names == ["loss", "accuracy"]
    weights = (labels == 1).astype(np.float32)
    trained.compile("sgd", "mse", metrics=["mae"], weighted_metrics=[mp.metrics.MeanAbsoluteError(name="weighted")])
    logs = trained.evaluate(X, Y, sample_weight=weights, verbose=0, return_dict=True)
    errors = np.abs(trained.predict(X, verbose=0) - Y).mean(1)
    assert logs["mae"] == pytest.approx(errors.mean(), rel=1e-5)
    assert logs["weighted"] == pytest.approx(errors[labels == 1].mean(), rel=1e-5)


def test_a_subclass_may_step_and_compute_losses_in_its_own_way():
    class Own(mp.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return mp.mean((y_pred - y) * (y_pred - y)) * np.float32(2)

    start = mp.Input((6,))
    trained = Own(start, layers.Dense(2)(start))
    trained.compile("sgd")
    want = 2 * np.mean((trained.predict(X, verbose=0) - Y) ** 2)
    assert trained.train_on_batch(X, Y) == pytest.approx(want, rel=1e-5)


def test_what_layers_add_to_the_loss_counts():
    class Penalty(layers.Layer):
        def call(self, x):
            self.add_loss(mp.mean(x * x))
            return x

    start = mp.Input((6,))
    trained = mp.Model(start, Penalty()(layers.Dense(2)(start)))
    trained.compile("sgd", "mse")
    outputs = trained.predict(X, verbose=0)
    want = np.mean((outputs - Y) ** 2) + np.mean(outputs**2)
    assert trained.test_on_batch(X, Y) == pytest.approx(want, rel=1e-5)
    trained.reset_metrics()
    assert trained.train_on_batch(X, Y) == pytest.approx(want, rel=1e-5)


def test_frozen_layers_do_not_move():
    trained = model()
    trained.layers[0].trainable = False
    trained.compile("sgd", "mse")
    before = trained.get_weights()
    trained.fit(X, Y, verbose=0)
    moved = [not np.array_equal(now, then) for now, then in zip(trained.get_weights(), before, strict=True)]
    assert moved == [False, False, True, True]


# ---- the loss scale


def test_the_optimizer_is_wrapped_if_the_name_of_the_policy_is_mixed_float16():
    for policy, options, wraps in (
        ("mixed_float16", {}, True), ("mixed_float16", {"auto_scale_loss": False}, False),
        ("mixed_bfloat16", {}, False), ("float32", {}, False), ("float16", {}, False),
    ):  # fmt: skip
        trained = mp.Sequential([mp.Input((6,)), layers.Dense(2)], dtype=policy)
        trained.compile("sgd", "mse", **options)
        assert isinstance(trained.optimizer, optimizers.LossScaleOptimizer) == wraps
    inner = optimizers.LossScaleOptimizer(optimizers.SGD(), initial_scale=8.0)
    trained.compile(inner, "mse")
    assert trained.optimizer is inner


def test_a_step_with_an_infinite_gradient_is_skipped_and_halves_the_scale():
    trained = model("mixed_float16")
    trained.compile(optimizers.LossScaleOptimizer(optimizers.SGD(0.01), 2.0**40), "mse")
    before = digest(trained)
    trained.train_on_batch(X, Y)
    assert trained.optimizer.dynamic_scale == 2.0**39 and int(trained.optimizer.iterations) == 0
    assert digest(trained) == before
    for _ in range(40):
        trained.train_on_batch(X, Y)
    assert digest(trained) != before


def test_loss_scaling_prevents_underflow():  # as Keras' test of this name
    def stack():
        parts = [layers.Dense(1, "sigmoid", dtype="mixed_float16", kernel_initializer="ones") for _ in range(15)]
        return mp.Sequential([mp.Input((1,)), *parts], dtype="mixed_float16")

    x, y = np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32)
    for scales, moves in ((False, False), (True, True)):
        trained = stack()
        optimizer = optimizers.SGD(1e9)
        if scales:
            optimizer = optimizers.LossScaleOptimizer(optimizer)
        trained.compile(optimizer, "mse", auto_scale_loss=False)
        before = trained.layers[0].kernel.numpy()
        for _ in range(8):  # a step with infinite gradients is skipped
            trained.train_on_batch(x, y)
            if int(trained.optimizer.iterations):
                break
        assert (not np.array_equal(trained.layers[0].kernel.numpy(), before)) == moves


# ---- going on


def _interrupted(tmp_path, **options):
    class Stop(callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model._training_state.place == (1, 2):
                raise KeyboardInterrupt

    backup = callbacks.BackupAndRestore(tmp_path / "backup", save_freq=1)
    mp.random.set_seed(1)
    trained = compiled("adam")
    with pytest.raises(KeyboardInterrupt):
        trained.fit(X, Y, callbacks=[backup, Stop()], **options)
    trained = compiled("adam")
    history = trained.fit(X, Y, callbacks=[callbacks.BackupAndRestore(tmp_path / "backup")], **options)
    return trained, history


@pytest.mark.parametrize("options", [{}, {"steps_per_epoch": 3}])
def test_going_on_equals_not_having_stopped(tmp_path, options):
    options |= {"epochs": 3, "batch_size": 20, "verbose": 0}
    mp.random.set_seed(1)
    whole = compiled("adam")
    want = whole.fit(X, Y, **options)
    trained, history = _interrupted(tmp_path, **options)
    assert digest(trained) == digest(whole)
    assert (history.epoch, history.history) == (want.epoch, want.history)
    assert not (tmp_path / "backup").exists()


SCRIPT = """
    import sys, os, signal, hashlib, numpy as np, mp_core as mp
    from mp_core import callbacks, layers
    mp.random.set_seed(4 if sys.argv[1] == "again" else 3)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 6)).astype(np.float32)
    y = x @ rng.standard_normal((6, 2)).astype(np.float32)
    model = mp.Sequential([mp.Input((6,)), layers.Dense(8, "relu"), layers.Dropout(0.2),
                           layers.Dense(2, dtype="float32")])
    model = model.with_policy("mixed_float16")
    state = np.random.default_rng(1)
    model.set_weights([state.uniform(-0.5, 0.5, w.shape) for w in model.get_weights()])
    model.compile(mp.optimizers.LossScaleOptimizer(mp.optimizers.Adam(0.01), 2.0**30, 5), "mse")
    if sys.argv[1] == "killed":
        kill = lambda batch, logs: model._training_state.place == (1, 3) and os.kill(os.getpid(), signal.SIGKILL)
        extra = [callbacks.BackupAndRestore("backup", save_freq=2), callbacks.LambdaCallback(on_train_batch_end=kill)]
    else:
        extra = [callbacks.BackupAndRestore("backup", save_freq=2)] if sys.argv[1] == "again" else []
    model.fit(x, y, epochs=3, batch_size=16, verbose=0, callbacks=extra)
    print(hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest(), model.optimizer.dynamic_scale)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_process_is_gone_on_with_bit_for_bit(tmp_path):
    def run(how):
        command = [sys.executable, "-c", textwrap.dedent(SCRIPT), how]
        return processes.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run("killed").returncode == -signal.SIGKILL
    again, whole = run("again"), run("whole")
    assert again.returncode == whole.returncode == 0, again.stderr + whole.stderr
    assert again.stdout == whole.stdout


def test_a_compiled_model_goes_through_a_file_with_its_optimizer(tmp_path):
    trained = model()
    trained.compile(optimizers.Adam(0.01), "mse", loss_weights=[0.5])
    trained.fit(X, Y, verbose=0)
    trained.save(tmp_path / "m.keras")
    again = mp.load_model(tmp_path / "m.keras")
    for each in (trained, again):
        each.fit(X, Y, epochs=2, shuffle=False, verbose=0)
    assert digest(again) == digest(trained)
    assert not mp.load_model(tmp_path / "m.keras", compile=False).compiled


@pytest.mark.parametrize("copied", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_copy_of_a_compiled_model_goes_on_like_the_original(policy, copied):
    trained = model(policy)
    trained.compile(optimizers.Adam(0.01, use_ema=True), "mse", metrics=["mae"])
    trained.fit(X, Y, verbose=0)
    other = copied(trained)
    for each in (trained, other):
        each.fit(X, Y, epochs=2, verbose=0)
    assert digest(other) == digest(trained)


# ---- callbacks that interfere


def test_a_callback_may_compile_the_model_anew_between_epochs():
    class Changes(callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.compile(optimizers.SGD(0.0), "mae")

    trained = compiled()
    history = trained.fit(X, Y, epochs=3, callbacks=[Changes()], verbose=0).history["loss"]
    assert (
        history[1:] == pytest.approx([trained.evaluate(X, Y, verbose=0)] * 2, rel=1e-5)
        and int(trained.optimizer.iterations) == 2 * 4
    )


def test_data_that_end_early_are_told():
    with pytest.warns(UserWarning, match="fewer batches than `steps_per_epoch=5`"):
        compiled().fit(iter([(X, Y)] * 3), steps_per_epoch=5, verbose=0)


# ---- bad input


def _unchanged(call, message, trained):
    before = digest(trained)
    with pytest.raises((TypeError, ValueError, IndexError), match=message):
        call()
    assert digest(trained) == before


LABELS = np.arange(100) % 3
BAD = {
    "not compiled": (lambda m: model().fit(X, Y), "call `compile` first"),
    "other samples": (lambda m: m.fit(X, Y[:50]), "equally many samples"),
    "NaN in x": (lambda m: m.fit(np.where(X > 2, np.nan, X), Y), "`x` must have no NaN; received one at index"),
    "NaN in y": (lambda m: m.fit(X, np.where(Y > 2, np.nan, Y)), "`y` must have no NaN"),
    "targets of another shape": (lambda m: m.fit(X, np.ones((100, 3))), "'mean_squared_error' does not fit output"),
    "no targets": (lambda m: m.fit(X, verbose=0), "needs targets"),
    "inputs of another shape": (lambda m: m.fit(X[:, :3], Y), "shape"),
    "y beside batches": (lambda m: m.fit(iter([(X, Y)]), Y), "`y` must be None"),
    "no batch": (lambda m: m.fit(iter(()), verbose=0), "no batch for this epoch"),
    "a split of all": (lambda m: m.fit(X, Y, validation_split=1.5), "`validation_split`"),
    "both weights": (lambda m: m.fit(X, Y, class_weight={0: 1}, sample_weight=np.ones(100)), "exclude each other"),
    "a weight of a class that is no number": (
        lambda m: m.fit(X, LABELS, class_weight={0: np.nan}), "dict of class number and finite weight"),
    "a class beyond all numbers": (lambda m: m.fit(X, LABELS, class_weight={2**40: 1}), "dict of class number"),
    "weights of classes beside infinity": (
        lambda m: m.fit(X, np.full((len(X), 1), np.inf, np.float32), class_weight={0: 1}),
        "targets that are class numbers",
    ),
    "weights of classes beside numbers": (lambda m: m.fit(X, Y[:, :1], class_weight={0: 1}), "class numbers"),
    "weights of classes beside images": (
        lambda m: m.fit(X, np.ones((100, 2, 2)), class_weight={0: 1}), "needs targets that are one array"),
    "no data": (lambda m: m.fit(None, Y), "`x` must be arrays, .* received None"),
    "no samples": (lambda m: m.fit(X[:0], Y[:0]), "`x` must have at least one sample"),
    "no samples of a batch": (lambda m: m.train_on_batch(X[:0], Y[:0]), "`x` must have at least one sample"),
    "a class that is none": (lambda m: m.train_on_batch(X, LABELS + 1), "`y` has an integer that is not a class"),
    "a callback that is a class": (lambda m: m.fit(X, Y, callbacks=[callbacks.History]), "list of Callback; received"),
    "epochs": (lambda m: m.fit(X, Y, epochs=1.5), "`epochs`"),
    "batch size": (lambda m: m.fit(X, Y, batch_size=0), "`batch_size`"),
    "an optimizer": (lambda m: m.compile("none", "mse"), "none"),
    "a loss": (lambda m: m.compile("sgd", 3), "loss"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_and_changes_no_weight(name):
    call, message = BAD[name]
    trained = compiled()
    trained.fit(X, Y, verbose=0)
    if name == "a class that is none":
        trained.compile("sgd", mp.losses.SparseCategoricalCrossentropy(from_logits=True))

    def run():
        call(trained)
        trained.fit(X, Y, verbose=0)  # what `compile` takes may be found wrong at the first step

    _unchanged(run, message, trained)


def test_an_optimizer_for_other_variables_is_refused():
    other = compiled()
    other.fit(X, Y, verbose=0)
    trained = model()
    trained.compile(other.optimizer, "mse")
    _unchanged(lambda: trained.fit(X, Y, verbose=0), "Unknown variable", trained)


def test_a_state_of_another_model_is_refused(tmp_path):
    trained = compiled()
    trained.fit(X, Y, verbose=0)
    trained.save_training_state(tmp_path / "state")
    other = model(units=3)
    other.compile("sgd", "mse")
    _unchanged(lambda: other.load_training_state(tmp_path / "state"), "is of another model", other)
    (tmp_path / "bad").write_bytes(b"nothing")
    _unchanged(lambda: trained.load_training_state(tmp_path / "bad"), "must be a file of save_training_state", trained)


def test_predict_and_the_import_load_no_gradients():
    code = (
        "import sys, numpy as np, mp_core as mp; m = mp.Sequential([mp.Input((3,)), mp.layers.Dense(2)]); "
        "m.predict(np.ones((70, 3)), verbose=0); "
        "print([n for n in sys.modules if n.startswith(('mp_core.ops.gradients', 'mp_core.training.optimizers',"
        " 'mp_core.training.losses'))])"
    )
    assert processes.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# ---- the face of tf.keras


def test_the_optimizer_is_wrapped_by_the_rule_of_the_generation_of_the_policy():
    from mp_core import tf_keras
    from mp_core.tf_keras.mixed_precision import experimental

    for policy, scale in (
        (experimental.Policy("mixed_float16", loss_scale=8.0), 8.0), (experimental.Policy("mixed_float16"), 2.0**15),
        (experimental.Policy("mixed_float16", loss_scale=None), None), ("mixed_float16", 2.0**15), ("float32", None),
        (experimental.Policy("float32", loss_scale=4.0), 4.0),
    ):  # fmt: skip
        start = tf_keras.Input((6,))
        dense = tf_keras.layers.Dense(2, dtype="mixed_float16" if scale else "float32")
        trained = tf_keras.Model(start, dense(start), dtype=policy)
        trained.compile(optimizers.SGD(0.01), "mse")
        found = getattr(trained.optimizer, "loss_scale", None)
        assert (None if found is None else float(found)) == scale
        before = trained.evaluate(X, Y, verbose=0)
        trained.fit(X, Y, epochs=3, verbose=0)
        assert trained.evaluate(X, Y, verbose=0) < before
        assert int(trained.optimizer.iterations) == 12


def test_a_stack_of_tf_keras_trains():
    from mp_core import tf_keras

    trained = tf_keras.Sequential([tf_keras.layers.Dense(8, activation="relu"), tf_keras.layers.Dense(2)])
    trained.compile("adam", "mse")
    losses = trained.fit(X, Y, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_regularizers_count_in_the_loss_and_move_the_weights():
    start = mp.Input((6,))
    kernel = layers.Dense(
        2, kernel_regularizer="l2", activity_regularizer=mp.regularizers.L1(0.01), dtype="mixed_bfloat16"
    )
    trained = mp.Model(start, kernel(start))
    trained.compile(optimizers.SGD(0.1), "mse")
    outputs = trained.predict(X, verbose=0).astype(np.float64)
    want = ((outputs - Y) ** 2).mean() + 0.01 * (kernel.kernel.numpy() ** 2).sum() + 0.01 * np.abs(outputs).sum() / 100
    assert trained.test_on_batch(X, Y) == pytest.approx(want, rel=1e-3)
    trained.reset_metrics()
    assert trained.train_on_batch(X, Y) == pytest.approx(want, rel=1e-3)
