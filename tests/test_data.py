"""Sources of batches: numbered datasets with hooks, tables, steps; and the data that callbacks get in predictions."""

import itertools
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import pytest
from test_training import Table

import mp_core as mp
from mp_core.training.batches import batches_of

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of torch

X = np.arange(12, dtype=np.float32).reshape(12, 1)


def _model(k=mp):
    model = k.Sequential([k.Input((1,)), k.layers.Dense(1, kernel_initializer="ones")])
    model.compile(k.optimizers.SGD(0.0), "mse")
    return model


class Noted:
    """What it was asked for: numbers of batches, and "begin" and "end"."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def on_epoch_begin(self):
        self.noted.append("begin")

    def on_epoch_end(self):
        self.noted.append("end")

    def __getitem__(self, index):
        self.noted.append(index)
        return X[:2] + index, X[:2]


class Sized(Noted, mp.utils.PyDataset):
    num_batches = 3


class Endless(Noted, mp.utils.PyDataset):
    num_batches = None


class OfKeras(Noted, keras.utils.PyDataset):
    num_batches = property(lambda self: 3)


class Plain(Noted):
    def __len__(self):
        return 3


EPOCH = ["begin", 0, 1, 2, "end"]


@pytest.mark.parametrize("kind", [Sized, OfKeras, Plain])
def test_hooks_run_around_epochs_evaluations_and_predictions(kind):
    data, model = kind(), _model()
    for run in (lambda: model.fit(data, epochs=2, shuffle=False, verbose=0), lambda: model.evaluate(data, verbose=0),
                lambda: model.predict(data, verbose=0)):  # fmt: skip
        run()
        assert data.noted == EPOCH * (len(data.noted) // 5) and data.noted
        data.noted.clear()
    model.fit(X, X, validation_data=data, epochs=2, verbose=0)
    assert data.noted == EPOCH * 2


@pytest.mark.parametrize("kind", [Sized, OfKeras, Plain])
def test_hooks_run_around_steps(kind):
    data, model = kind(), _model()
    model.fit(data, epochs=3, steps_per_epoch=2, shuffle=False, verbose=0)
    assert data.noted == ["begin", 0, 1, "end", "begin", 2, 0, "end", "begin", 1, 2, "end"]
    data.noted.clear()
    model.fit(X, X, validation_data=data, validation_steps=2, epochs=2, verbose=0)
    assert data.noted == ["begin", 0, 1, "end"] * 2
    data.noted.clear()
    model.evaluate(data, steps=1, verbose=0)
    model.predict(data, steps=1, verbose=0)
    assert data.noted == ["begin", 0, "end"] * 2


def test_data_without_an_end_go_on_from_epoch_to_epoch_and_begin_anew_for_each_validation():
    data, model = Endless(), _model()
    model.fit(data, epochs=2, steps_per_epoch=2, verbose=0)
    assert data.noted == ["begin", 0, 1, "end", "begin", 2, 3, "end"]
    data.noted.clear()
    model.fit(X, X, validation_data=data, validation_steps=2, epochs=2, verbose=0)
    assert data.noted == ["begin", 0, 1, "end"] * 2
    assert len(model.predict(data, steps=3, verbose=0)) == 6
    assert [x[0, 0] for x, _ in zip((x for x, _ in data), range(5), strict=False)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda m, d: m.fit(d), "steps_per_epoch"),
        (lambda m, d: m.fit(X, X, validation_data=d), "validation_steps"),
        (lambda m, d: m.evaluate(d), "steps"),
        (lambda m, d: m.predict(d), "steps"),
    ],
)
def test_data_without_an_end_need_a_number_of_steps(call, argument):
    model, data = _model(), Endless()
    with pytest.raises(ValueError, match=rf"`{argument}` must be given: .*`num_batches` is None"):
        call(model, data)
    assert data.noted == [] and int(model.optimizer.iterations) == 0


def test_a_dataset_needs_a_length_or_num_batches():
    class Neither(mp.utils.PyDataset):
        def __getitem__(self, index):
            return X

    with pytest.raises(NotImplementedError, match="must define `__len__` or the property `num_batches`"):
        _model().predict(Neither(), verbose=0)


class Sizes(keras.callbacks.Callback):
    """The numbers of batches and of samples in each that a callback meets."""

    def __init__(self):
        super().__init__()
        self.params, self.sizes = {}, []

    def on_train_batch_end(self, batch, logs=None):
        self.sizes.append(batch)

    def on_test_batch_end(self, batch, logs=None):
        self.sizes.append(batch)

    def on_predict_batch_end(self, batch, logs=None):
        self.sizes.append(len(logs["outputs"]))


@pytest.mark.filterwarnings("ignore:Your input ran out:UserWarning", "ignore:the data have 4 batches:UserWarning")
@pytest.mark.parametrize("steps", [1, 4, 5, 6])
def test_steps_without_a_batch_size_divide_arrays_as_in_keras(steps):
    found = []
    for k in (mp, keras):
        model, sizes = _model(k), Sizes()
        if 12 % steps == 0:
            model.fit(X, X, steps_per_epoch=steps, epochs=2, verbose=0, callbacks=[sizes])
        model.evaluate(X, X, steps=steps, verbose=0, callbacks=[sizes])
        model.predict(X, steps=steps, verbose=0, callbacks=[sizes])
        found.append(sizes.sizes)
    assert found[0] == found[1]


@pytest.mark.parametrize("call", ["evaluate", "predict", "validate"])
def test_fewer_batches_than_steps_are_told(call):
    model = _model()
    with pytest.warns(UserWarning, match=r"the data have 2 batches, fewer than `(validation_)?steps=3`"):
        if call == "validate":
            model.fit(X, X, validation_data=(X, X), validation_batch_size=6, validation_steps=3, verbose=0)
        else:
            getattr(model, call)(iter([(X, X)] * 2), steps=3, verbose=0)


def test_callbacks_of_a_prediction_get_what_those_of_keras_get():
    class Events(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.noted = []

        def on_predict_begin(self, logs=None):
            self.noted.append("begin")

        def on_predict_batch_begin(self, batch, logs=None):
            self.noted.append(batch)

        def on_predict_batch_end(self, batch, logs=None):
            self.noted.append((batch, {name: np.asarray(x).tolist() for name, x in logs.items()}))

        def on_predict_end(self, logs=None):
            self.noted.append("end")

    ours, theirs = Events(), Events()
    _model().predict(X, batch_size=5, verbose=0, callbacks=[ours])
    _model(keras).predict(X, batch_size=5, verbose=0, callbacks=[theirs])
    assert ours.noted == theirs.noted and ours.noted[2] == (0, {"outputs": [[0], [1], [2], [3], [4]]})


@pytest.mark.parametrize("batches", [lambda: (X,), lambda: (iter([(X[:5],), (X[5:10],), (X[10:],)]),)])
def test_a_callback_ends_a_prediction_or_an_evaluation(batches):
    class Ends(mp.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            self.model.stop_predicting = batch == 1

        def on_test_batch_end(self, batch, logs=None):
            self.model.stop_evaluating = batch == 1

    model, size = _model(), {"batch_size": 5} if isinstance(batches()[0], np.ndarray) else {}
    assert model.predict(*batches(), **size, verbose=0, callbacks=[Ends()]).tolist() == X[:10].tolist()
    assert model.predict(*batches(), **size, verbose=0).tolist() == X.tolist()
    assert model.evaluate(X, 0 * X, batch_size=5, verbose=0, callbacks=[Ends()]) == (X[:10] ** 2).mean()
    assert model.evaluate(X, 0 * X, batch_size=5, verbose=0) == pytest.approx((X**2).mean())


NA = type("NAType", (), {"__repr__": lambda self: "<NA>", "__float__": lambda self: 1 / 0})()
"""As pandas' marker of a missing value: neither a number, nor turned into one."""


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        ([[True, 2, 0.5], [False, 1, 1.5]], np.float32),
        ([[True, 2], [False, np.int8(1)]], np.int32),
        ([[True], [False]], np.bool_),
        ([1, np.int64(2), 3], np.int32),
        ([np.float64(0.5), True], np.float32),
    ],
)
def test_tables_of_columns_of_several_types_are_numbers(rows, dtype):
    (batch,) = batches_of(Table(np.array(rows, object))).epoch(0)
    np.testing.assert_array_equal(batch.x, np.array(rows, np.float64))
    assert batch.x.dtype == dtype


def test_a_model_trains_on_tables_with_bools_and_integers_with_missing_values_allowed():
    x, y = np.array([[True, 2, 0.5], [False, 1, 1.5]], object), np.array([1, 0], object)
    losses = []
    for data in ((Table(x), Table(y)), (x.astype(np.float32), y.astype(np.int32))):
        model = mp.Sequential([mp.Input((3,)), mp.layers.Dense(2, kernel_initializer="ones")])
        model.compile("sgd", mp.losses.SparseCategoricalCrossentropy(from_logits=True))
        losses.append(model.fit(*data, epochs=3, shuffle=False, verbose=0).history["loss"])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("bad", [NA, "1.5", None, 1j, [1]])
def test_tables_with_missing_values_or_texts_are_refused_by_name_and_place(bad):
    rows = np.array([[1, 2], [3, None]], object)
    rows[1, 1] = bad
    with pytest.raises(
        ValueError, match=r"`x` must be a table of numbers without missing ones; received .* at \(1, 1\)"
    ):
        batches_of(Table(rows))


MISNAMED = {
    "a text": (lambda m: m.predict("abc"), TypeError, r"`x` must be arrays, a sequence .* received 'abc'"),
    "None in a list": (lambda m: m.fit([X, None], X), TypeError, r"`x` must have arrays for all .* received None at 1"),
    "texts in a dict": (lambda m: m.fit({"a": X, "b": ["u"]}, X), TypeError, r"for all inputs; .* \['u'\] at 'b'"),
    "four parts": (lambda m: m.fit(iter([(X, X, X, X)])), ValueError, r"a batch of `x` must be .* received 4 parts"),
    "no inputs": (lambda m: m.fit(iter([(None, X)])), ValueError, r"a batch of `x` must be .* received \(None, array"),
    "an empty batch": (lambda m: m.fit(iter([()])), ValueError, r"a batch of `x` must be .* received \(\)"),
    "too many arrays": (lambda m: m.fit([X, X], X), (TypeError, ValueError), r"must be an array|arranged as"),
    "other lengths": (lambda m: m.fit(X, X[:5]), ValueError, r"equally many .* \{'x': \[12\], 'y': \[5\]\}"),
    "weights of another length": (
        lambda m: m.fit(X, X, sample_weight=X[:5, 0]), ValueError, r"'y': \[12\], 'sample_weight': \[5\]"),
    "unknown target": (lambda m: m.fit(X, {"a": X}), ValueError, r"`y` must be for the outputs output_1; received a"),
    "two targets": (lambda m: m.fit(X, [X, X]), ValueError, r"`y` must be for 1 outputs \(output_1\); received 2"),
    "NaN to validate": (
        lambda m: m.fit(X, X, validation_data=(X * np.nan, X)), ValueError, "in `validation_data` `x` must"),
    "four parts to validate": (
        lambda m: m.fit(X, X, validation_data=(X, X, X, X)), ValueError, "in `validation_data` there must be"),
    "steps that are none": (lambda m: m.fit(X, X, steps_per_epoch="2"), (TypeError, ValueError), r"`steps_per_epoch`"),
    "no steps to validate": (
        lambda m: m.fit(X, X, validation_data=(X, X), validation_steps=0), ValueError, r"`validation_steps`"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), MISNAMED.values(), ids=MISNAMED)
def test_errors_name_the_argument_and_what_came_and_nothing_is_trained(call, kind, message):
    model = _model()
    with pytest.raises(kind, match=message):
        call(model)
    assert int(model.optimizer.iterations) == 0


def test_an_iterable_whose_length_is_an_error_has_no_known_number_of_batches():
    class Loader:
        def __len__(self):
            raise TypeError("object of type 'Stream' has no len()")

        def __iter__(self):
            return iter([(X, X)] * 2)

    assert batches_of(Loader()).steps is None
    assert len(_model().fit(Loader(), verbose=0).history["loss"]) == 1


def test_a_py_dataset_without_a_number_of_batches_is_iterated_without_end():
    class Endless(mp.utils.PyDataset):
        def __getitem__(self, index):
            return index * index

    assert list(itertools.islice(Endless(), 4)) == [0, 1, 4, 9]
