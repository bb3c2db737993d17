"""Normalization by statistics of channels and groups: equal to torch's, with gradients, plans and types."""

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core import layers, ops

torch = pytest.importorskip("torch")
F = torch.nn.functional

MEAN, VARIANCE, SCALE, OFFSET = np.random.default_rng(1).uniform(0.5, 2.0, (4, 6)).astype(np.float32)


def first(function, x):
    """The result of torch's function, which has channels at axis 1, for channels last."""
    return torch.movedim(function(torch.movedim(x, -1, 1)), 1, -1)


def vectors(x):
    return [torch.tensor(v, dtype=x.dtype) for v in (MEAN, VARIANCE, SCALE, OFFSET)]


def batch_of_torch(x):
    mean, variance, scale, offset = vectors(x)
    return first(lambda x: F.batch_norm(x, mean, variance, scale, offset, eps=1e-3), x)


# Name -> the operation for an axis, and torch's function.
CASES = {
    "batch": (lambda x, axis: ops.batch_normalization(x, MEAN, VARIANCE, axis, OFFSET, SCALE), batch_of_torch),
    "batch of statistics only": (
        lambda x, axis: ops.batch_normalization(x, MEAN, VARIANCE, axis),
        lambda x: first(lambda x: F.batch_norm(x, *vectors(x)[:2], eps=1e-3), x),
    ),
    "group": (
        lambda x, axis: ops.group_normalization(x, 3, axis, SCALE, OFFSET),
        lambda x: first(lambda x: F.group_norm(x, 3, *vectors(x)[2:], eps=1e-3), x),
    ),
    "instance": (
        lambda x, axis: ops.group_normalization(x, 6, axis, epsilon=1e-5),
        lambda x: first(lambda x: F.instance_norm(x), x),
    ),
    "local response": (
        lambda x, axis: ops.local_response_normalization(x, 3, 0.3, 0.7, 1.5, axis),
        lambda x: first(lambda x: F.local_response_norm(x, 3, 0.3, 0.7, 1.5), x),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_torch(name, rng):
    operation, reference = CASES[name]
    x = rng.standard_normal((2, 3, 4, 6))
    expected = reference(torch.tensor(x)).numpy()
    for axis in (-1, 1, 2):
        arranged = np.moveaxis(x, -1, axis)
        for dtype, error in (("float64", 1e-12), ("float32", 2e-6)):
            found = operation(arranged.astype(dtype), axis)
            assert found.dtype.name == dtype
            np.testing.assert_allclose(found, np.moveaxis(expected, -1, axis), rtol=error, atol=error)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_torch(name, rng):
    operation, reference = CASES[name]
    x, d = rng.standard_normal((2, 2, 3, 4, 6)).astype(np.float32)
    given = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    (reference(given) * torch.tensor(d)).sum().backward()
    variable = mp.AutoCastVariable(x, autocast=False, name="x")
    step = mp.value_and_grad(lambda d: mp.sum(ops.multiply(operation(variable.numpy(), -1), d)), [variable])
    np.testing.assert_allclose(step(d)[1][0], given.grad.numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_plans_give_the_bits_of_calls_on_every_set(isa, name, dtype, rng):
    operation, _ = CASES[name]
    x = mp.cast(rng.standard_normal((2, 3, 4, 6)), dtype)
    found = operation(x, -1)
    assert found.dtype == x.dtype
    assert_same_bits(mp.compile(lambda x: operation(x, -1), np.ones_like(x))(x), found)
    assert_same_bits(found, mp.cast(operation(x.astype(np.float32), -1), dtype))


def test_operations_have_the_bits_of_layers(rng):
    x = rng.standard_normal((2, 3, 4, 6)).astype(np.float32)
    layer = layers.BatchNormalization()
    layer.build(x.shape)
    layer.set_weights([SCALE, OFFSET, MEAN, VARIANCE])
    assert_same_bits(ops.batch_normalization(x, MEAN, VARIANCE, -1, OFFSET, SCALE), layer(x))
    layer = layers.GroupNormalization(3)
    layer.build(x.shape)
    layer.set_weights([SCALE, OFFSET])
    assert_same_bits(ops.group_normalization(x, 3, -1, SCALE, OFFSET), layer(x))


@pytest.mark.parametrize("size", [1, 2, 4, 9])
def test_neighbours_are_those_of_onnx(size, rng):
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    x = rng.standard_normal((6, 6, 3, 2)).astype(np.float32)  # the reference computes as many channels as examples
    node = onnx.helper.make_node("LRN", ["x"], ["y"], size=size, alpha=0.2, beta=0.5, bias=2.0)
    info = [onnx.helper.make_tensor_value_info(name, 1, None) for name in "xy"]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", info[:1], info[1:]))
    expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(ops.local_response_normalization(x, size, 0.2, 0.5, 2.0, 1), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.batch_normalization(x, MEAN[:5], VARIANCE, -1), r"`mean` must have shape \(6,\)"),
        (lambda x: ops.batch_normalization(x, MEAN, VARIANCE, 1), r"`mean` must have shape \(3,\)"),
        (lambda x: ops.group_normalization(x, 4), "`groups` must divide"),
        (lambda x: ops.group_normalization(x, 2, 0), "`groups` must divide the length of an axis after the first"),
        (lambda x: ops.group_normalization(x, 2, scale=MEAN[:2]), r"`scale` must have shape \(6,\)"),
        (lambda x: ops.local_response_normalization(x, 0), "`size` must be a positive integer"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.zeros((2, 3, 6), np.float32))
