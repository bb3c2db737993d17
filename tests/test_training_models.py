"""Models made by calling layers, and their parts, compared with NumPy."""

import copy
import pickle
import sys

import numpy as np
import processes
import pytest

import mp_core as mp
from mp_core import layers
from mp_core.layers.plans.backward import GradientPlan

rng = np.random.default_rng(0)


def _x(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def _two_towers():
    a, b = mp.Input((3,), name="a"), mp.Input((3,), name="b")
    shared = layers.Dense(4, name="shared")
    one, other = shared(a), shared(b)
    return mp.Model({"a": a, "b": b}, [(one + other) * 0.5, one - other], name="towers")


def test_a_shared_layer_has_one_kernel_and_operators_are_layers():
    model, a, b = _two_towers(), _x(5, 3), _x(5, 3)
    mean, difference = model.predict({"a": a, "b": b}, verbose=0)
    kernel = model.get_layer("shared").kernel.numpy()
    np.testing.assert_allclose(mean, (a @ kernel + b @ kernel) / 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(difference, a @ kernel - b @ kernel, rtol=1e-5, atol=1e-6)
    assert len(model.get_weights()) == 2


def test_symbolic_outputs_have_shapes_and_dtypes_and_keep_unknown_lengths():
    ids = mp.Input((None,), dtype="int32")
    rows = layers.Embedding(9, 4)(ids)
    assert (rows.shape, rows.dtype) == ((None, None, 4), "float32")
    assert layers.GlobalAveragePooling1D()(rows).shape == (None, 4)
    assert layers.Dense(2, dtype="mixed_bfloat16")(rows).dtype == "bfloat16"
    pixels = mp.Input((8, 8, 3), batch_size=6)
    assert layers.Conv2D(5, 3, strides=2)(pixels).shape == (6, 3, 3, 5)
    assert layers.Flatten()(mp.Input(batch_shape=(None, 2, 3))).shape == (None, 6)


def test_a_model_is_a_layer_of_another_model():
    inner = mp.Sequential([mp.Input((4,)), layers.Dense(3)], name="inner")
    x = mp.Input((4,))
    model, again = mp.Model(x, inner(x)), mp.Model(x, layers.Add()([inner(x), inner(x)]))
    given = _x(2, 4)
    np.testing.assert_array_equal(model(given), inner(given))
    np.testing.assert_array_equal(again(given), inner(given) + inner(given))
    assert [len(each.weights) for each in (model, again)] == [2, 2]


def test_a_model_may_begin_at_an_output_of_a_layer_and_takes_lists_of_one():
    x = mp.Input((4,))
    hidden = layers.Dense(3)(x)
    head = layers.Dense(2)
    model = mp.Model([hidden], head(hidden))
    given = _x(5, 3)
    np.testing.assert_array_equal(model(given), head(given))
    np.testing.assert_array_equal(model([given]), head(given))


class Twice(mp.Model):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.dense = layers.Dense(units)

    def call(self, x, training=None):
        return self.dense(self.dense(x))


class Custom(mp.Model):
    def doubled(self, x):
        return 2 * self(x)


def test_subclasses_are_models_of_layers_or_functional_ones_with_methods_of_their_own():
    model, x = Twice(3), _x(70, 3)
    np.testing.assert_array_equal(model.predict(x, batch_size=32, verbose=0), model(x))
    assert [layer.name for layer in model.layers] == [model.dense.name]
    start = mp.Input((3,))
    custom = Custom(start, layers.Dense(2)(start))
    assert isinstance(custom, Custom) and isinstance(custom, mp.Functional)
    np.testing.assert_array_equal(custom.doubled(x), 2 * custom.predict(x, verbose=0))
    for each in (pickle.loads(pickle.dumps(custom)), copy.deepcopy(custom)):
        np.testing.assert_array_equal(each.doubled(x), custom.doubled(x))
        assert type(each) is type(custom)


def test_a_stack_is_built_as_soon_as_its_inputs_are_known():
    model = mp.Sequential()
    model.add(mp.Input((4,)))
    model.add(layers.Dense(3, name="first"))
    assert model.built and model.count_params() == 15
    first = model.get_layer("first").kernel.numpy()
    model.add(layers.Dense(2))
    assert model.pop().units == 2
    model.add(layers.Dense(7))
    assert [w.shape for w in model.get_weights()] == [(4, 3), (3,), (3, 7), (7,)]
    np.testing.assert_array_equal(model.get_layer(index=0).kernel.numpy(), first)
    model.predict(_x(40, 4), verbose=0)


def test_an_addition_that_fails_leaves_the_stack_as_it_was():
    model = mp.Sequential([mp.Input((4,)), layers.Dense(3)])
    before = model.predict(np.ones((2, 4)), verbose=0)
    with pytest.raises(ValueError, match="axes"):
        model.add(layers.Conv2D(2, 3))
    assert len(model.layers) == 1 and model.built
    np.testing.assert_array_equal(model.predict(np.ones((2, 4)), verbose=0), before)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16", "float64"])
def test_predict_returns_what_a_call_returns_for_every_size_of_batches(policy):
    x = mp.Input((6,), dtype="float64" if policy == "float64" else None)
    model = mp.Model(x, layers.Dense(5, activation="softmax", dtype=policy)(layers.Dense(4, "relu", dtype=policy)(x)))
    given = rng.standard_normal((75, 6)).astype("float64" if policy == "float64" else "float32")
    want = model(given.astype(np.float32))
    for size in (1, 16, 75, 100):
        got = model.predict(given, batch_size=size, verbose=0)
        assert got.dtype == want.dtype  # float64 is NumPy's, whose bits depend on shapes
        np.testing.assert_allclose(got, want, rtol=1e-14 if policy == "float64" else 0)


def test_predict_takes_batches_from_generators_and_sequences():
    model, x = mp.Sequential([layers.Dense(3)]), _x(50, 4)
    want = model(x)
    parts = [x[:20], x[20:40], x[40:]]

    class Parts:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return parts[index], np.zeros(len(parts[index]))

    for source in (Parts(), (part for part in parts), ((part, None) for part in parts)):
        np.testing.assert_array_equal(model.predict(source, verbose=0), want)
    np.testing.assert_array_equal(model.predict((part for part in parts), steps=2, verbose=0), want[:40])


def test_a_changed_weight_changes_what_predict_returns():
    model, x = mp.Sequential([mp.Input((4,)), layers.Dense(3)]), _x(8, 4)
    for _ in range(3):
        model.set_weights([_x(4, 3), _x(3)])
        np.testing.assert_array_equal(model.predict(x, verbose=0), model(x))


def test_configurations_make_the_same_model():
    model, a, b = _two_towers(), _x(5, 3), _x(5, 3)
    again = mp.Functional.from_config(model.get_config())
    again.build()
    again.set_weights(model.get_weights())
    assert type(again) is mp.Functional
    for got, want in zip(again({"a": a, "b": b}), model({"a": a, "b": b}), strict=True):
        np.testing.assert_array_equal(got, want)
    stack = mp.Sequential([mp.Input((4,)), layers.Dense(3, name="d")])
    copied = mp.Sequential.from_config(stack.get_config())
    assert copied.built and [layer.name for layer in copied.layers] == ["d"]


def test_frozen_layers_are_left_out_of_what_is_trained():
    model = mp.Sequential([mp.Input((4,)), layers.Dense(3), layers.Dense(2)])
    model.layers[0].trainable = False
    assert [w.shape for w in model.trainable_weights] == [(3, 2), (2,)]
    assert [w.shape for w in model.non_trainable_weights] == [(4, 3), (3,)]
    model.trainable = False
    assert model.trainable_weights == []
    model.trainable = True
    assert len(model.trainable_weights) == 4
    with pytest.raises(TypeError, match="`trainable` must be True or False"):
        model.trainable = "no"


def test_a_frozen_model_freezes_the_statistics_of_the_layers_in_it():
    base = mp.Sequential([mp.Input((4,)), layers.Dense(3), layers.BatchNormalization()])
    base.trainable = False
    before = base.get_weights()
    model = mp.Model(base.input, layers.Dense(1)(base.output))
    model.compile("sgd", "mse")
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    model.fit(x, x[:, :1], epochs=2, verbose=0)
    for got, want in zip(base.get_weights(), before, strict=True):
        np.testing.assert_array_equal(got, want)
    assert [layer.trainable for layer in base.layers] == [False, False]


def test_a_model_without_trainable_weights_reports_its_loss_and_trains_nothing():
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    frozen = layers.Dense(1)
    model = mp.Sequential([mp.Input((4,)), frozen, layers.BatchNormalization()])
    model.trainable = False
    before = model.get_weights()
    model.compile("adam", "mse", metrics=["mae"])
    with pytest.warns(UserWarning, match="has no trainable weights: nothing is trained"):
        history = model.fit(x, x[:, :1], epochs=2, verbose=0, batch_size=len(x)).history
    loss, mae = model.evaluate(x, x[:, :1], verbose=0, batch_size=len(x))
    assert history == {"loss": [pytest.approx(loss)] * 2, "mae": [pytest.approx(mae)] * 2}
    assert int(model.optimizer.iterations) == 0
    for got, want in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(got, want)


def test_predicting_does_not_let_the_step_be_recorded_anew(monkeypatch):
    recordings = []
    recorded = GradientPlan._recorded
    monkeypatch.setattr(GradientPlan, "_recorded", lambda plan: recordings.append(plan) or recorded(plan))
    x = np.ones((32, 4), np.float32)
    model = mp.Sequential([mp.Input((4,)), layers.Dense(1)])
    model.compile("adam", "mse")
    for _ in range(3):
        model.fit(x, x[:, :1], verbose=0)
        model.predict(x, verbose=0)
    assert len(recordings) == 1


def test_the_summary_names_layers_shapes_and_sizes(capsys):
    model = mp.Sequential([mp.Input((8,)), layers.Dense(4, name="one"), mp.Sequential([layers.Dense(2)], name="two")])
    model.layers[0].trainable = False
    model.summary(expand_nested=True, show_trainable=True)
    printed = capsys.readouterr().out
    for part in ("one (Dense)   ", "(None, 4)", "36         no", "two (Sequential)", "(None, 2)", "46 (184.00 B)"):
        assert part in printed
    lines = []
    _two_towers().summary(print_fn=lines.append)
    assert "multiply" in lines[0] and "shared (Dense)" in lines[0]


X = mp.Input((3,), name="x")
ERRORS = [
    (lambda: mp.Model(X, layers.Dense(2)(mp.Input((3,)))), ValueError, "not among `inputs`"),
    (lambda: mp.Model(X, np.ones(3)), TypeError, "`outputs` must be what Input"),
    (lambda: mp.Model([X, X], layers.Dense(2)(X)), ValueError, "`inputs` must be different"),
    (lambda: mp.Model(X), TypeError, "`outputs` must be"),
    (lambda: mp.Model(X, [layers.Dense(2, name="d")(X), layers.Dense(2, name="d")(X)]), ValueError, "different names"),
    (lambda: np.exp(X), TypeError, "numpy.exp of <KerasTensor"),
    (lambda: np.concatenate([X, X]), TypeError, "numpy.concatenate of <KerasTensor"),
    (lambda: mp.rms_norm(X), TypeError, "`call` of a Layer"),
    (lambda: X[[0]], TypeError, "an index of a symbolic array"),
    (lambda: [*X], TypeError, "a part of"),
    (lambda: bool(X), TypeError, "the truth of"),
    (lambda: mp.Input(), ValueError, "give `shape`"),
    (lambda: mp.Input(3), ValueError, "`shape` must be a sequence"),
    (lambda: mp.Input((3,), sparse=True), ValueError, "`sparse` must be False"),
    (lambda: mp.Input((3,), batch_size=0), ValueError, "`batch_size` must be a positive integer"),
    (lambda: mp.Sequential([layers.Dense(2)(X)]), TypeError, "an output of"),
    (lambda: mp.Sequential(3), TypeError, "`layers` must be a sequence"),
    (lambda: mp.Sequential().pop(), IndexError, "no layer to pop"),
    (lambda: mp.Model(X, layers.Dense(2)(X)).get_layer("y"), ValueError, "`name` must be one of"),
    (lambda: mp.Model(X, layers.Dense(2)(X)).get_layer(index=5), ValueError, "`index` must be below"),
    (lambda: mp.Model(X, layers.Dense(2)(X)).get_layer(), ValueError, "give `name` or `index`"),
    (lambda: mp.Sequential([layers.Dense(2)]).predict([np.nan, 1.0]), ValueError, "`x` must have no NaN"),
    (lambda: mp.Sequential([layers.Dense(2)]).predict(_x(0, 3)), ValueError, "at least one sample"),
    (lambda: mp.Sequential([layers.Dense(2)]).predict(iter(())), ValueError, "at least one batch"),
    (lambda: mp.Sequential([layers.Dense(2)]).predict(3.0), ValueError, "axis of samples"),
    (lambda: mp.Sequential([layers.Dense(2)]).predict(object()), TypeError, "must be arrays, a sequence"),
    (lambda: _two_towers().predict({"a": _x(3, 3), "b": _x(4, 3)}), ValueError, "equally many samples"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), ERRORS, ids=[message for _, _, message in ERRORS])
def test_bad_arguments_are_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_inference_imports_nothing_of_training():
    code = (
        "import sys, numpy as np, mp_core as mp; from mp_core import layers, plans; "
        "layers.Sequential([layers.Dense(2)])(np.ones((1, 2))); "
        "rooms = 'gradients', 'optimizers', 'losses', 'metrics', 'callbacks', 'training.state', 'training.loop'; "
        "print([room for room in rooms if f'mp_core.{room}' in sys.modules])"
    )
    assert processes.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_second_fit_runs_the_plan_of_the_first():
    x, trained = np.ones((8, 3), np.float32), mp.Sequential([mp.Input((3,)), mp.layers.Dense(1)])
    trained.compile("sgd", "mse")
    first = trained.fit(x, x[:, :1], verbose=0)
    assert trained.history is first
    plans = [plan._last[1] for plan in trained._training_state._step._plans._kept.values()]
    assert trained.fit(x, x[:, :1], verbose=0) is trained.history is not first
    assert [plan._last[1] for plan in trained._training_state._step._plans._kept.values()] == plans
    trained.compile("adam", "mse")
    assert trained.history is not None


def test_a_subclass_has_a_history_of_its_own_until_fit():
    class Own(mp.Model):
        def __init__(self):
            super().__init__()
            self.history = ["begun"]
            self.dense = layers.Dense(1)

        def call(self, x, training=False):
            return self.dense(x)

    model, x = Own(), np.ones((4, 2), np.float32)
    assert model.history == ["begun"]
    model.compile("sgd", "mse")
    assert model.history == ["begun"]
    assert model.fit(x, x[:, :1], verbose=0) is model.history


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ({"input_shape": (2,)}, (None, 2)),
        ({"input_dim": 2}, (None, 2)),
        ({"input_shape": (2,), "batch_size": 7}, (7, 2)),
        ({"batch_input_shape": (None, 2)}, (None, 2)),
    ],
)
def test_a_first_layer_that_says_the_shape_of_its_inputs_builds_the_stack(arguments, shape):
    model = mp.Sequential([layers.Dense(4, **arguments), layers.Dense(5, input_shape=(3, 4))])
    assert model.built and model.input_shape == shape and model.output_shape == (shape[0], 5)
    assert model.count_params() == 2 * 4 + 4 + 4 * 5 + 5 and len(model.layers) == 2
    again = mp.Sequential.from_config(model.get_config())
    assert again.input_shape == shape and again.count_params() == model.count_params()


@pytest.mark.parametrize("arguments", [{"input_shape": (2,)}, {"batch_input_shape": (None, 2)}, {"shape": (2,)}])
def test_an_input_layer_takes_the_names_of_older_keras(arguments):
    model = mp.Sequential([layers.InputLayer(**arguments), layers.Dense(5)])
    assert model.input_shape == (None, 2) and model.output_shape == (None, 5)


def test_the_shape_of_inputs_that_is_none_is_refused():
    with pytest.raises(ValueError, match="`input_shape` must be the shape of a sample; received input_shape=3"):
        layers.Dense(2, input_shape=3)
    with pytest.raises(ValueError, match="-1"):
        mp.Sequential([layers.Dense(2, input_shape=(-1,))])


def test_the_layers_of_a_graph_cannot_be_set():
    start = mp.Input((3,))
    model = mp.Model(start, layers.Dense(2, name="first")(start))
    with pytest.raises(AttributeError, match=r"`layers` of .* follow from its graph and cannot be set"):
        model.layers = [layers.Dense(4)]
    assert model.layers[1].name == "first"


class WithParameter(mp.Model):
    """A functional model with an argument of its own."""

    def __init__(self, *args, param=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.param = param

    def get_config(self):
        return super().get_config() | {"param": self.param}


class StackWithParameter(mp.Sequential):
    """A stack with an argument of its own."""

    def __init__(self, *args, param=1, **kwargs):
        super().__init__(*args, **kwargs)
        self.param = param

    def get_config(self):
        return super().get_config() | {"param": self.param}


def _with_parameter():
    start = mp.Input((3,))
    return WithParameter(inputs=start, outputs=layers.Dense(5)(start), param=3, name="mine")


def _stack_with_parameter():
    return StackWithParameter([mp.Input((3,)), layers.Dense(5)], param=3, name="mine")


@pytest.mark.parametrize("make", [_with_parameter, _stack_with_parameter])
def test_arguments_of_a_model_of_layers_come_back(tmp_path, make):
    model, x = make(), _x(4, 3)
    model.compile("adam", "mse")
    model.fit(x, _x(4, 5), verbose=0)
    model.save(tmp_path / "m.keras")
    classes = {"WithParameter": WithParameter, "StackWithParameter": StackWithParameter}
    loaded = mp.saving.load_model(tmp_path / "m.keras", custom_objects=classes)
    for again in (type(model).from_config(model.get_config()), loaded):
        assert again.param == 3 and again.name == "mine" and len(again.weights) == 2
    assert again(x).tobytes() == model(x).tobytes() and int(again.optimizer.iterations) == 1


def test_a_loss_of_ones_own_needs_no_argument_training():
    class Own(mp.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
            return super().compute_loss(x, y, y_pred, sample_weight) * np.float32(2)

    start = mp.Input((3,))
    output = layers.Dense(1, kernel_initializer="ones")(start)
    x, y = _x(4, 3), _x(4, 1)
    expected = 2 * np.mean((x.sum(1, keepdims=True) - y) ** 2)
    model = Own(start, output)
    model.compile("sgd", "mse")
    assert model.evaluate(x, y, verbose=0) == pytest.approx(expected, rel=1e-5)
    assert model.fit(x, y, verbose=0).history["loss"] == pytest.approx([expected], rel=1e-5)


def test_layers_names_the_same_model_classes_as_the_package():
    assert layers.Sequential is mp.Sequential is mp.models.Sequential
    assert layers.Functional is mp.Functional is mp.models.Functional
    x = np.ones((4, 3), np.float32)
    model = layers.Sequential([layers.Dense(1)])
    model.compile("sgd", "mse")
    assert model.fit(x, x[:, :1], verbose=0).history.keys() == {"loss"}


def test_a_configuration_of_a_layer_around_a_stack_needs_no_model_to_be_loaded_before():
    config = {"layer": {"class_name": "Sequential", "config": {"layers": []}}}
    code = f"from mp_core import layers; print(type(layers.TimeDistributed.from_config({config}).layer).__name__)"
    got = processes.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert got == "Sequential\n"


def test_a_stack_may_penalize_what_it_returns():
    model = mp.Sequential([mp.layers.Identity()], activity_regularizer=mp.regularizers.L2(0.5))
    model(np.full((2, 3), 2, np.float32))
    assert [float(loss) for loss in model.losses] == [0.5 * 4 * 6 / 2] and len(model.layers) == 1
