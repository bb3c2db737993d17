"""Operations compute in the order of memory: images in channels-first notation stay channels-last, without copies."""

import numpy as np
import pytest

import mp_core as mp
from mp_core import ops
from mp_core.arrays import memory_order

RNG = np.random.default_rng(9)
FIRST = (0, 3, 1, 2)  # the axes of a channels-last array in channels-first notation
X = RNG.standard_normal((2, 8, 8, 4)).astype(np.float32)


def network(x):
    """A block of a convolution network on channels-first views: x is channels-last in memory."""
    kernel = mp.cast(np.linspace(-1, 1, 3 * 3 * 4 * 4).reshape(36, 4), x.dtype)
    scale = mp.cast(np.linspace(0.5, 1.5, 4).reshape(4, 1, 1), x.dtype)
    padded = ops.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    y = ops.matmul(windows.transpose(0, 1, 2, 4, 5, 3).reshape(2, 8, 8, 36), kernel).transpose(FIRST)
    y = ops.relu(ops.add(ops.multiply(y, scale), scale))
    y = ops.add(y, x.transpose(FIRST))
    y = ops.concatenate([y, ops.where(ops.greater(y, 1.0), y, 0.0)], axis=1)
    return ops.mean(ops.cast(ops.cast(y, "float16"), "float32"), axis=(2, 3)), y


def test_a_block_in_channels_first_notation_has_no_copy():
    plan = mp.compile(network, X)
    names = [step.name for step in plan.profile(repeat=1)]
    own = ["fill", "copy", "copy"]  # the padding; the windows of the convolution
    assert names[:3] == own and names[3] == "product 36x4"
    joined = ["copy", "copy"]  # the parts that are concatenated
    assert names[4:] == ["multiply", "add", "activation", "add", "greater", "where", *joined, "cast", "cast", "sums"]
    for found, expected in zip(plan(-X), network(-X), strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.strides == expected.strides


OF_ONE = {
    "relu": ops.relu, "exp": ops.exp, "square": ops.square, "cast": lambda x: ops.cast(x, "bfloat16"),
    "int": lambda x: ops.cast(x, "int32"), "stop_gradient": ops.stop_gradient, "sign": ops.sign,
    "add": lambda x: ops.add(x, np.ones((4, 1, 1), np.float32)), "where": lambda x: ops.where(ops.less(x, 0.0), x, 1.0),
    "pad": lambda x: ops.pad(x, [(0, 0), (0, 1), (2, 0), (0, 0)]),
    "concatenate": lambda x: ops.concatenate([x, x], 1),
    "part": lambda x: ops.negative(x[:, 1:3]),
}  # fmt: skip


COPIES = ("pad", "concatenate", "stop_gradient", "sign")  # by their meaning


@pytest.mark.parametrize("name", OF_ONE)
def test_results_keep_the_order_of_memory_and_the_values(name):
    given = X.transpose(FIRST)
    expected = OF_ONE[name](np.ascontiguousarray(given))
    found = OF_ONE[name](given)
    assert found.transpose(0, 2, 3, 1).flags.c_contiguous
    np.testing.assert_array_equal(found, expected)
    plan = mp.compile(lambda x: OF_ONE[name](x.transpose(FIRST)), np.zeros_like(X))
    np.testing.assert_array_equal(plan(X), expected)
    assert "copy" not in [step.name for step in plan.profile(repeat=1)] or name in COPIES


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2), (2, 3, 0, 1)])
def test_every_order_of_axes_gives_the_same_bits(order):
    wide = RNG.standard_normal((3, 1, 5, 4)).astype(np.float32)
    for view in (wide.transpose(order), wide[:, :, ::-1].transpose(order), wide[..., ::2].transpose(order),
                 np.broadcast_to(wide[:, :, :1], (3, 1, 5, 4)).transpose(order)):  # fmt: skip
        for call in OF_ONE.values():
            try:
                expected = call(np.ascontiguousarray(view))
            except ValueError:  # the constants of a call do not broadcast
                continue
            np.testing.assert_array_equal(call(view), expected)


@pytest.mark.parametrize(("shape", "order"), [
    ((1, 5, 6, 3), (0, 2, 3, 1)), ((2, 5, 6, 1), None), ((2, 1, 6, 3), (0, 3, 2, 1)), ((1, 1, 6, 3), (0, 3, 2, 1))
])  # fmt: skip
def test_axes_of_length_1_keep_their_places(shape, order):
    x = np.zeros(shape, np.float32).transpose(FIRST)
    assert memory_order(x) == order
    assert np.exp(x).strides == ops.exp(x).strides or 1 in shape


def test_gradients_pass_through_permuted_arrays():
    w = mp.AutoCastVariable(np.linspace(-1, 1, 4, dtype=np.float32), name="w")

    def loss(x, first):
        y = x * w if first is None else (x.transpose(FIRST) * ops.reshape(w, (4, 1, 1)))
        return mp.sum(ops.square(ops.relu(y)))

    of_last, of_first = (mp.grad(lambda x, f=f: loss(x, f), [w])(X)[0] for f in (None, FIRST))
    np.testing.assert_allclose(of_first, of_last, rtol=1e-5)
