"""Operations with Keras' names: results and gradients compared with Keras on torch, and in plans."""

import os

import numpy as np
import pytest

import mp_core as mp
from mp_core import ops

os.environ.setdefault("KERAS_BACKEND", "torch")
keras, torch = pytest.importorskip("keras"), pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of torch

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)

# Name -> calls of it, of the operations of a library.
CALLS = {
    "reshape": lambda o, x, y: o.reshape(x, (-1, 2)),
    "ravel": lambda o, x, y: o.ravel(x),
    "transpose": lambda o, x, y: o.transpose(x),
    "transpose axes": lambda o, x, y: o.transpose(o.expand_dims(x, 0), (2, 0, 1)),
    "swapaxes": lambda o, x, y: o.swapaxes(x, 0, 1),
    "moveaxis": lambda o, x, y: o.moveaxis(x, 0, -1),
    "expand_dims": lambda o, x, y: o.expand_dims(x, (0, 2)),
    "squeeze": lambda o, x, y: o.squeeze(o.expand_dims(x, 1), 1),
    "flip": lambda o, x, y: o.flip(x, 1),
    "broadcast_to": lambda o, x, y: o.broadcast_to(x, (2, 3, 4)),
    "split": lambda o, x, y: o.split(x, 2, axis=1)[1],
    "split at": lambda o, x, y: o.split(x, [1, 3], axis=1)[1],
    "concatenate": lambda o, x, y: o.concatenate([x, y], axis=1),
    "stack": lambda o, x, y: o.stack([x, y], axis=-1),
    "zeros_like": lambda o, x, y: o.add(x, o.zeros_like(x)),
    "ones_like": lambda o, x, y: o.add(x, o.ones_like(x)),
    "abs": lambda o, x, y: o.abs(x),
    "var": lambda o, x, y: o.var(x, axis=1),
    "var of all": lambda o, x, y: o.var(x),
    "std": lambda o, x, y: o.std(x, axis=0, keepdims=True),
    "logsumexp": lambda o, x, y: o.logsumexp(x, axis=-1),
    "logsumexp of all": lambda o, x, y: o.logsumexp(x),
    "rsqrt": lambda o, x, y: o.rsqrt(o.add(o.abs(x), 1.0)),
    "reciprocal": lambda o, x, y: o.reciprocal(o.add(o.abs(x), 1.0)),
    "exponentials": lambda o, x, y: o.expm1(x) + o.exp2(y) + o.sinh(x) + o.cosh(y) + o.selu(x) + o.log_sigmoid(y),
    "logarithms": lambda o, x, y: o.log2(o.add(o.abs(x), 1.0)) + o.log10(o.add(o.abs(y), 1.0)),
    "angles": lambda o, x, y: o.sin(x) + o.cos(y) + o.tan(x) + o.arctan(y),
    "error functions": lambda o, x, y: o.erf(x) + o.erfc(y) + o.softsign(x),
    "full_like": lambda o, x, y: o.multiply(x, o.full_like(x, 2.0)),
    "cumsum": lambda o, x, y: o.cumsum(x, axis=1),
    "cumsum of all": lambda o, x, y: o.cumsum(o.multiply(x, y)),
    "take": lambda o, x, y: o.take(x, np.array([2, 0, 2]), axis=1),
    "take of all": lambda o, x, y: o.take(x, np.array([[2, 0], [11, 2]])),
    "repeat": lambda o, x, y: o.repeat(x, 3, axis=0),
    "repeat of all": lambda o, x, y: o.repeat(x, 2),
    "tile": lambda o, x, y: o.tile(x, (2, 1, 3)),
    "roll": lambda o, x, y: o.roll(o.multiply(x, y), 5, axis=1),
    "roll of all": lambda o, x, y: o.roll(x, -3),
    "dot": lambda o, x, y: o.dot(x, o.transpose(y)),
    "dot of vectors": lambda o, x, y: o.dot(x[0], y[1]),
    "dot of more axes": lambda o, x, y: (
        o.dot(x, o.reshape(y, (3, 4, 1))) if o is ops else o.tensordot(x, o.reshape(y, (3, 4, 1)), axes=[[1], [1]])
    ),
    "norm": lambda o, x, y: o.norm(x, axis=-1),
    "norm of all": lambda o, x, y: o.norm(x),
    "norm 1": lambda o, x, y: o.norm(x, ord=1, axis=0, keepdims=True),
    "norm inf": lambda o, x, y: o.norm(x, ord=np.inf, axis=1),
    "isnan": lambda o, x, y: o.where(o.isnan(o.sqrt(o.stop_gradient(x))), x, y),
    "isfinite": lambda o, x, y: o.where(o.isfinite(o.log(o.stop_gradient(x))), x, y),
    "all": lambda o, x, y: o.where(o.all(o.greater(x, -0.5), axis=1, keepdims=True), x, y),
    "one_hot": lambda o, x, y: o.multiply(o.one_hot(np.array([1, 3, -1]), 4), x),
    "constants": lambda o, x, y: o.multiply(o.add(x, o.ones((3, 4))), o.arange(4, dtype="float32")),
    "linspace": lambda o, x, y: o.multiply(o.add(x, o.zeros(4)), o.linspace(0.0, 1.0, 4)),
    "eye": lambda o, x, y: o.matmul(x, o.eye(4, k=1)),
    "full": lambda o, x, y: o.multiply(x, o.full((3, 1), 0.5)),
    "stop_gradient": lambda o, x, y: o.multiply(x, o.stop_gradient(x)),
    **{
        name: (lambda o, x, y, name=name: o.where(getattr(o, name)(x, y), x, o.square(y)))
        for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    },
}


def of_keras(call, x, y):
    """Return the result of Keras and the gradients of the sum of its squares."""
    x, y = (torch.tensor(each, requires_grad=True) for each in (x, y))
    with keras.device("cpu"):
        result = call(keras.ops, x, y)
        (keras.ops.sum(keras.ops.square(result)) + keras.ops.sum(y)).backward()
    return result.detach().numpy(), [torch.zeros(x.shape) if each.grad is None else each.grad for each in (x, y)]


@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_those_of_keras(name):
    call = CALLS[name]
    expected, gradients = of_keras(call, X, Y)
    got = call(ops, X, Y)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-6)
    variables = [mp.AutoCastVariable(X), mp.AutoCastVariable(Y)]

    def loss(zero):
        x, y = (ops.add(v, zero) for v in variables)
        return ops.sum(ops.ravel(ops.square(call(ops, x, y)))) + ops.sum(y)

    value, found = mp.value_and_grad(loss, variables)(np.float32([0.0]))
    np.testing.assert_allclose(value, np.square(expected.astype(np.float64)).sum() + Y.sum(), rtol=1e-5)
    for gradient, wanted in zip(found, gradients, strict=True):
        np.testing.assert_allclose(gradient, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_statistics_round_once_to_the_type_of_their_arguments(dtype):
    x = mp.cast(X * 300, dtype)  # whose squares overflow in float16
    wide = x.astype(np.float64)
    for call, expected in (
        (lambda: ops.std(x, axis=1), wide.std(axis=1)),
        (lambda: ops.logsumexp(x, axis=1), np.logaddexp.reduce(wide, axis=1)),
        (lambda: ops.rsqrt(ops.abs(x)), 1 / np.sqrt(abs(wide))),
    ):
        got = call()
        assert got.dtype.name == dtype
        bound = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 1e-14}[dtype]
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=bound)


def test_logarithms_of_sums_of_infinities():
    x = np.float32([[-np.inf, -np.inf], [np.inf, 1], [-np.inf, 3]])
    np.testing.assert_array_equal(ops.logsumexp(x, axis=1), np.float32([-np.inf, np.inf, 3]))


def test_integers_are_compared_exactly():
    assert not ops.equal(np.int64(2**60), np.int64(2**60 + 1))
    assert ops.less(np.array([1, 2]), np.array([2, 2])).tolist() == [True, False]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.concatenate([]), "`xs` must be arrays"),
        (lambda: ops.concatenate([X, X[:, :2]], axis=0), "`xs` must have the same shape except along axis 0"),
        (lambda: ops.stack([X, X[:2]]), "`x` must be arrays of one shape"),
        (lambda: ops.stack([]), "`x` must be arrays of one shape"),
        (lambda: ops.reshape(X, (5, -1)), "reshape"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("dtype", ["bool", "float32"])
def test_classes_are_integers_in_symbols_too(dtype):
    for x in (np.zeros(2, dtype), mp.Input((2,), dtype=dtype)):
        with pytest.raises(TypeError, match=f"`x` must have integers; received {dtype}"):
            ops.one_hot(x, 3)
