"""Losses and their gradients, compared with Keras' and with differences: hostile values, weights, masks, reductions."""

import os

import ml_dtypes
import numpy as np
import pytest

import mp_core as mp
from mp_core import losses

os.environ.setdefault("KERAS_BACKEND", "torch")  # on JAX the values are the same, and each new shape takes a second
keras = pytest.importorskip("keras")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras

NUMBERS = [
    "MeanSquaredError", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredLogarithmicError",
    "CosineSimilarity", "Huber", "LogCosh", "Poisson", "KLDivergence",
]  # fmt: skip
CASES = [(name, {}, "numbers") for name in NUMBERS] + [
    ("CosineSimilarity", {"axis": 0}, "numbers"),
    ("Huber", {"delta": 0.25}, "numbers"),
    ("Hinge", {}, "signs"),
    ("Hinge", {}, "binary"),
    ("SquaredHinge", {}, "binary"),
    ("CategoricalHinge", {}, "one-hot"),
    ("BinaryCrossentropy", {}, "binary"),
    ("BinaryCrossentropy", {"from_logits": True}, "binary logits"),
    ("BinaryCrossentropy", {"label_smoothing": 0.2, "axis": 0}, "binary"),
    ("BinaryFocalCrossentropy", {}, "binary"),
    ("BinaryFocalCrossentropy", {"from_logits": True, "apply_class_balancing": True}, "binary logits"),
    ("CategoricalCrossentropy", {}, "one-hot"),
    ("CategoricalCrossentropy", {"from_logits": True, "label_smoothing": 0.1}, "one-hot logits"),
    ("CategoricalFocalCrossentropy", {}, "one-hot"),
    ("CategoricalFocalCrossentropy", {"from_logits": True, "gamma": 1.5}, "one-hot logits"),
    ("SparseCategoricalCrossentropy", {}, "classes"),
    ("SparseCategoricalCrossentropy", {"from_logits": True}, "classes logits"),
    ("SparseCategoricalCrossentropy", {"from_logits": True, "ignore_class": 2}, "classes logits"),
    ("CategoricalGeneralizedCrossEntropy", {"q": 0.7}, "classes"),
    ("Dice", {}, "binary"),
    ("Dice", {"axis": 1}, "binary"),
    ("Tversky", {"alpha": 0.3, "beta": 0.7}, "binary"),
    ("Circle", {"gamma": 4.0}, "labels"),
]
IDS = [f"{name}-{kind}-{'-'.join(map(str, own.values()))}" for name, own, kind in CASES]


def data(kind, rng, shape=(6, 4)):
    """Return targets and outputs of a kind."""
    logits = rng.standard_normal(shape).astype(np.float32) * 3
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    classes = rng.integers(0, shape[-1], shape[:-1])
    return {
        "numbers": (rng.uniform(0.1, 3, shape).astype(np.float32), rng.uniform(0.1, 3, shape).astype(np.float32)),
        "signs": (rng.choice([-1.0, 1.0], shape).astype(np.float32), logits),
        "binary": (rng.integers(0, 2, shape).astype(np.float32), 1 / (1 + np.exp(-logits))),
        "binary logits": (rng.integers(0, 2, shape).astype(np.float32), logits),
        "one-hot": (np.eye(shape[-1], dtype=np.float32)[classes], shares),
        "one-hot logits": (np.eye(shape[-1], dtype=np.float32)[classes], logits),
        "classes": (classes, shares),
        "classes logits": (classes, logits),
        "labels": (rng.integers(0, 3, shape[0]), logits / np.linalg.norm(logits, axis=-1, keepdims=True)),
    }[kind]


def theirs(loss, *arguments):
    return keras.ops.convert_to_numpy(loss(*arguments))


@pytest.mark.parametrize(("name", "own", "kind"), CASES, ids=IDS)
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "none", "mean_with_sample_weight"])
def test_values_are_those_of_keras(name, own, kind, reduction, rng):
    y_true, y_pred = data(kind, rng)
    mine, other = (getattr(module, name)(**own, reduction=reduction) for module in (losses, keras.losses))
    found, expected = mine(y_true, y_pred), theirs(other, y_true, y_pred)
    assert found.dtype == np.float32 and found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
    if reduction != "none" or found.ndim == 0 or own.get("ignore_class") is not None:
        return
    weight = rng.uniform(0, 2, found.shape).astype(np.float32)
    np.testing.assert_allclose(mine(y_true, y_pred, weight), found * weight, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "none", "mean_with_sample_weight"])
@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_weights_are_those_of_keras(reduction, shape, rng):
    y_true, y_pred = data("one-hot", rng)
    weight = rng.uniform(0, 2, shape).astype(np.float32)
    mine, other = (module.CategoricalCrossentropy(reduction=reduction) for module in (losses, keras.losses))
    np.testing.assert_allclose(mine(y_true, y_pred, weight), theirs(other, y_true, y_pred, weight), rtol=2e-5)


def test_a_mask_leaves_values_out_of_a_mean(rng):
    y_true, y_pred = rng.standard_normal((2, 5, 3)).astype(np.float32)
    mask = np.array([True, False, True, True, False])
    loss = losses.MeanSquaredError()
    kept = np.mean((y_true[mask].astype(np.float64) - y_pred[mask]) ** 2)
    np.testing.assert_allclose(loss(y_true, y_pred, mask=mask), kept, rtol=1e-6)
    assert loss(y_true, y_pred, mask=np.zeros(5, bool)) == 0
    weight = np.arange(5, dtype=np.float32)
    weighted = np.mean((y_true - y_pred) ** 2, -1) * weight
    np.testing.assert_allclose(loss(y_true, y_pred, weight, mask=mask), weighted[mask].sum() / 3, rtol=1e-6)
    summed = losses.MeanSquaredError("sum")(y_true, y_pred, mask=mask)
    np.testing.assert_allclose(summed, np.mean((y_true - y_pred) ** 2, -1)[mask].sum(), rtol=1e-6)


@pytest.mark.parametrize(("name", "own", "kind"), CASES, ids=IDS)
def test_configurations_are_those_of_keras_and_load_in_both(name, own, kind):
    mine, other = (getattr(module, name)(**own) for module in (losses, keras.losses))
    assert other.get_config().items() <= mine.get_config().items()  # Keras forgets some
    assert losses.deserialize(losses.serialize(mine)).get_config() == mine.get_config()
    if name != "CategoricalGeneralizedCrossEntropy":  # which Keras cannot load
        assert keras.losses.deserialize(losses.serialize(mine)).get_config() == other.get_config()
    assert losses.deserialize(keras.losses.serialize(other)).name == mine.name


# ---- values that are hard


@pytest.mark.parametrize("logit", [0.0, 30.0, 1000.0, 3e38, -1000.0, -3e38])
def test_logits_of_any_size_give_finite_losses(logit):
    for target in (0.0, 1.0):
        exact = max(logit, 0) - logit * target + np.log1p(np.exp(-abs(logit)))
        found = losses.binary_crossentropy([target], np.float32([logit]), from_logits=True)
        np.testing.assert_allclose(found, exact, rtol=1e-6)
    exact = max(logit, 0) + np.log1p(np.exp(-abs(logit)))
    logits = np.float32([[logit, 0.0]])
    np.testing.assert_allclose(losses.sparse_categorical_crossentropy([1], logits, from_logits=True), exact, rtol=1e-6)
    np.testing.assert_allclose(losses.categorical_crossentropy([[0, 1]], logits, from_logits=True), exact, rtol=1e-6)


def test_probabilities_of_0_and_1_give_finite_losses():
    worst = -np.log(1e-7)
    for found in (
        losses.binary_crossentropy([[1.0]], [[0.0]]),
        losses.categorical_crossentropy([[1.0, 0.0]], [[0.0, 1.0]]),
        losses.sparse_categorical_crossentropy([0], [[0.0, 1.0]]),
    ):
        np.testing.assert_allclose(found, worst, rtol=1e-6)


def test_errors_of_any_size_give_a_finite_log_cosh():
    np.testing.assert_allclose(losses.log_cosh([0.0], [-1e30]), 1e30 - np.log(2), rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["MeanSquaredError", "MeanAbsoluteError", "Huber"])
def test_what_is_not_finite_shows_in_the_loss(name, bad):
    assert not np.isfinite(getattr(losses, name)()([[1.0, 2.0]], [[1.0, bad]]))


def test_zero_vectors_have_no_angle():
    assert losses.cosine_similarity([[0.0, 0.0]], [[1.0, 0.0]]) == 0


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", NUMBERS)
def test_outputs_of_16_bits_are_widened(name, dtype, rng):
    y_true, y_pred = data("numbers", rng)
    narrow = y_pred.astype(dtype)
    found = getattr(losses, name)()(y_true, narrow)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, getattr(losses, name)()(y_true, narrow.astype(np.float32)))


def test_many_samples_do_not_overflow_in_float16():
    y_pred = np.full((100_000, 1), 100.0, np.float16)
    assert losses.MeanSquaredError()(np.zeros((100_000, 1)), y_pred) == 10_000


def test_large_class_numbers_stay_apart():
    classes = (1 << 24) + 1  # float32 has no such number
    y_pred = np.zeros((1, 3), np.float32)
    with pytest.raises(IndexError):
        losses.SparseCategoricalCrossentropy(from_logits=True)([classes], y_pred)


def test_shapes_with_and_without_an_axis_of_one_agree(rng):
    y_true, y_pred = rng.standard_normal((2, 7)).astype(np.float32)
    flat = losses.MeanSquaredError()(y_true, y_pred)
    np.testing.assert_allclose(losses.MeanSquaredError()(y_true, y_pred[:, None]), flat, rtol=1e-6)
    np.testing.assert_allclose(losses.MeanSquaredError()(y_true[:, None], y_pred), flat, rtol=1e-6)


# ---- gradients: losses are made of operations


@pytest.mark.parametrize(("name", "own", "kind"), CASES, ids=IDS)
def test_gradients_are_those_of_central_differences(name, own, kind, rng):
    y_true, y_pred = data(kind, rng)
    loss = getattr(losses, name)(**own, reduction="sum")
    targets = loss.targets(y_true)
    weight = mp.AutoCastVariable(y_pred)
    _, (gradient,) = mp.value_and_grad(lambda t: loss(t, weight.read_value()), [weight])(targets)
    wide, h = y_pred.astype(np.float64), 1e-6
    function = type(loss).function
    for index in [(0, 0), (3, 2), (5, 3)]:
        step = np.zeros_like(wide)
        step[index] = h
        above, below = (np.sum(function(y_true, wide + sign * step, **loss.arguments)) for sign in (1, -1))
        assert gradient[index] == pytest.approx((above - below) / (2 * h), rel=2e-3, abs=2e-4)


def test_a_step_ignores_a_class_and_a_target_that_is_none_makes_its_loss_nan(rng):
    x, y = rng.standard_normal((32, 5)).astype(np.float32), rng.integers(-1, 3, 32)
    model = mp.Sequential([mp.Input((5,)), mp.layers.Dense(3)])
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    model.compile(mp.optimizers.SGD(0.1), loss)
    before = loss(y, model(x))
    assert model.train_on_batch(x, y) == pytest.approx(float(before), rel=1e-6)
    assert loss(y, model(x)) < before
    wrong = np.where(y == 1, 3, y)
    with pytest.raises(IndexError):
        model.test_on_batch(x, wrong)
    assert np.isnan(model.train_on_batch(x, wrong))
    with pytest.raises(ValueError, match="classes below"):
        model.train_on_batch(x, y + 2**24)


# ---- sequences

LABELS = np.array([[1, 2, 3, 4], [2, 2, 0, 0], [5, 5, 5, 0], [1, 0, 0, 0], [0, 0, 0, 0]])


def ctc_of_torch(y_true, y_pred):
    """Return the loss of each sample, and the gradient of their sum."""
    logits = torch.tensor(y_pred, requires_grad=True)
    lengths = torch.full((len(y_pred),), y_pred.shape[1]), torch.from_numpy((y_true != 0).sum(1))
    logs = torch.nn.functional.log_softmax(logits, -1).transpose(0, 1)
    found = torch.nn.functional.ctc_loss(logs, torch.from_numpy(y_true), *lengths, reduction="none")
    found.sum().backward()
    return found.detach().numpy(), logits.grad.numpy()


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-5), (np.float64, 1e-10)])
@pytest.mark.parametrize("spread", [0.0, 3.0, 100.0])
def test_ctc_has_the_values_and_the_gradients_of_torch(dtype, tolerance, spread, rng):
    logits = (rng.standard_normal((5, 9, 6)) * spread).astype(dtype)
    expected, of_logits = ctc_of_torch(LABELS, logits)
    found = losses.ctc(LABELS, logits)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    variable = mp.AutoCastVariable(logits)
    loss = losses.CTC("sum", dtype=np.dtype(dtype).name)
    value, (gradient,) = mp.value_and_grad(lambda y: loss(y, variable.read_value()), [variable])(loss.targets(LABELS))
    assert float(value) == pytest.approx(expected.sum(), rel=10 * tolerance)
    np.testing.assert_allclose(gradient, of_logits, rtol=10 * tolerance, atol=10 * tolerance)


def test_a_model_learns_where_labels_are(rng):
    shown = np.array([[1, 2], [2, 1], [3, 3], [2, 0]])
    x = rng.standard_normal((4, 8, 5)).astype(np.float32)
    model = mp.Sequential([mp.Input((8, 5)), mp.layers.Dense(16, "relu"), mp.layers.Dense(4, dtype="float32")])
    model.compile(mp.optimizers.Adam(0.05), "ctc")
    before = model.evaluate(x, shown, verbose=0)
    assert before == pytest.approx(float(losses.CTC()(shown, model(x))), rel=1e-5)
    model.fit(x, shown, epochs=60, verbose=0)
    assert model.evaluate(x, shown, verbose=0) < min(1.0, before / 3)
    assert np.isnan(model.train_on_batch(x, shown + 3))  # 4, 5 and 6 are no classes


def test_labels_that_do_not_fit_into_the_outputs_have_a_large_loss():
    assert losses.ctc([[1, 1]], np.zeros((1, 2, 3), np.float32)) > 9e4  # a blank must stand between the two


# ---- names and refusals


def test_short_names_are_found():
    assert losses.get("mse") is losses.mean_squared_error and losses.get(None) is None
    assert isinstance(losses.get("SparseCategoricalCrossentropy"), losses.SparseCategoricalCrossentropy)
    assert losses.get(losses.huber) is losses.huber and losses.serialize(losses.huber) == "huber"
    assert losses.get(losses.Huber(0.5)).delta == 0.5


def test_a_loss_of_ones_own():
    class Cubed(losses.Loss):
        def call(self, y_true, y_pred):
            return np.abs(y_true - y_pred).mean(-1) ** 3

    assert Cubed(reduction="sum")([[1.0]], [[3.0]]) == 8.0
    assert losses.deserialize(losses.serialize(Cubed()), {"Cubed": Cubed}).name == "cubed"
    with pytest.raises(NotImplementedError, match="must define `call"):
        losses.Loss()([1.0], [1.0])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: losses.MeanSquaredError("average"), ValueError, "`reduction` must be one of"),
        (lambda: losses.MeanSquaredError(name=3), TypeError, "`name` must be a string"),
        (lambda: losses.MeanSquaredError(delta=3), TypeError, "delta"),
        (lambda: losses.MeanSquaredError()(np.ones((2, 3)), np.ones((2, 4))), ValueError, r"\(2, 3\) and \(2, 4\)"),
        (lambda: losses.categorical_crossentropy([0, 1], np.ones((2, 3))), ValueError, "must have one shape"),
        (lambda: losses.sparse_categorical_crossentropy([0], np.ones((2, 3))), ValueError, "must have the shape"),
        (lambda: losses.sparse_categorical_crossentropy([0.5], np.ones((1, 3))), ValueError, "classes, which are int"),
        (lambda: losses.sparse_categorical_crossentropy([3], np.ones((1, 3))), IndexError, "from 0 to 2; received 3"),
        (lambda: losses.sparse_categorical_crossentropy([-1], np.ones((1, 3))), IndexError, "from 0 to 2; received -1"),
        (lambda: losses.MeanSquaredError()([[1.0]], [[1.0]], [[1.0, 2.0], [1.0, 2.0]]), ValueError, "`sample_weight`"),
        (lambda: losses.ctc([[1]], np.ones((2, 3, 4))), ValueError, r"received \(1, 1\) and \(2, 3, 4\)"),
        (lambda: losses.ctc([[4]], np.ones((1, 3, 4))), IndexError, "classes from 1 to 3; received 4"),
        (lambda: losses.ctc([[-1]], np.ones((1, 3, 4))), ValueError, "labels from 1, and zeros; received -1"),
        (lambda: losses.ctc([[1, 0, 2]], np.ones((1, 3, 4))), ValueError, "a label after a zero"),
        (lambda: losses.ctc([[0.5]], np.ones((1, 3, 4))), ValueError, "classes, which are integers"),
        (lambda: losses.get("mean_squared"), ValueError, "Unknown loss class_name='mean_squared'"),
        (lambda: losses.get(7), ValueError, "Could not interpret loss identifier: 7"),
        (lambda: losses.mean_squared_error(["a"], [1.0]), TypeError, "y_true"),
    ],
)
def test_wrong_arguments_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("name", [name for name in losses.__all__ if name[0].isupper() and name != "Loss"])
def test_the_docstring_of_a_class_says_its_parameters_once(name):
    assert getattr(losses, name).__doc__.count("Parameters\n") == 1


def test_classes_may_be_many():
    """One row of zeros and a one for each sample, and no table of all classes by all classes."""
    labels = np.array([0, 299_999])
    scores = np.zeros((2, 300_000), np.float32)
    found = losses.sparse_categorical_crossentropy(labels, scores, from_logits=True)
    np.testing.assert_allclose(found, np.log(300_000), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "mixed_bfloat16", "float32"])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "none"])
def test_losses_have_the_dtype_of_keras(dtype, reduction, rng):
    y, z = rng.standard_normal((2, 8, 4)).astype(np.float32)
    want = keras.losses.MeanSquaredError(dtype=dtype, reduction=reduction)(y, z)
    got = losses.MeanSquaredError(dtype=dtype, reduction=reduction)(y, z)
    assert got.dtype.name == keras.backend.standardize_dtype(want.dtype)
    np.testing.assert_allclose(
        got.astype(np.float32), np.asarray(want.float()), rtol=2e-2 if "float16" in dtype else 1e-6
    )
