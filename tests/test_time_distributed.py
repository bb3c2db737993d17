"""TimeDistributed and separable convolutions: outputs, training and files, compared with those of Keras."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
import pytest
from oracles import assert_same_bits
from test_plans_layers import KINDS, made

import mp_core as mp
from mp_core import layers, ops
from mp_core.interop.keras import from_keras
from mp_core.layers.operation import Operation

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of torch

RNG = np.random.default_rng(0)
FRAMES = RNG.standard_normal((4, 3, 6, 7, 2)).astype(np.float32)
ROWS = RNG.standard_normal((4, 3, 5)).astype(np.float32)


def images(k, **options):
    return k.Sequential([
        k.layers.Conv2D(4, 3, activation="relu", **options), k.layers.BatchNormalization(**options),
        k.layers.SeparableConv2D(5, 2, **options), k.layers.GlobalAveragePooling2D(**options),
    ], **options)  # fmt: skip


def graph(k):
    x = k.Input((5,))
    return k.Model(x, k.layers.Dense(2)(x) + k.layers.Dense(2)(x))


MODELS = {
    "a layer": (lambda k: [k.layers.TimeDistributed(k.layers.Dense(4, activation="tanh"))], ROWS),
    "a stack": (lambda k: [k.layers.TimeDistributed(images(k)), k.layers.Dense(2)], FRAMES),
    "a graph": (lambda k: [k.layers.TimeDistributed(graph(k))], ROWS),
    "one in another": (
        lambda k: [k.layers.TimeDistributed(k.layers.TimeDistributed(k.layers.SeparableConv1D(3, 2)))], FRAMES),
    "separable": (
        lambda k: [k.layers.Reshape((-1, 2)), k.layers.SeparableConv1D(6, 3, strides=2, padding="same",
                                                                       depth_multiplier=2, activation="gelu")], FRAMES),
}  # fmt: skip


def model(k, name):
    make, x = MODELS[name]
    return k.Sequential([k.Input(x.shape[1:]), *make(k)]), x


def filled(theirs):
    """Give a model of Keras weights, positive variances among them."""
    for weight in theirs.weights:
        weight.assign(np.abs(RNG.standard_normal(weight.shape)).astype(np.float32) / 2 + 0.1)
    return theirs


def numbers(x):
    return keras.ops.convert_to_numpy(x)


@pytest.mark.parametrize("name", MODELS)
def test_models_are_those_of_keras_in_memory_and_in_files(name, tmp_path):
    theirs, x = model(keras, name)
    expected = numbers(filled(theirs)(x))
    theirs.save(tmp_path / "theirs.keras")
    ours = from_keras(theirs)
    np.testing.assert_allclose(ours(x), expected, rtol=1e-5, atol=1e-5)
    opened = mp.load_model(tmp_path / "theirs.keras")
    assert_same_bits(opened(x), ours(x))
    assert_same_bits(opened.predict(x, verbose=0), ours(x))
    opened.save(tmp_path / "ours.keras")
    np.testing.assert_allclose(numbers(keras.saving.load_model(tmp_path / "ours.keras")(x)), expected, 1e-5, 1e-5)
    again = mp.load_model(tmp_path / "ours.keras")
    assert_same_bits(again(x), ours(x))
    assert [v.path for v in again.weights] == [v.path for v in opened.weights]
    opened.save_weights(tmp_path / "w.weights.h5")
    made, _ = model(mp, name)
    made.load_weights(tmp_path / "w.weights.h5")
    assert_same_bits(made(x), ours(x))
    copy = type(made).from_config(made.get_config())
    copy.build((None, *x.shape[1:]))
    copy.set_weights(made.get_weights())
    assert_same_bits(copy(x), ours(x))


@pytest.mark.parametrize("name", MODELS)
def test_training_is_that_of_keras(name):
    theirs, x = model(keras, name)
    ours = from_keras(filled(theirs))
    y = RNG.standard_normal(ours(x).shape).astype(np.float32)
    for each in (theirs, ours):
        each.compile("sgd", "mse")
    options = {"batch_size": 2, "epochs": 2, "shuffle": False, "verbose": 0}
    losses = [each.fit(x, y, **options).history["loss"] for each in (theirs, ours)]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    for mine, other in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_allclose(mine.numpy(), numbers(other), rtol=2e-4, atol=2e-5, err_msg=mine.path)


def test_weights_are_the_same_for_every_number_of_threads():
    def trained(threads):
        made, x = model(mp, "a stack")
        made.set_weights([np.full(w.shape, 0.25, np.float32) + np.arange(w.size).reshape(w.shape) % 7 / 8
                          for w in made.get_weights()])  # fmt: skip
        made.compile(mp.optimizers.Adam(0.01), "mse")
        with mp.config.num_threads(threads):
            made.fit(x, np.ones((4, 3, 2), np.float32), batch_size=2, epochs=2, shuffle=False, verbose=0)
        return made.get_weights()

    for one, other in zip(trained(1), trained(3), strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16", "float64"])
def test_steps_have_the_bits_of_calls_of_the_layer(policy):
    inner = images(mp, dtype=policy)
    layer = layers.TimeDistributed(inner, dtype=policy)
    found = layer(FRAMES)
    assert_same_bits(found, np.stack([inner(FRAMES[:, i]) for i in range(3)], axis=1))
    assert inner.layers[0].path == f"{layer.name}/{inner.name}/{inner.layers[0].name}"


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16", "float64"])
@pytest.mark.parametrize("rank", [1, 2])
def test_a_separable_convolution_has_the_bits_of_its_two_parts(policy, rank):
    x = FRAMES[:, 0] if rank == 2 else FRAMES[:, 0, 0]
    whole = getattr(layers, f"SeparableConv{rank}D")(5, 2, depth_multiplier=3, activation="gelu", dtype=policy)
    first = getattr(layers, f"DepthwiseConv{rank}D")(2, depth_multiplier=3, use_bias=False, dtype=policy)
    second = getattr(layers, f"Conv{rank}D")(5, 1, activation="gelu", dtype=policy)
    built = [whole(x), second(first(x))]
    for each, weights in ((first, whole.get_weights()[:1]), (second, whole.get_weights()[1:])):
        each.set_weights(weights)
    assert_same_bits(whole(x), second(first(x)))
    assert built[0].shape == built[1].shape


def one_array(case):
    name, arguments, shapes = case
    kind = Operation if name == "Operation" else getattr(layers, name)
    return kind._sample_independence != "unknown" and isinstance(shapes[0], int) and arguments.get("axis") != 0


@pytest.mark.parametrize(("name", "arguments", "shapes"), [case for case in KINDS if one_array(case)])
def test_what_keeps_samples_apart_has_the_bits_of_each_step(name, arguments, shapes):
    inner = made(name, arguments)
    x = RNG.standard_normal((shapes[0], 3, *shapes[1:])).astype(np.float32)
    layer = layers.TimeDistributed(inner)
    found = layer(x)
    calls = []
    inner.call = lambda *args, original=inner.call, **kwargs: calls.append(args) or original(*args, **kwargs)
    assert_same_bits(layer(x), found)
    assert len(calls) == 1
    assert_same_bits(found, np.stack([inner(x[:, i]) for i in range(3)], axis=1))


def test_every_class_that_keeps_samples_apart_is_compared_with_steps():
    classes = [*vars(layers).values(), layers.Functional]  # which is loaded at its first use
    kinds = [kind for kind in classes if isinstance(kind, type) and issubclass(kind, layers.Layer)]
    apart = {kind.__name__ for kind in kinds if kind._sample_independence != "unknown"}
    elsewhere = {"Embedding", "Functional", "InputLayer"}  # "a graph" above; the others are below
    assert apart - {case[0] for case in KINDS if one_array(case)} == elsewhere


def test_an_embedding_and_an_input_keep_samples_apart():
    x = RNG.integers(0, 7, (4, 3, 5))
    for inner in (layers.Embedding(7, 2), layers.InputLayer((None, 5), dtype="int32")):
        layer = layers.TimeDistributed(inner, autocast=False)
        assert_same_bits(layer(x), np.stack([inner(x[:, i]) for i in range(3)], axis=1))


def test_a_subclass_with_a_call_of_its_own_may_mix_samples():
    class Own(layers.Dense):
        def call(self, inputs):
            return super().call(inputs - mp.mean(inputs, axis=0, keepdims=True))

    class Same(layers.Dense):
        pass

    assert (Own._sample_independence, Same._sample_independence) == ("unknown", "always")
    layer = layers.TimeDistributed(Own(2))
    assert_same_bits(layer(ROWS), np.stack([layer.layer(ROWS[:, i]) for i in range(3)], axis=1))


def test_layers_of_users_get_each_step_alone():
    class Centered(layers.Layer):
        def call(self, inputs):
            return inputs - mp.mean(inputs, axis=0, keepdims=True)

    expected = ROWS - ROWS.mean(axis=0, keepdims=True)
    np.testing.assert_allclose(layers.TimeDistributed(Centered())(ROWS), expected, atol=1e-6)


def test_the_part_of_a_mask_goes_to_each_step():
    x = RNG.standard_normal((2, 3, 4, 5)).astype(np.float32)
    mask = RNG.random((2, 3, 4)) < 0.7
    mask[..., 0] = True
    layer = layers.TimeDistributed(layers.GlobalAveragePooling1D())
    expected = [[x[i, j][mask[i, j]].mean(0) for j in range(3)] for i in range(2)]
    np.testing.assert_allclose(layer(x, mask=mask), expected, rtol=1e-5)
    assert layer.compute_mask(x, mask) is mask
    with pytest.raises(ValueError, match=r"`mask` must have shape \(2, 3, '...'\); received \(2, 4\)"):
        layer(x, mask=mask[:, 0])


def test_what_it_holds_is_quantized():
    made, x = model(mp, "a layer")
    expected = made(x)
    made.quantize("int8")
    assert made.layers[0].layer.quantization_mode == "int8"
    np.testing.assert_allclose(made(x), expected, atol=0.05)
    again = type(made).from_config(made.get_config())
    again.build((None, *x.shape[1:]))
    again.set_weights(made.get_weights())
    assert_same_bits(again(x), made(x))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: layers.TimeDistributed("dense"), ValueError, "`layer` must be a Layer; received 'dense'"),
        (lambda: layers.TimeDistributed(layers.Dense(2))(np.ones((2, 3))), ValueError, "at least 3 axes"),
        (lambda: layers.TimeDistributed.from_config({"name": "t"}), ValueError, "must have a `layer`"),
        (lambda: layers.TimeDistributed.from_config({"layer": {"class_name": "No"}}), ValueError, "class_name='No'"),
        (lambda: layers.SeparableConv1D(0, 2), ValueError, "`filters` must be a positive integer"),
        (lambda: layers.SeparableConv2D(3, 2, padding="causal"), ValueError, "`padding` must be"),
        (lambda: layers.SeparableConv1D(3, 2).build((None, 4)), ValueError, "channels of a batch of sequences"),
        (lambda: layers.SeparableConv1D(3, 5)(np.ones((1, 4, 2))), ValueError, "smaller than the kernel"),
    ],
)
def test_wrong_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_what_a_wrapped_layer_lacks_is_told_with_the_rest():
    theirs = keras.Sequential(
        [keras.Input((3, 4, 4, 2)), keras.layers.TimeDistributed(keras.layers.CenterCrop(2, 2, name="l"))]
    )
    with pytest.raises(NotImplementedError, match=r"cannot run 1 of the layers:\n- 'l' \('CenterCrop'\)"):
        from_keras(theirs)


def across(x):
    return mp.Model(x, ops.subtract(x, ops.mean(x, axis=0, keepdims=True)))


MIXING = {
    "softmax": lambda: layers.Softmax(axis=0),
    "softmax from the end": lambda: layers.Softmax(axis=-2),
    "unit length": lambda: layers.UnitNormalization(axis=0),
    "a function": lambda: layers.Dense(4, activation=lambda x: x - mp.mean(x, axis=0, keepdims=True)),
    "an operation": lambda: across(mp.Input((5,))),
}


@pytest.mark.parametrize("make", MIXING.values(), ids=MIXING)
def test_a_layer_that_mixes_samples_gets_each_step_alone(make):
    inner = make()
    layer = layers.TimeDistributed(inner)
    found = layer(ROWS)
    assert_same_bits(found, np.stack([inner(ROWS[:, i]) for i in range(ROWS.shape[1])], axis=1))
