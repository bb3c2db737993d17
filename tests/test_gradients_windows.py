"""Gradients of views whose elements repeat, and of the layers that read windows."""

import numpy as np
import pytest
from gradients import check_rule, check_variables
from numpy.lib.stride_tricks import sliding_window_view
from oracles import assert_same_bits

import mp_core as mp
from mp_core import layers
from mp_core.core import cpu
from mp_core.dtypes import parse
from mp_core.ops.gradients.windows import added_windows, repeats


def replayed(x, elements, first, strides):
    """The elements of x in C order, each added in float32 to its place."""
    out = np.zeros(elements, np.float32)
    places = first + np.tensordot(strides, np.indices(x.shape), 1)
    for place, value in zip(places.reshape(-1).tolist(), x.astype(np.float32).reshape(-1), strict=True):
        out[place] += value
    return out


VIEWS = {
    "windows": lambda x: sliding_window_view(x, (3, 3), axis=(1, 2)),
    "windows, channels last": lambda x: np.moveaxis(sliding_window_view(x, (2, 3), axis=(1, 2)), 3, -1),
    "strided and dilated windows": lambda x: sliding_window_view(x, (5,), axis=(2,))[:, :, ::2, ..., ::2],
    "a broadcast": lambda x: np.broadcast_to(x, (3, *x.shape)),
    "a broadcast axis": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "backwards": lambda x: sliding_window_view(x[:, ::-1], 2, axis=1),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_elements_are_added_in_the_order_of_the_view(view, dtype, isa, rng):
    base = np.zeros((3, 6, 7, 4))
    taken = view(base)
    first = (taken.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // 8
    strides = tuple(stride // 8 for stride in taken.strides)
    assert repeats(taken)
    d = rng.standard_normal(taken.shape).astype(parse(dtype))
    expected = replayed(d, base.size, first, strides)
    for threads in (1, 3):
        with cpu.num_threads(threads):
            assert_same_bits(added_windows(d, base.size, first, strides, parse("float32")), expected)
    assert_same_bits(added_windows(d, base.size, first, strides, parse("bfloat16")), expected.astype(parse("bfloat16")))
    wide = added_windows(d.astype(np.float64), base.size, first, strides, parse("float64"))
    np.testing.assert_allclose(expected, wide, rtol=1e-5, atol=1e-5)


def test_views_without_repeated_elements_do_not_repeat():
    x = np.zeros((4, 6, 2))
    assert not any(repeats(view) for view in (x, x.T, x[::2, ::-1], x[:, 1:3], x[:1], np.moveaxis(x, 0, 1)))


def test_float64_of_views_is_what_difference_quotients_are(rng):
    x = rng.standard_normal((2, 5, 3))
    kernel = rng.standard_normal((6, 2))
    check_rule(lambda x: mp.matmul(sliding_window_view(x, 2, axis=1).reshape(2, 4, 6), kernel), x)
    check_rule(lambda x: mp.add(np.broadcast_to(x[:, np.newaxis], (2, 4, 5, 3)).reshape(2, 4, 15), np.ones(15)), x)


CONVOLUTIONS = {
    "Conv1D": (lambda **k: layers.Conv1D(4, 3, strides=2, padding="same", **k), (2, 9, 6)),
    "Conv1D causal": (lambda **k: layers.Conv1D(4, 3, dilation_rate=2, padding="causal", **k), (2, 9, 6)),
    "Conv2D": (lambda **k: layers.Conv2D(4, (3, 2), activation="relu", **k), (2, 6, 7, 3)),
    "Conv2D same": (lambda **k: layers.Conv2D(4, 3, strides=2, padding="same", **k), (2, 6, 7, 3)),
    "Conv2D groups": (lambda **k: layers.Conv2D(4, 3, groups=2, dilation_rate=2, **k), (2, 6, 7, 4)),
    "Conv2D channels first": (lambda **k: layers.Conv2D(4, 3, data_format="channels_first", **k), (2, 3, 6, 7)),
    "Conv3D": (lambda **k: layers.Conv3D(3, (2, 1, 2), strides=2, padding="same", **k), (2, 4, 3, 4, 2)),
    "Conv1DTranspose": (lambda **k: layers.Conv1DTranspose(4, 3, strides=2, padding="same", **k), (2, 5, 3)),
    "Conv1DTranspose beyond": (lambda **k: layers.Conv1DTranspose(4, 2, strides=3, activation="tanh", **k), (2, 5, 3)),
    "Conv2DTranspose": (
        lambda **k: layers.Conv2DTranspose(2, (3, 4), strides=2, output_padding=(0, 1), padding="same", **k),
        (2, 4, 3, 3)),
    "Conv3DTranspose": (
        lambda **k: layers.Conv3DTranspose(2, 2, dilation_rate=2, data_format="channels_first", **k), (2, 3, 2, 1, 3)),
    "DepthwiseConv2D": (lambda **k: layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same", **k), (2, 5, 6, 3)),
    "DepthwiseConv1D": (lambda **k: layers.DepthwiseConv1D(3, strides=2, padding="same", **k), (2, 7, 3)),
    "SeparableConv1D": (lambda **k: layers.SeparableConv1D(4, 3, depth_multiplier=2, **k), (2, 7, 3)),
    "SeparableConv2D": (
        lambda **k: layers.SeparableConv2D(4, 3, padding="same", activation="tanh", **k), (2, 5, 6, 3)),
    "TimeDistributed": (
        lambda **k: layers.TimeDistributed(layers.SeparableConv1D(2, 2, **k), **k), (2, 3, 5, 3)),
    "MaxPooling2D": (lambda **k: layers.MaxPooling2D(2, **k), (2, 6, 6, 3)),
    "MaxPooling2D overlapping": (lambda **k: layers.MaxPooling2D(3, strides=1, padding="same", **k), (2, 5, 6, 3)),
    "AveragePooling2D": (lambda **k: layers.AveragePooling2D(3, strides=2, padding="same", **k), (2, 5, 6, 3)),
    "GlobalAveragePooling2D": (lambda **k: layers.GlobalAveragePooling2D(**k), (2, 5, 6, 3)),
    "GlobalMaxPooling1D": (lambda **k: layers.GlobalMaxPooling1D(**k), (2, 5, 3)),
    "AdaptiveAveragePooling2D": (lambda **k: layers.AdaptiveAveragePooling2D(2, **k), (2, 5, 6, 3)),
    "AdaptiveMaxPooling1D": (lambda **k: layers.AdaptiveMaxPooling1D(2, **k), (2, 5, 3)),
    "ZeroPadding2D": (lambda **k: layers.ZeroPadding2D(1, **k), (2, 3, 4, 3)),
    "Cropping2D": (lambda **k: layers.Cropping2D(1, **k), (2, 5, 4, 3)),
    "UpSampling2D": (lambda **k: layers.UpSampling2D(2, **k), (2, 3, 4, 3)),
    "RepeatVector": (lambda **k: layers.RepeatVector(3, **k), (2, 4)),
    "BatchNormalization": (lambda **k: layers.BatchNormalization(**k), (3, 4, 5)),
    "GroupNormalization": (lambda **k: layers.GroupNormalization(2, **k), (3, 4, 6)),
}  # fmt: skip


@pytest.mark.parametrize(("make", "shape"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_gradients_of_layers_are_what_difference_quotients_are(make, shape, rng):
    layer = make(dtype="float64")
    x = layers.Layer(dtype="float64")
    x.built = True
    inputs = x.add_weight(shape, initializer=lambda shape, _: rng.standard_normal(shape), name="inputs")
    layer(inputs.numpy())
    weights = np.random.default_rng(3).uniform(0.5, 1.5, np.size(layer(inputs.numpy())))[:, np.newaxis]

    def value():
        return mp.matmul(layer(inputs.numpy()).reshape(1, -1), weights)

    check_variables(value, [inputs, *layer.trainable_variables])


@pytest.mark.parametrize("shape", [(5,), (1, 5)])
def test_one_element_of_an_array_hands_its_gradient_on(shape):
    variable = mp.AutoCastVariable(np.arange(5, dtype=np.float32).reshape(shape))
    step = mp.value_and_grad(lambda: -(variable.read_value() * 3.0)[(0,) * (len(shape) - 1) + (1,)], [variable])
    value, (gradient,) = step()
    assert value == -3
    np.testing.assert_array_equal(gradient.reshape(-1), [0, -3, 0, 0, 0])
