"""ops.max_pool and ops.average_pool equal torch's, with all options; gradients, plans and types too."""

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core import ops

torch = pytest.importorskip("torch")
F = torch.nn.functional

# shape (batch, channels, places ...), window, strides, padding, dilation
CASES = {
    "one axis": ((2, 3, 9), (3,), (2,), (0,), (1,)),
    "padding": ((2, 3, 9), (4,), (3,), (2,), (1,)),
    "two axes": ((2, 5, 8, 7), (2, 3), (2, 3), (1, 0), (1, 1)),
    "overlapping": ((1, 16, 9, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
    "dilation": ((1, 4, 9, 8), (3, 2), (2, 1), (1, 1), (2, 3)),
    "three axes": ((2, 2, 5, 6, 4), (2, 3, 2), (2, 2, 1), (1, 1, 0), (1, 1, 1)),
}
MAX = [getattr(F, f"max_pool{rank}d") for rank in (1, 2, 3)]
AVERAGE = [getattr(F, f"avg_pool{rank}d") for rank in (1, 2, 3)]


def arguments(name, **more):
    shape, size, strides, padding, dilation = CASES[name]
    return shape, {"pool_size": size, "strides": strides, "padding": padding, "dilation": dilation, **more}


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_maxima_and_their_places_are_those_of_torch(name, ceil, rng):
    shape, options = arguments(name, ceil_mode=ceil, data_format="channels_first")
    x = rng.integers(-4, 5, shape).astype(np.float32)  # with equal elements
    x.flat[5], x.flat[-1] = np.nan, np.inf
    _, size, strides, padding, dilation = CASES[name]
    values, places = MAX[len(size) - 1](
        torch.tensor(x), size, strides, padding, dilation, ceil_mode=ceil, return_indices=True
    )
    assert_same_bits(ops.max_pool(x, **options), values.numpy())
    found = ops.max_pool(x, **options, return_indices=True)
    assert_same_bits(found[0], values.numpy())
    np.testing.assert_array_equal(found[1], places.numpy())
    assert found[1].dtype == np.int32
    last = {**options, "data_format": "channels_last"}
    assert_same_bits(np.moveaxis(ops.max_pool(np.moveaxis(x, 1, -1), **last), -1, 1), values.numpy())


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("name", [name for name in CASES if name != "dilation"])
def test_means_are_those_of_torch(name, ceil, counted, rng):
    shape, options = arguments(name, ceil_mode=ceil, data_format="channels_first", count_include_pad=counted)
    x = rng.standard_normal(shape).astype(np.float32)
    _, size, strides, padding, _ = CASES[name]
    expected = AVERAGE[len(size) - 1](
        torch.tensor(x, dtype=torch.float64), size, strides, padding, ceil_mode=ceil, count_include_pad=counted
    )
    np.testing.assert_allclose(ops.average_pool(x, **options), expected.numpy(), rtol=1e-6, atol=1e-6)
    found = ops.average_pool(x.astype(np.float64), **options)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-14, atol=1e-14)


def test_means_with_gaps_and_pairs_of_paddings_are_those_of_a_convolution(rng):
    x = rng.standard_normal((2, 1, 9, 8))
    options = {"pool_size": (3, 2), "strides": (1, 2), "dilation": (2, 3), "data_format": "channels_first"}
    padded = torch.tensor(np.pad(x, [(0, 0), (0, 0), (1, 2), (0, 3)]))
    ones = torch.tensor(np.pad(np.ones_like(x), [(0, 0), (0, 0), (1, 2), (0, 3)]))
    sums, counts = (
        F.conv2d(part, torch.ones(1, 1, 3, 2, dtype=torch.float64), stride=(1, 2), dilation=(2, 3)).numpy()
        for part in (padded, ones)
    )
    pairs = [(1, 2), (0, 3)]
    np.testing.assert_allclose(ops.average_pool(x, padding=pairs, **options), sums / counts, rtol=1e-13)
    found = ops.average_pool(x, padding=pairs, count_include_pad=True, **options)
    np.testing.assert_allclose(found, sums / 6, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("function", [ops.max_pool, ops.average_pool])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_torch(function, name, rng):
    shape, options = arguments(name, ceil_mode=True, data_format="channels_first")
    _, size, strides, padding, dilation = CASES[name]
    if function is ops.average_pool:
        options["dilation"], dilation = 1, None
    x = rng.standard_normal(shape).astype(np.float32)
    given = torch.tensor(x, requires_grad=True)
    if dilation:
        result = MAX[len(size) - 1](given, size, strides, padding, dilation, ceil_mode=True)
    else:
        result = AVERAGE[len(size) - 1](given, size, strides, padding, ceil_mode=True, count_include_pad=False)
    d = rng.standard_normal(tuple(result.shape)).astype(np.float32)
    (result * torch.tensor(d)).sum().backward()
    variable = mp.AutoCastVariable(x, autocast=False, name="x")
    step = mp.value_and_grad(lambda d: mp.sum(ops.multiply(function(variable.numpy(), **options), d)), [variable])
    np.testing.assert_allclose(step(d)[1][0], given.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_plans_give_the_bits_of_calls_on_every_set(isa, name, dtype, rng):
    shape, options = arguments(name, ceil_mode=True, data_format="channels_first")
    x = mp.cast(rng.standard_normal(shape), dtype)
    for function in (ops.max_pool, ops.average_pool):
        plan = mp.compile(lambda x, function=function: function(x, **options), np.ones_like(x))
        assert_same_bits(plan(x), function(x, **options))
        assert function(x, **options).dtype == x.dtype
        wide = function(x.astype(np.float32), **options)
        assert_same_bits(function(x, **options), mp.cast(wide, dtype))


def test_integers_of_8_bits_stay_and_others_are_refused():
    x = np.array([1, -3, 2, 4], np.int8).reshape(1, 4, 1)
    assert_same_bits(ops.max_pool(x, 3, 1, padding=1).ravel(), np.array([1, 2, 4, 4], np.int8))
    assert ops.average_pool(x, 2).dtype == np.float32
    with pytest.raises(TypeError, match="`inputs` must be floats, or integers of at most 16 bits"):
        ops.max_pool(x.astype(np.int32), 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool_size": 9}, "`pool_size` must be at most the spatial lengths"),
        ({"pool_size": 2, "padding": 2}, "`padding` must be from 0 to less than a window"),
        ({"pool_size": 2, "padding": "full"}, "`padding` must be 'valid', 'same', an integer"),
        ({"pool_size": (2, 2)}, "`pool_size` must be"),
        ({"pool_size": 2, "strides": 0}, "`strides` must be a positive integer"),
        ({"pool_size": 2, "data_format": "NHWC"}, "`data_format` must be"),
        ({"pool_size": 2, "dilation": 9}, "`pool_size` must be at most"),
        ({"pool_size": 2, "ceil_mode": 1}, "`ceil_mode` must be"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options, message):
    for function in (ops.max_pool, ops.average_pool):
        with pytest.raises((ValueError, TypeError), match=message):
            function(np.zeros((1, 5, 2), np.float32), **options)
    with pytest.raises(ValueError, match="`inputs` must have a batch axis"):
        ops.max_pool(np.zeros((5, 2), np.float32), 2)
