"""Operations between the layers of functional models: Keras opens files of mp_core, and the reverse."""

import importlib
import inspect
import os
from pathlib import Path

import numpy as np
import pytest

import mp_core as mp
from mp_core.layers.operation import Operation
from mp_core.layers.symbols import EAGER_ONLY
from mp_core.ops.registry import OPERATIONS

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of torch

RNG = np.random.default_rng(0)
X, Y = (RNG.standard_normal((3, 4, 6)).astype(np.float32) for _ in range(2))

ROW, SQUARE = RNG.standard_normal(6).astype(np.float32), RNG.standard_normal((6, 6)).astype(np.float32)
MASK = np.array(RNG.integers(0, 2, (4, 4)) | np.eye(4, dtype=int), bool)
VALUE = {True: "value", False: "constant_values"}


def heads(o, x):
    """The arrays as two heads of vectors of three numbers."""
    return o.reshape(x, (-1, 4, 2, 3))


# Name -> what it makes of two symbolic arrays, by the operations of a library.
CASES = {
    "a row": lambda o, x, y: x[:, 0],
    "a part": lambda o, x, y: x[..., 1:5:2],
    "a new axis": lambda o, x, y: x[:, None, -1],
    "operators": lambda o, x, y: abs(x) ** 2 - y / 2 + (1 - x) * -y,
    "products": lambda o, x, y: x @ o.transpose(y, (0, 2, 1)),
    "comparisons": lambda o, x, y: o.where(x > y, x, y) + o.where(x <= 0.0, 1.0, y),
    "reshape": lambda o, x, y: o.reshape(x, (-1, 24)),
    "swapaxes": lambda o, x, y: o.swapaxes(x, 1, 2),
    "moveaxis": lambda o, x, y: o.moveaxis(x, 1, 2),
    "expand_dims": lambda o, x, y: o.squeeze(o.expand_dims(x, 1), 1),
    "flip": lambda o, x, y: o.flip(x, 1),
    "concatenate": lambda o, x, y: o.concatenate([x, y], axis=-1),
    "stack": lambda o, x, y: o.stack([x, y], axis=1),
    "split": lambda o, x, y: o.split(x, 2, axis=2)[1],
    "mean": lambda o, x, y: o.mean(x, axis=1),
    "sum": lambda o, x, y: o.sum(x, axis=(1, 2)),
    "max": lambda o, x, y: o.max(x, axis=1) - o.min(x, axis=1),
    "var": lambda o, x, y: o.var(x, axis=1) + o.std(y, axis=1),
    "argmax": lambda o, x, y: o.argmax(x, axis=1, keepdims=True) * 0.5 - o.argmin(y, axis=-2, keepdims=True),
    "logsumexp": lambda o, x, y: o.logsumexp(x, axis=-1, keepdims=True),
    "exp": lambda o, x, y: o.exp(x) + o.log1p(o.square(y)) + o.sqrt(o.abs(x)),
    "activations": lambda o, x, y: o.relu(x) + o.sigmoid(y) + o.tanh(x) + o.silu(y) + o.softplus(x) + o.relu6(y),
    "piecewise": lambda o, x, y: o.elu(x, 0.5) + o.celu(y, 2.0) + o.leaky_relu(x, 0.1) + o.threshold(y, 0.1, 2.0)
        + o.hard_sigmoid(x) + o.hard_silu(y) + o.hard_tanh(x) + o.hard_swish(x) + o.swish(y),
    "shrinking": lambda o, x, y: o.hard_shrink(x, 0.3) + o.soft_shrink(y, 0.2) + o.tanh_shrink(x) + o.squareplus(y, 2.0)
        + o.sparse_plus(x) + o.sparse_sigmoid(y),
    "pools": lambda o, x, y: o.max_pool(x, 2, 1, "same") * o.average_pool(y, 3, strides=1, padding="same")
        + o.average_pool(x, 2, data_format="channels_first")[:, :, :1],
    "glu": lambda o, x, y: o.glu(x) * o.glu(y, axis=1)[:, :1, :3],
    "gelu": lambda o, x, y: o.gelu(x, approximate=False) + o.gelu(y, approximate=True),
    "softmax": lambda o, x, y: o.softmax(x, axis=-1) + o.log_softmax(y, axis=1),
    "clip": lambda o, x, y: o.clip(x, -0.5, 0.5),
    "numbers": lambda o, x, y: o.maximum(x, 0.5) + o.power(o.abs(y) + 1, 3.0) + o.reciprocal(o.rsqrt(o.square(x) + 1)),
    "stop_gradient": lambda o, x, y: x + o.stop_gradient(y),
    "reflected": lambda o, x, y: (1 + x) * 2 + (2 - y) + 3 * x + 1 / (x * x + 1),
    "arrays": lambda o, x, y: (x * ROW + o.subtract(ROW, y)) / o.maximum(o.abs(y) + 1, SQUARE[:4]),
    "products with arrays": lambda o, x, y: o.matmul(SQUARE[:4, :4], x) @ SQUARE,
    "einsum": lambda o, x, y: o.einsum("bij,bkj->bik", x, y),
    "einsum with an array": lambda o, x, y: o.einsum("bij,jk->bik", x, SQUARE),
    "convert_to_tensor": lambda o, x, y: o.convert_to_tensor(x) + o.convert_to_tensor(y, dtype="float32"),
    "cast": lambda o, x, y: o.cast(o.cast(3 * x, "int32"), "float32") + o.cast(y, "float16"),
    "attention": lambda o, x, y: o.dot_product_attention(heads(o, x), heads(o, y), heads(o, x + y)),
    "attention with more": lambda o, x, y: o.dot_product_attention(
        heads(o, x), heads(o, y), heads(o, y), bias=o.reshape(x[:, :, :4], (-1, 1, 4, 4)), scale=0.25),
    "masked attention": lambda o, x, y: o.dot_product_attention(heads(o, x), heads(o, x), heads(o, y), mask=MASK),
    "causal attention": lambda o, x, y: o.dot_product_attention(heads(o, x), heads(o, y), heads(o, x), is_causal=True),
    "normalize": lambda o, x, y: o.normalize(x, axis=-1) + o.normalize(y, axis=1),
    "not_equal": lambda o, x, y: o.where(o.not_equal(x, y), x, y) + o.where(x[:, :2] != y[:, :2], 1.0, 0.0)[:, :1],
    "logic": lambda o, x, y: o.where((x > 0) & (y > 0) | ~(x < y), x, y) + o.where((x > 0) ^ (y > 0), 1.0, y),
    "logic of numbers": lambda o, x, y: o.where(o.logical_and(x, o.relu(y)), x, o.where(o.logical_not(x), 1.0, y)),
    "quotients": lambda o, x, y: x // 0.3 + 2.0 // (o.abs(y) + 1.0) + o.floor_divide(y, x),
    "remainders": lambda o, x, y: x % 0.7 + 2.0 % (o.abs(y) + 1.0) + o.mod(y, 3.0),
    "powers": lambda o, x, y: (o.abs(x) + 0.5) ** y + 2.0 ** x + y ** 2 + (o.abs(y) + 0.1) ** 0.5,
    "like": lambda o, x, y: x * o.ones_like(y) + o.zeros_like(x) + o.ones_like(x[:, :1]),
    "pad": lambda o, x, y: o.pad(x, ((0, 0), (1, 2), (0, 1)), **{VALUE[o is mp.ops]: 0.5}),
    "ravel": lambda o, x, y: o.reshape(o.ravel(x), (-1, 4, 6)) + o.broadcast_to(ROW, (4, 6)) * y,
    "classes": lambda o, x, y: o.one_hot(o.cast(o.clip(3 * x, -1, 3), "int32"), 4, axis=1) + o.one_hot(
        o.argmax(y, axis=1), 6, dtype="float16")[:, None, :4, None],
    "order": lambda o, x, y: o.sort(x) - o.cast(o.argsort(y, axis=1), "float32") + o.sort(y, axis=1),
    "the largest": lambda o, x, y: o.top_k(x, 2)[0] + o.cast(o.top_k(y, 2)[1], "float32"),
    "parts": lambda o, x, y: o.take(x, [0, 5, 0, 2], axis=2) + o.take(y, [[1, 3]], axis=1)[:, 0, :1, :4],
    "repeated": lambda o, x, y: o.repeat(x, 2, axis=1) - o.tile(y, (1, 2, 1))
        + o.roll(o.repeat(y, 2, axis=1), 3, axis=1),
    "rolled": lambda o, x, y: o.roll(x, -2, axis=2) + o.roll(y, 1, axis=1),
    "running sums": lambda o, x, y: o.cumsum(x, axis=1) + o.cumsum(y, axis=-1),
    "dot": lambda o, x, y: o.dot(x, SQUARE) + o.dot(o.dot(y, np.float32(0.5)), SQUARE),
    "norms": lambda o, x, y: o.norm(x, axis=-1) + o.norm(y, ord=1, axis=2) + o.norm(x, ord=np.inf, axis=2)
        + o.norm(y, axis=(1, 2), ord="fro", keepdims=True)[:, 0] - o.norm(x, ord=-np.inf, axis=-1),
    "finite": lambda o, x, y: o.where(o.isnan(x / 0), x, y) + o.where(o.isinf(1 / (0 * y)), 1.0, x)
        + o.where(o.isfinite(x), x, 0.0),
    "all and any": lambda o, x, y: o.where(o.all(x > 0, axis=1, keepdims=True), x, y) + o.where(
        o.any(y > 1, axis=(1, 2), keepdims=True), x, 1.0),
    "whole numbers": lambda o, x, y: x * o.floor(3 * x) + y * o.ceil(y) + o.round(3 * x) + o.sign(y),
    "corners": lambda o, x, y: o.tril(x) + o.triu(y, k=1) - o.tril(y, k=-2),
    "full": lambda o, x, y: x + o.full_like(y, 2.0),
    "inverse functions": lambda o, x, y: o.arcsin(0.2 * o.tanh(x)) + o.arccos(0.2 * o.tanh(y)) + o.arcsinh(x)
        + o.arccosh(o.square(y) + 1.5) + o.arctanh(0.2 * o.tanh(x)),
    "division": lambda o, x, y: o.true_divide(x, o.abs(y) + 1) + o.divide(y, 3),
}  # fmt: skip


def model(library, case):
    x, y = library.Input((4, 6), name="x"), library.Input((4, 6), name="y")
    return library.Model([x, y], CASES[case](library.ops, x, y))


@pytest.mark.parametrize("case", CASES)
def test_models_of_operations_are_those_of_keras(case, tmp_path):
    mine, theirs = model(mp, case), model(keras, case)
    expected = keras.ops.convert_to_numpy(theirs([X, Y]))
    np.testing.assert_allclose(mine([X, Y]), expected, rtol=3e-6, atol=2e-6)
    assert mine.outputs.shape == theirs.outputs[0].shape if hasattr(mine.outputs, "shape") else True
    mine.save(tmp_path / "mine.keras")
    theirs.save(tmp_path / "theirs.keras")
    opened = keras.saving.load_model(tmp_path / "mine.keras")
    np.testing.assert_allclose(keras.ops.convert_to_numpy(opened([X, Y])), expected, rtol=3e-6, atol=2e-6)
    for path in ("mine", "theirs"):
        np.testing.assert_array_equal(mp.load_model(tmp_path / f"{path}.keras")([X, Y]), mine([X, Y]))
    again = mp.Functional.from_config(mine.get_config())
    np.testing.assert_array_equal(again([X, Y]), mine([X, Y]))


UNPLANNED = ("argmax", "cast", "quotients", "remainders", "classes", "order", "the largest")
"""Cases with integers, quotients or an order in the middle, which plans cannot see."""


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")  # of what is read by its shape
@pytest.mark.parametrize("case", [case for case in CASES if case not in UNPLANNED])
def test_a_step_of_training_is_that_of_keras(case):
    """The operations come behind layers with weights, which SGD moves."""
    stepped = []
    for library in (mp, keras):
        x, y = library.Input((4, 6), name="x"), library.Input((4, 6), name="y")
        start = {"kernel_initializer": library.initializers.Constant(SQUARE)}
        one, other = (library.layers.Dense(6, name=name, **start) for name in ("one", "other"))
        trained = library.Model([x, y], library.ops.cast(CASES[case](library.ops, one(x), other(y)), "float32"))
        trained.compile(library.optimizers.SGD(0.01), "mse")
        trained.train_on_batch([X, Y], np.ones(trained.outputs[0].shape[1:], np.float32)[np.newaxis].repeat(3, 0))
        stepped.append(
            [np.array(keras.ops.convert_to_numpy(w) if library is keras else w) for w in trained.get_weights()]
        )
    for mine, theirs in zip(*stepped, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_what_is_between_layers_trains():
    x = mp.Input((4, 6))
    hidden = mp.layers.Dense(8, activation="tanh")(x)
    outputs = mp.layers.Dense(2)(mp.ops.concatenate([hidden[:, 0], mp.ops.mean(hidden, axis=1)], axis=-1))
    trained = mp.Model(x, outputs)
    trained.compile(mp.optimizers.Adam(0.05), "mse")
    target = np.stack([X[:, 0, 0], X.mean((1, 2))], axis=1)
    losses = trained.fit(X, target, epochs=30, verbose=0).history["loss"]
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda x: x[[0, 1]], TypeError, "an index of a symbolic array must be of integers, slices"),
        (lambda x: x[x > 0], TypeError, "an index of a symbolic array"),
        (lambda x: x[True], TypeError, "an index of a symbolic array"),
        (lambda x: np.exp(x), TypeError, "numpy.exp of <KerasTensor"),
        (lambda x: mp.ops.rotary(x, x), TypeError, "of <KerasTensor"),
        (lambda x: mp.matmul(x, x), ValueError, "last axis of `a` must fit"),
        (lambda x: mp.ops.softmax(x, scale=2.0), TypeError, "`scale` of mp_core.ops.softmax must not be given"),
        (lambda x: mp.ops.add(x, None), TypeError, "must be a number or an array; received None"),
        (lambda x: x + "a", TypeError, "must be a number or an array; received 'a'"),
        (lambda x: x * mp.AutoCastVariable(np.ones(6, np.float32)), TypeError, "a variable must be read in the `call`"),
        (lambda x: mp.ops.rms_norm(x), TypeError, "its weights belong to a layer: use RMSNormalization"),
        (lambda x: bool(x), TypeError, "the truth of <KerasTensor"),
        (lambda x: Operation("Sum", {"axes": 1}), ValueError, "`options` of Sum must be of"),
        (lambda x: Operation("Where", [1, 2, 3]), ValueError, "`options` of Where must be of"),
        (lambda x: Operation("Normalize", {"order": 1}), ValueError, "`order` of Normalize must be 2"),
    ],
)  # fmt: skip
def test_what_is_no_operation_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make(mp.Input((4, 6)))


def test_every_operation_takes_symbolic_arrays_or_says_why_not():
    names = {row.function.__name__ for row in OPERATIONS.values()}
    others = {name for name in mp.ops.__all__ if getattr(mp.ops, name).__name__ not in names}
    assert others == set(EAGER_ONLY)
    page = (Path(__file__).parents[1] / "docs" / "symbolic.md").read_text()
    assert [f"| `{name}` | {reason} |" in page for name, reason in EAGER_ONLY.items()] == [True] * len(EAGER_ONLY)


@pytest.mark.parametrize("name", OPERATIONS)
def test_options_are_those_of_keras(name):
    row = OPERATIONS[name]
    kind = getattr(importlib.import_module(f"keras.src.ops.{row.home}"), name)
    parameters = inspect.signature(kind.__init__).parameters
    theirs = {key: p.default for key, p in parameters.items() if key not in ("self", "name")}
    assert set(theirs) == {*row.options, *row.fixed}
    own = inspect.signature(row.function).parameters
    for key, ours in row.options.items():
        assert row.defaults.get(key, own[ours].default) == theirs[key]
    assert all(theirs[key] in values for key, values in row.fixed.items())
    assert set(row.operands) | set(row.options.values()) <= set(own)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_numbers_beside_16_bits_are_rounded_first_in_models_and_plans_as_in_operations(kind):
    """As in Keras on JAX; NumPy and ml_dtypes round the results of 16 bits once."""
    x = mp.Input((6,), dtype=kind)
    model = mp.Model(x, [x + 0.1, 0.3 * x, x / 0.7, mp.ops.maximum(x, 0.1)])
    given = mp.cast(X[:, 0], kind)
    a, b, c = mp.cast([0.1, 0.3, 0.7], kind)
    expected = [given + a, b * given, given / c, np.maximum(given, a)]
    eager = [mp.ops.add(given, 0.1), mp.ops.multiply(0.3, given), mp.ops.divide(given, 0.7), mp.ops.maximum(given, 0.1)]
    for results in (model(given), mp.compile(model, given)(given), eager):
        for mine, theirs in zip(results, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(mine, np.float32), np.asarray(theirs, np.float32))


def test_constants_of_all_kinds_are_saved(tmp_path):
    """Keras refuses some of these symbolically, so NumPy is asked."""
    x = mp.Input((6,), name="x")
    outputs = [x * np.float32(0.5), ROW - x, x + list(range(1, 7)), np.float64(2.0) * x, x @ SQUARE,
               mp.ops.concatenate([x, np.ones((3, 2), np.float32)], axis=1), x[:, ::-2], x * True]  # fmt: skip
    assert {y.dtype for y in outputs} == {"float32"}
    model = mp.Model(x, outputs)
    model.save(tmp_path / "model.keras")
    given = X[:, 0]
    expected = [given * 0.5, ROW - given, given + np.arange(1, 7), 2 * given, given @ SQUARE,
                np.concatenate([given, np.ones((3, 2))], axis=1), given[:, ::-2], given]  # fmt: skip
    again = mp.load_model(tmp_path / "model.keras")
    copies = [again, mp.models.model_from_json(model.to_json()), mp.Functional.from_config(model.get_config())]
    for found in (model, *copies):
        for mine, theirs in zip(found(given), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_constant_does_not_change_with_the_array_it_was_made_of():
    x, row = mp.Input((6,)), ROW.copy()
    model = mp.Model(x, x + row)
    expected = model(X[:, 0])
    row[:] = 0
    np.testing.assert_array_equal(model(X[:, 0]), expected)


def test_what_numpy_computes_runs_in_models_call_by_call():
    x = mp.Input((6,), dtype="int32")
    model = mp.Model(x, [x // 4, x % 4, -x, abs(x), ~(x > 2) | (x < 0), x**2, 7 // (abs(x) + 1)])
    ids = np.arange(-9, 9, dtype=np.int32).reshape(3, 6)
    expected = [ids // 4, ids % 4, -ids, abs(ids), ~(ids > 2) | (ids < 0), ids**2, 7 // (abs(ids) + 1)]
    for _ in range(2):
        for mine, theirs in zip(model.predict(ids), expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)
            assert mine.dtype == theirs.dtype
