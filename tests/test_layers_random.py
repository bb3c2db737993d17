"""Layers that randomly change elements in training."""

import pickle

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core import layers
from mp_core.layers import augmentation
from mp_core.layers.seeds import SeedGenerator
from mp_core.ops.random import dropout, normal, uniform

X = np.random.default_rng(3).standard_normal((4, 6, 5)).astype(np.float32)
IMAGES = X.reshape(2, 2, 6, 5)
KEY = np.array([11, 0], np.uint32)

MADE = {
    "Dropout": (lambda **k: layers.Dropout(0.4, seed=11, **k), X, lambda x: dropout(x, KEY, 0.4)),
    "Dropout of rows": (
        lambda **k: layers.Dropout(0.4, (None, 1, None), 11, **k), X, lambda x: dropout(x, KEY, 0.4, (4, 1, 5))),
    "SpatialDropout1D": (
        lambda **k: layers.SpatialDropout1D(0.4, seed=11, **k), X, lambda x: dropout(x, KEY, 0.4, (4, 1, 5))),
    "SpatialDropout2D": (
        lambda **k: layers.SpatialDropout2D(0.4, seed=11, **k), IMAGES, lambda x: dropout(x, KEY, 0.4, (2, 1, 1, 5))),
    "SpatialDropout2D, channels first": (
        lambda **k: layers.SpatialDropout2D(0.4, "channels_first", 11, **k), IMAGES,
        lambda x: dropout(x, KEY, 0.4, (2, 2, 1, 1))),
    "GaussianNoise": (
        lambda **k: layers.GaussianNoise(0.3, seed=11, **k), X,
        lambda x: x.astype(np.float32) + normal(KEY, x.shape) * np.float32(0.3)),
    "GaussianDropout": (
        lambda **k: layers.GaussianDropout(0.2, seed=11, **k), X,
        lambda x: x.astype(np.float32) * (normal(KEY, x.shape) * np.float32(0.5) + np.float32(1))),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize(("make", "x", "expected"), MADE.values(), ids=MADE)
def test_layers_change_what_the_key_says_and_only_in_training(make, x, expected, dtype):
    layer = make(dtype=dtype)
    given = mp.cast(x, layer.compute_dtype)
    assert_same_bits(layer(x), given)
    assert_same_bits(layer(x, training=False), given)
    assert_same_bits(layer(x, training=True), mp.cast(expected(given), layer.compute_dtype))
    assert not np.array_equal(layer(x, training=True), mp.cast(expected(given), layer.compute_dtype))


def test_alpha_dropout_keeps_mean_and_variance():
    x = np.random.default_rng(0).standard_normal((200, 500)).astype(np.float32)
    layer = layers.AlphaDropout(0.3, seed=11)
    out = layer(x, training=True)
    assert abs(out.mean()) < 0.02
    assert abs(out.std() - 1) < 0.02
    dropped = uniform(KEY, x.shape) < np.float32(0.3)
    assert np.unique(out[dropped]).size == 1


def test_a_seed_is_no_weight_and_comes_back_from_a_configuration():
    layer = layers.Dropout(0.4, seed=11)
    first = layer(X, training=True)
    assert layer.weights == []
    config = layer.get_config()
    assert (config["seed"], config["noise_shape"]) == (11, None)
    again = layers.Dropout.from_config(config)
    assert_same_bits(again(X, training=True), first)
    copy = pickle.loads(pickle.dumps(again))
    assert_same_bits(copy(X, training=True), again(X, training=True))


def test_one_generator_serves_several_layers():
    generator = SeedGenerator(11)
    one, two = layers.Dropout(0.5, seed=generator), layers.Dropout(0.5, seed=generator)
    one(X, training=True)
    assert_same_bits(two(X, training=True), dropout(X, np.array([11, 1], np.uint32), 0.5))


def test_a_plan_of_a_step_draws_other_numbers_in_each_run():
    dense, drop = layers.Dense(3), layers.Dropout(0.5, seed=11)
    dense(X)
    step = mp.value_and_grad(lambda x: mp.sum(drop(dense(x), training=True)).reshape(1, 1), dense.trainable_variables)
    masks = []
    for draw in range(3):
        value, (kernel, bias) = step(X)
        kept = dropout(np.ones((4, 6, 3), np.float32), np.array([11, draw], np.uint32), 0.5)
        np.testing.assert_allclose(value, (dense(X) * kept).sum(), rtol=1e-4)
        np.testing.assert_allclose(bias, kept.sum((0, 1)), rtol=1e-6)
        np.testing.assert_allclose(kernel, X.reshape(-1, 5).T @ kept.reshape(-1, 3), rtol=1e-4, atol=1e-5)
        masks.append(kept)
    assert not np.array_equal(masks[0], masks[1])
    assert drop.seed_generator.state.numpy().tolist() == [11, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.Dropout(0.5, seed=-1), "`seed` must be from 0 to 2\\*\\*32 - 1; received -1"),
        (lambda: layers.Dropout(0.5, noise_shape=(0, 1)), "`noise_shape` must be a positive integer"),
        (lambda: layers.Dropout(0.5, noise_shape=(1, 2.5)), "`noise_shape` must be a positive integer"),
        (lambda: layers.Dropout(0.5, noise_shape=3), "`noise_shape` must be a sequence of int or None"),
        (lambda: layers.GaussianDropout(1.0)(X, training=True), "`rate` of layer .* must be below 1 in training"),
        (lambda: layers.Dropout(0.5, noise_shape=(1, 1))(X, training=True), "`noise_shape` must have the lengths"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_attention_drops_weights_in_training_only():
    layer = layers.MultiHeadAttention(2, 4, dropout=0.4, seed=11)
    plain, scores = layer(X, X, return_attention_scores=True)
    assert_same_bits(layer(X, X, training=False), plain)
    out, again = layer(X, X, return_attention_scores=True, training=True)
    assert_same_bits(again, scores)
    v = layer.value_dense(X).transpose(0, 2, 1, 3)
    context = mp.matmul(dropout(scores, KEY, 0.4), v).transpose(0, 2, 1, 3)
    assert_same_bits(out, layer.output_dense(context))
    assert layers.MultiHeadAttention.from_config(layer.get_config()).seed == 11


@pytest.mark.parametrize("make", [layers.Attention, layers.AdditiveAttention])
def test_attention_without_projections_drops_weights_too(make):
    layer = make(dropout=0.4, seed=11)
    _, weights = layer([X, X], return_attention_scores=True)
    out, dropped = layer([X, X], return_attention_scores=True, training=True)
    assert_same_bits(dropped, dropout(weights, KEY, 0.4))
    assert_same_bits(out, mp.matmul(dropped, X))


# ---- batch normalization in training


def moments(x, mask=None):
    axes = tuple(range(x.ndim - 1))
    weights = np.ones(x.shape) if mask is None else np.broadcast_to(mask[..., None], x.shape).astype(float)
    count = weights.sum(axes) + (0 if mask is None else 1e-7)
    mean = (weights * x).sum(axes) / count
    return mean, (weights * (x - mean) ** 2).sum(axes) / count


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_batch_normalization_normalizes_by_the_batch_and_moves_its_statistics(masked, dtype):
    layer = layers.BatchNormalization(momentum=0.9, dtype=dtype)
    layer.build((None, 6, 5))
    mask = np.random.default_rng(1).random((4, 6)) < 0.6 if masked else None
    x = mp.cast(X, layer.compute_dtype).astype(np.float64)
    mean, variance = moments(x, mask)
    out = layer(X, training=True, mask=mask).astype(np.float64)
    expected = (x - mean) / np.sqrt(variance + 1e-3)
    np.testing.assert_allclose(out, expected, rtol=1e-5 if dtype == "float32" else 1e-2, atol=1e-5)
    np.testing.assert_allclose(layer.moving_mean.numpy(), 0.1 * mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer.moving_variance.numpy(), 0.9 + 0.1 * variance, rtol=1e-5)


def test_frozen_batch_normalization_does_not_move():
    layer = layers.BatchNormalization()
    layer.build((None, 6, 5))
    layer.trainable = False
    assert_same_bits(layer(X, training=True), layer(X))
    assert layer.moving_mean.numpy().tolist() == [0.0] * 5


def test_gradients_of_batch_normalization_in_training_are_what_torch_finds():
    torch = pytest.importorskip("torch")
    layer = layers.BatchNormalization(momentum=0.9)
    layer.build((None, 6, 5))
    weights = np.random.default_rng(2).standard_normal(X.shape).astype(np.float32)
    variable = mp.AutoCastVariable(X, name="x")
    step = mp.value_and_grad(
        lambda w: mp.matmul(layer(variable.numpy(), training=True).reshape(1, -1), w.reshape(-1, 1)),
        [variable, *layer.trainable_variables],
    )
    found = [step(weights)[1] for _ in range(2)][1]
    x = torch.tensor(X, requires_grad=True)
    norm = torch.nn.BatchNorm1d(5, eps=1e-3)
    (norm(x.reshape(-1, 5)) * torch.tensor(weights).reshape(-1, 5)).sum().backward()
    for one, other in zip(found, (x.grad, norm.weight.grad, norm.bias.grad), strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=2e-5)
    mean, _ = moments(X.astype(np.float64))
    np.testing.assert_allclose(layer.moving_mean.numpy(), mean * (1 - 0.9**2), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", augmentation.__all__)
def test_changes_of_images_that_are_not_made_are_errors_in_training(name):
    layer = getattr(layers, name)(name="change")
    images = IMAGES[..., :3]
    assert_same_bits(layer(images), images)
    with pytest.raises(NotImplementedError, match=f"{name} 'change' changes images in training"):
        layer(images, training=True)
    model = mp.Sequential([mp.Input(images.shape[1:]), layer, layers.Flatten(), layers.Dense(1)])
    model.compile("sgd", "mse")
    before = model.get_weights()
    with pytest.raises(NotImplementedError, match=f"{name} 'change' changes images in training"):
        model.fit(images, np.ones((len(images), 1)), verbose=0)
    assert all(np.array_equal(one, other) for one, other in zip(model.get_weights(), before, strict=True))
    model.evaluate(images, np.ones((len(images), 1)), verbose=0)


@pytest.mark.parametrize("factor", [0, 0.0, (0.0, 0.0)])
def test_changes_of_images_by_nothing_train(factor):
    images = IMAGES[..., :3]
    assert_same_bits(layers.RandomRotation(factor)(images, training=True), images)
    assert_same_bits(layers.RandomTranslation(factor, width_factor=factor)(images, training=True), images)
    with pytest.raises(NotImplementedError):
        layers.RandomTranslation(factor, width_factor=0.1)(images, training=True)
