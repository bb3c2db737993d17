"""Several outputs: losses, weights, metrics and targets in the same nested structure, compared with Keras'."""

import os
from collections import namedtuple

import numpy as np
import pytest

import mp_core as mp

os.environ.setdefault("KERAS_BACKEND", "torch")  # on JAX the values are the same, and each new shape takes a second
keras = pytest.importorskip("keras")

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras
    pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning"),  # of Keras: an output has no loss
]

Pair = namedtuple("Pair", "first rest")
X = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
A, B, C = X[:, :1].copy(), X[:, 1:].copy(), X.copy()
W, V, U = np.random.default_rng(1).uniform(size=(3, 8)).astype(np.float32)
ARRANGED = {
    "list": lambda a, b, c: [a, b, c],
    "dict": lambda a, b, c: {"a": a, "b": b, "c": c},
    "lists in a dict": lambda a, b, c: {"u": [a, b], "v": c},
    "tuples in a dict": lambda a, b, c: {"u": (a, b), "v": c},
    "dicts in a list": lambda a, b, c: [{"r": a, "s": b}, c],
    "dicts in a dict": lambda a, b, c: {"u": {"r": a, "s": b}, "v": {"t": c}},
    "lists in a list": lambda a, b, c: [[a, b], [c]],
    "named": lambda a, b, c: Pair(a, [b, c]),
}


def compiled(library, arranged, **given):
    """Return a model of three outputs, "a", "b" and "c"."""
    inputs = library.Input((3,))
    outputs = [
        library.layers.Dense(n, name=name, kernel_initializer="ones")(inputs) for n, name in enumerate("abc", start=1)
    ]
    model = library.Model(inputs, ARRANGED[arranged](*outputs))
    model.compile(library.optimizers.SGD(0.01), **given)
    return model


MIXED = {"u": ["mse", "mae"], "v": "mse"}
NESTED = {"u": [A, B], "v": C}
CASES = [
    # outputs, arguments of compile, targets, weights
    ("list", {"loss": [None, "mse", "mae"]}, [None, B, C], None),
    ("list", {"loss": [None, "mse", "mae"]}, [B, C], None),
    ("list", {"loss": ["mse", None, None]}, A, None),
    ("list", {"loss": {"a": None, "b": "mse", "c": "mae"}}, [None, B, C], None),
    ("list", {"loss": ["mse", None, None], "metrics": [["mae"], None, None]}, [A, None, None], None),
    ("list", {"loss": "mse"}, [A, B, C], [W, None, U]),
    ("dict", {"loss": {"b": "mse", "c": "mae"}}, {"b": B, "c": C}, None),
    ("dict", {"loss": {"a": None, "b": "mse", "c": "mae"}}, {"a": None, "b": B, "c": C}, None),
    ("lists in a dict", {"loss": MIXED}, NESTED, None),
    ("lists in a dict", {"loss": {"u": ["mse", None], "v": "mse"}}, {"u": [A, None], "v": C}, None),
    ("lists in a dict", {"loss": {"u": ["mse", "mae"]}}, NESTED, None),
    ("lists in a dict", {"loss": "mse"}, NESTED, None),
    ("lists in a dict", {"loss": ["mse", "mae", "mse"]}, [A, B, C], None),
    ("lists in a dict", {"loss": MIXED, "loss_weights": {"u": [1.0, 2.0], "v": 3.0}}, NESTED, None),
    ("lists in a dict", {"loss": MIXED, "loss_weights": [1.0, 2.0, 3.0]}, NESTED, None),
    ("lists in a dict", {"loss": "mse", "metrics": {"u": ["mae", "mse"], "v": ["mae", "mse"]}}, NESTED, None),
    ("lists in a dict", {"loss": "mse", "metrics": {"u": [None, ["mse"]], "v": None}}, NESTED, None),
    ("lists in a dict", {"loss": "mse", "weighted_metrics": {"u": [["mae"], ["mse"]], "v": ["mae"]}}, NESTED,
     {"u": [W, V], "v": U}),
    ("lists in a dict", {"loss": "mse", "weighted_metrics": {"u": [["mae"], ["mse"]], "v": ["mae"]}}, NESTED, W),
    ("tuples in a dict", {"loss": MIXED}, {"u": (A, B), "v": C}, None),
    ("dicts in a list", {"loss": [{"r": "mse", "s": "mae"}, "mse"], "metrics": [{"r": ["mae"], "s": ["mae"]}, ["mse"]]},
     [{"r": A, "s": B}, C], [{"r": W, "s": V}, U]),
    ("dicts in a dict", {"loss": {"u": {"r": "mse", "s": "mae"}, "v": {"t": "mse"}}},
     {"u": {"r": A, "s": B}, "v": {"t": C}}, None),
    ("dicts in a dict", {"loss": {"u": {"r": "mse"}, "v": {"t": "mse"}}}, {"u": {"r": A}, "v": {"t": C}}, None),
    ("lists in a list", {"loss": [["mse", "mae"], ["mse"]]}, [[A, B], [C]], None),
    ("lists in a list", {"loss": [["mse", "mae"], ["mse"]]}, [A, B, C], None),
    ("named", {"loss": Pair("mse", ["mae", "mse"])}, Pair(A, [B, C]), None),
]  # fmt: skip


@pytest.mark.parametrize(("arranged", "given", "y", "weights"), CASES)
def test_logs_and_values_are_those_of_keras(arranged, given, y, weights):
    options = {"sample_weight": weights, "verbose": 0, "batch_size": 4}
    mine, theirs = (compiled(library, arranged, **given) for library in (mp, keras))
    logs, expected = (model.fit(X, y, shuffle=False, epochs=2, **options).history for model in (mine, theirs))
    assert logs.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(logs[name], values, rtol=1e-4, err_msg=name)
    found = mine.evaluate(X, y, return_dict=True, **options)
    assert found == pytest.approx(theirs.evaluate(X, y, return_dict=True, **options), rel=1e-4)
    mine.train_on_batch(X, y, weights, passes=2)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_names_of_losses_belong_to_their_outputs(weighted):
    """The logs called the loss of the second output by the name of the first, which has none."""
    model = compiled(mp, "list", loss=[None, "mse", "mae"], loss_weights=[5.0, 2.0, 1.0] if weighted else None)
    logs = model.evaluate(X, [None, B, C], verbose=0, return_dict=True)
    outputs = [x.astype(np.float64) for x in model.predict(X, verbose=0)]
    assert logs["b_loss"] == pytest.approx(np.square(outputs[1] - B).mean(), rel=1e-5)
    assert logs["c_loss"] == pytest.approx(np.abs(outputs[2] - C).mean(), rel=1e-5) and "a_loss" not in logs
    assert logs["loss"] == pytest.approx((2 if weighted else 1) * logs["b_loss"] + logs["c_loss"], rel=1e-6)


def test_targets_keep_their_arrangement_for_a_loss_of_ones_own():
    seen = []

    class Own(mp.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            seen.append({"u": [np.shape(each) for each in y["u"]], "v": y["v"].shape})
            return super().compute_loss(x, y, y_pred, sample_weight, training)

    inputs = mp.Input((3,))
    outputs = {"u": [mp.layers.Dense(1)(inputs), mp.layers.Dense(2)(inputs)], "v": mp.layers.Dense(3)(inputs)}
    model = Own(inputs, outputs)
    model.compile("sgd", "mse")
    model.train_on_batch(X, NESTED)
    model.test_on_batch(X, NESTED)
    assert len(seen) >= 2 and all(each == {"u": [(8, 1), (8, 2)], "v": (8, 3)} for each in seen)


@pytest.mark.parametrize(
    ("given", "y", "message"),
    [
        ({"loss": {"u": ["mse", "mae"], "w": "mse"}}, NESTED, "`loss` must be arranged as .*received 'u', 'w'"),
        ({"loss": {"u": ["mse"] * 3, "v": "mse"}}, NESTED, r"a list of 2 is needed at \['u'\]; received 3"),
        ({"loss": MIXED}, {"u": [A], "v": C}, r"`y` must be .*a list of 2 is needed at \['u'\]; received 1"),
        ({"loss": MIXED}, {"u": [A, B]}, "the loss 'mean_squared_error' of output 'c' needs targets: `y` has none"),
        ({"loss": MIXED}, [A, B], "`y` must be arranged as the outputs, .*received list"),
        ({"loss": MIXED, "loss_weights": {"u": 1.0, "v": 1.0}}, NESTED, r"`loss_weights` .*at \['u'\]; received float"),
        ({"loss": MIXED, "metrics": {"u": ["mae"], "v": ["mae"]}}, NESTED, "`metrics` must be arranged as the outputs"),
        ({"loss": {"u": ["mse", None], "v": "mse"}, "metrics": {"u": [None, ["mae"]], "v": None}},
         {"u": [A, None], "v": C}, "the metric 'mae' of output 'b' needs targets: `y` has none for it"),
    ],
)  # fmt: skip
def test_another_arrangement_is_named(given, y, message):
    model = compiled(mp, "lists in a dict", **given)
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        model.fit(X, y, verbose=0)
    if "metric" not in message:
        for old, new in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)


def test_keys_of_the_outputs_go_before_names_of_layers():
    inputs = mp.Input((3,))
    layers = [mp.layers.Dense(n, name=name, kernel_initializer="ones") for n, name in enumerate("abc", start=1)]
    one, two, three = (layer(inputs) for layer in layers)
    model = mp.Model(inputs, {"a": [one, two], "c": three})
    model.compile("sgd", {"a": ["mse", "mae"], "c": "mse"})
    found = model.evaluate(X, {"a": [A, B], "c": C}, verbose=0, return_dict=True)
    total = X.astype(np.float64).sum(1, keepdims=True)
    assert found["a/a_loss"] == pytest.approx(np.square(total - A).mean(), rel=1e-5)
    assert found["a/b_loss"] == pytest.approx(np.abs(total - B).mean(), rel=1e-5)


def test_nested_models_are_saved_with_what_they_were_compiled_with(tmp_path):
    model = compiled(mp, "lists in a dict", loss=MIXED, loss_weights={"u": [1.0, 2.0], "v": 3.0}, metrics={
        "u": [["mae"], None], "v": ["mse"]})  # fmt: skip
    model.fit(X, NESTED, verbose=0)
    expected = model.evaluate(X, NESTED, verbose=0, return_dict=True)
    model.save(tmp_path / "m.keras")
    assert mp.load_model(tmp_path / "m.keras").evaluate(X, NESTED, verbose=0, return_dict=True) == expected


CLASSES = np.arange(8) % 3


@pytest.mark.parametrize("name", ["crossentropy", "ce"])
@pytest.mark.parametrize(
    ("y", "units"),
    [(CLASSES, 3), (CLASSES[:, None], 3), (CLASSES.astype(np.float32), 3), (np.eye(3)[CLASSES], 3),
     (np.eye(3, dtype=int)[CLASSES], 3), ((CLASSES > 0)[:, None], 1), ((CLASSES > 0).astype(np.float32), 1)],
)  # fmt: skip
def test_the_cross_entropy_of_the_kind_of_the_targets_is_that_of_keras(name, y, units):
    found = []
    for library in (mp, keras):
        inputs = library.Input((3,))
        activation = "sigmoid" if units == 1 else "softmax"
        model = library.Model(inputs, library.layers.Dense(units, activation=activation)(inputs))
        model.set_weights([np.linspace(-1, 1, 3 * units).reshape(3, units), np.zeros(units)])
        model.compile(library.optimizers.SGD(0.1), name, metrics=["accuracy"])
        found.append([model.evaluate(X, y, verbose=0), *(model.train_on_batch(X, y) for _ in range(3))])
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_one_array_is_for_the_only_output_with_a_loss_whatever_the_order_of_keys():
    x = mp.Input((2,))
    model = mp.Model(x, {"b": mp.layers.Dense(1, name="b")(x), "a": mp.layers.Dense(1, name="a")(x)})
    model.compile("sgd", {"a": "mse"})
    inputs = np.ones((4, 2), np.float32)
    expected = np.mean((model.predict(inputs, verbose=0)["a"] - 1) ** 2)
    np.testing.assert_allclose(model.evaluate(inputs, np.ones((4, 1)), verbose=0), expected, rtol=1e-6)


@pytest.mark.parametrize("batch", [1, 3, 4, 8])
def test_predict_keeps_all_rows_of_outputs_that_are_not_one_for_each_sample(batch):
    x = np.arange(96, dtype=np.float32).reshape(8, 4, 3)
    i = mp.Input((4, 3))
    more = mp.Model(i, mp.ops.reshape(i, (-1, 6)))
    np.testing.assert_array_equal(more.predict(x, batch_size=batch, verbose=0), x.reshape(-1, 6))
    both = mp.Model(i, {"mean": mp.ops.mean(i, axis=0, keepdims=True), "same": i * 2.0})
    found = both.predict(x, batch_size=batch, verbose=0)
    np.testing.assert_array_equal(found["same"], 2 * x)
    means = [
        x[n : n + batch].astype(np.float64).mean(0) for n in range(0, 8, batch)
    ]  # a row for each batch, as in Keras
    np.testing.assert_allclose(found["mean"], means, rtol=1e-6)
