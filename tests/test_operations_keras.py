"""Operations between the layers of functional models: Keras opens what is saved, and the other way round."""

import os

import numpy as np
import pytest

import mp_core as mp
from mp_core.layers.operation import Operation

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of torch

RNG = np.random.default_rng(0)
X, Y = (RNG.standard_normal((3, 4, 6)).astype(np.float32) for _ in range(2))

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
    "gelu": lambda o, x, y: o.gelu(x, approximate=False) + o.gelu(y, approximate=True),
    "softmax": lambda o, x, y: o.softmax(x, axis=-1) + o.log_softmax(y, axis=1),
    "clip": lambda o, x, y: o.clip(x, -0.5, 0.5),
    "numbers": lambda o, x, y: o.maximum(x, 0.5) + o.power(o.abs(y) + 1, 3.0) + o.reciprocal(o.rsqrt(o.square(x) + 1)),
    "stop_gradient": lambda o, x, y: x + o.stop_gradient(y),
}


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
        (lambda x: mp.matmul(x, x), TypeError, "of <KerasTensor"),
        (lambda x: bool(x), TypeError, "the truth of <KerasTensor"),
        (lambda x: Operation("Sum", [None], {"axes": 1}), ValueError, "`options` of Sum must be of"),
        (lambda x: Operation("GetItem", [None, "x"]), ValueError, "an index must be of integers"),
        (lambda x: Operation("GetItem", [0, 0]), ValueError, "`constants` must be None and an index"),
        (lambda x: Operation("Where", [1, 2, 3]), ValueError, "`constants` must be numbers and None"),
    ],
)  # fmt: skip
def test_what_is_no_operation_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make(mp.Input((4, 6)))
