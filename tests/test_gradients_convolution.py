"""Gradients of convolutional networks: torch's, and the same bits for all threads, sets and ways of running."""

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core import layers
from mp_core.core import cpu

IMAGES = np.random.default_rng(0).standard_normal((6, 9, 8, 3)).astype(np.float32)
D = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)


def network(policy="float32"):
    model = layers.Sequential([
        layers.Conv2D(8, 3, padding="same", dtype=policy),
        layers.BatchNormalization(dtype=policy),
        layers.Activation("relu", dtype=policy),
        layers.MaxPooling2D(2, dtype=policy),
        layers.Conv2D(12, 3, strides=2, groups=2, activation="gelu", dtype=policy),
        layers.DepthwiseConv2D(1, depth_multiplier=2, dtype=policy),
        layers.SeparableConv2D(16, 2, padding="same", dtype=policy),
        layers.Conv2DTranspose(6, 3, strides=2, activation="relu", dtype=policy),
        layers.GlobalAveragePooling2D(dtype=policy),
        layers.Dropout(0.3, seed=5, dtype=policy),
        layers.Dense(5, dtype=policy),
    ])  # fmt: skip
    model.build((None, *IMAGES.shape[1:]))
    rng = np.random.default_rng(2)
    for variable in model.trainable_variables:
        variable.assign(rng.standard_normal(variable.shape) / 2)
    return model


def gradients(policy="float32"):
    """The gradients of two steps, and the moving statistics after them."""
    model = network(policy)

    def value(x, d):
        return mp.sum(mp.multiply(mp.cast(model(x, training=True), "float32"), d)).reshape(1, 1)

    step = mp.value_and_grad(value, model.trainable_variables)
    found = [*step(IMAGES, D)[1], *step(IMAGES[::-1].copy(), D)[1]]
    return found + [variable.numpy() for variable in model.non_trainable_variables]


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_bits_are_those_of_every_number_of_threads_and_instruction_set(policy, reproducible):
    expected = gradients(policy)
    before = cpu.isa()
    try:
        for isa in cpu.available_isas():
            cpu.set_isa(isa)
            for threads in (1, 3):
                with cpu.num_threads(threads):
                    for one, other in zip(gradients(policy), expected, strict=True):
                        assert_same_bits(one, other)
    finally:
        cpu.set_isa(before)


def test_bits_are_the_same_call_by_call():
    model, found = network(), []
    for images in (IMAGES, IMAGES[::-1].copy()):
        with mp.tf_keras.GradientTape() as tape:
            out = mp.sum(mp.multiply(model(images, training=True), D)).reshape(1, 1)
        found += tape.gradient(out, model.trainable_variables)
    found += [variable.numpy() for variable in model.non_trainable_variables]
    for one, other in zip(found, gradients(), strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("strides", "padding", "dilation"), [(1, "same", 1), (2, "valid", 1), (1, "valid", 2)])
def test_convolutions_have_the_gradients_of_torch(groups, strides, padding, dilation):
    torch = pytest.importorskip("torch")
    x = IMAGES[..., :2]
    layer = layers.Conv2D(4, 3, strides=strides, padding=padding, dilation_rate=dilation, groups=groups)
    layer(x)
    inputs = mp.AutoCastVariable(x, name="x")
    shape = layer(x).shape
    d = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    step = mp.value_and_grad(
        lambda d: mp.sum(mp.multiply(layer(inputs.numpy()), d)).reshape(1, 1), [inputs, *layer.trainable_variables]
    )
    found = step(d)[1]
    given = torch.tensor(x.transpose(0, 3, 1, 2).copy(), requires_grad=True)
    kernel = torch.tensor(layer.kernel.numpy().transpose(3, 2, 0, 1).copy(), requires_grad=True)
    bias = torch.tensor(layer.bias.numpy(), requires_grad=True)
    out = torch.nn.functional.conv2d(given, kernel, bias, strides, 1 if padding == "same" else 0, dilation, groups)
    (out * torch.tensor(d.transpose(0, 3, 1, 2).copy())).sum().backward()
    expected = given.grad.permute(0, 2, 3, 1), kernel.grad.permute(2, 3, 1, 0), bias.grad
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-5 * np.abs(other.numpy()).max())
