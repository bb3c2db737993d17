"""Recurrent layers, compared with those of Keras on JAX: outputs, states, masks, gradients and files."""

import pickle

import numpy as np
import pytest
from conftest import run_with_keras
from keras_recurrent import CASES, arguments, flat, weigh

import mp_core as mp
from mp_core import layers
from mp_core.interop.keras import load_keras

OURS = {
    "lstm": lambda: [layers.LSTM(3, dropout=0.2, recurrent_dropout=0.1, seed=1, return_sequences=True), layers.GRU(2)],
    "stack": lambda: [layers.Masking(), layers.RNN([layers.LSTMCell(4), layers.SimpleRNNCell(3)])],
    "both": lambda: [layers.Bidirectional(layers.GRU(3, return_sequences=True, reset_after=False), merge_mode="mul")],
    "regularized": lambda: [
        layers.LSTM(3, kernel_regularizer="l2", recurrent_regularizer="l1", recurrent_constraint="max_norm")
    ],
}


def _arrays(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("recurrent")
    rng = np.random.default_rng(3)
    for name, make in OURS.items():
        model = mp.Sequential([mp.Input((6, 5)), *make()])
        model.save(path / f"ours {name}.keras")
        np.save(path / f"ours {name}.npy", _arrays(rng, 2, 6, 5))
    run_with_keras("keras_recurrent.py", path, "jax")
    return path


def _close(got, want, bound):
    assert got.shape == want.shape
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=bound * max(np.abs(want).max(), 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_keras(folder, name):
    arrays = np.load(folder / f"{name}.npz")
    layer = load_keras(folder / f"{name}.keras").layers[-1]
    x, options = arguments(name)
    outputs = layer(x, **options)
    for number, y in enumerate(flat(outputs)):
        assert y.dtype.name == layer.compute_dtype
        _close(y, arrays[f"outputs{number}"], {"bfloat16": 2.0**-6, "float16": 2.0**-9}.get(y.dtype.name, 2e-6))
    shapes = layer.compute_output_shape((None, *x.shape[1:]))
    assert _shapes(shapes) == [(None, *y.shape[1:]) for y in flat(outputs)]
    start = mp.AutoCastVariable(x)
    variables = [start, *layer.trainable_variables]

    def value():
        return weigh([mp.cast(y, "float32") for y in flat(layer(mp.ops.multiply(start, 1.0), **options))], mp.sum)

    _, found = mp.value_and_grad(value, variables)()
    for number, d in enumerate(found):
        _close(d, arrays[f"gradients{number}"], 2e-5 if layer.compute_dtype == "float32" else 3e-2)


def _shapes(tree):
    return [tree] if isinstance(tree[0], int | None) else [shape for part in tree for shape in _shapes(part)]


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_files_are_those_of_keras_both_ways(folder, name):
    ours, x = load_keras(folder / f"ours {name}.keras"), np.load(folder / f"ours {name}.npy")
    want = np.load(folder / f"ours {name}.npz")["arr_0"]
    _close(ours(x), want, 2e-6)
    theirs = load_keras(folder / f"theirs {name}.keras")
    np.testing.assert_array_equal(theirs(x), ours(x))
    assert [w.path for w in theirs.weights] == [w.path for w in ours.weights]


@pytest.mark.slow
def test_masks_beside_states_are_those_of_keras(folder):
    """In Keras 3.15 a layer that is called with states gets no mask; its outputs have that of its inputs."""
    words, start, *want = np.load(folder / "translation.npz").values()
    model = load_keras(folder / "translation.keras")
    for got, expected in zip(model([words, start]), want, strict=True):
        _close(got, expected, 2e-6)


# ---- one way and another


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_steps_have_the_bits_of_the_formulas(rng, dtype):
    """With linear activations and products that are exact, docs/numerics.md leaves sums and products of float32."""

    def whole(*shape):
        return rng.integers(-3, 4, shape).astype(np.float32)

    x, linear = whole(2, 4, 3) / 8, {"activation": None, "recurrent_activation": None}
    for layer, columns in ((layers.LSTM(2, dtype=dtype, **linear), 8), (layers.GRU(2, dtype=dtype, **linear), 6)):
        layer(x)
        kernel, recurrent = whole(3, columns) / 4, whole(2, columns) / 64
        bias = np.zeros(layer.cell.bias.shape, np.float32)
        layer.set_weights([kernel, recurrent, bias])
        narrow = mp.cast(np.zeros(1), layer.compute_dtype).dtype
        h = c = np.zeros((2, 2), np.float32)
        for t in range(4):
            p, q = x[:, t] @ kernel, h @ recurrent
            if columns == 8:
                i, f, g, o = np.split(p + q, 4, -1)
                c = f * c + i * g
                h, c = (y.astype(narrow).astype(np.float32) for y in (o * c, c))
            else:
                (z, r), n = np.split((p + q)[:, :4], 2, -1), p[:, 4:]
                n = n + r * q[:, 4:]
                h = (z * h + (1 - z) * n).astype(narrow).astype(np.float32)
        np.testing.assert_array_equal(layer(x).astype(np.float32), h)


LAYERS = {
    "LSTM": lambda **options: layers.LSTM(4, **options),
    "GRU": lambda **options: layers.GRU(4, **options),
    "GRU, reset before": lambda **options: layers.GRU(4, reset_after=False, **options),
    "SimpleRNN": lambda **options: layers.SimpleRNN(4, **options),
    "cells": lambda dtype, **options: layers.RNN(
        [layers.LSTMCell(3, dtype=dtype), layers.GRUCell(4, dtype=dtype)], dtype=dtype, **options
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "float16"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_sequence_cut_in_two_and_its_cell_alone_have_the_bits_of_the_whole(rng, name, dtype):
    x = _arrays(rng, 3, 7, 5)
    layer = LAYERS[name](return_sequences=True, return_state=True, dtype=dtype)
    whole = layer(x)
    first = layer(x[:, :4])
    second = layer(x[:, 4:], initial_state=list(first[1:]))
    np.testing.assert_array_equal(np.concatenate([first[0], second[0]], 1), whole[0])
    states = layer.cell.get_initial_state(3)
    for t in range(7):
        outputs, states = layer.cell(x[:, t], states)
        np.testing.assert_array_equal(outputs, whole[0][:, t])
    for got, want in zip(flat(states), flat(whole[1:]), strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.dtype.name == layer.compute_dtype
    np.testing.assert_array_equal(layer(x[1:2])[0], whole[0][1:2])
    strided = np.asfortranarray(np.repeat(x, 2, -1))[..., ::2]
    np.testing.assert_array_equal(layer(strided)[0], whole[0])
    assert layer(x[:0])[0].shape == (0, 7, 4)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("name", LAYERS)
def test_plans_have_the_bits_of_calls_with_masks_too(rng, name, dtype):
    options = {"return_sequences": True, "go_backwards": True, "dtype": dtype}
    model = mp.Sequential([mp.Input((6,)), layers.Embedding(9, 5, mask_zero=True), LAYERS[name](**options)])
    ids = rng.integers(0, 9, (4, 6))
    want = model(ids)
    np.testing.assert_array_equal(mp.compile(model, ids)(ids), want)
    np.testing.assert_array_equal(model.predict(ids, batch_size=2, verbose=0), want)
    if dtype != "mixed_float16":
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(model))(ids), want)


def test_a_masked_step_changes_nothing_and_nan_in_it_neither(rng):
    x, keep = _arrays(rng, 2, 6, 5), np.array([[1, 1, 0, 1, 0, 0]] * 2, bool)
    layer = layers.LSTM(4, return_state=True)
    want = layer(x[:, [0, 1, 3]])
    x[:, 4:] = np.nan
    for got, expected in zip(layer(x, mask=keep), want, strict=True):
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(layer(np.nan * x, mask=~keep & False, initial_state=list(want[1:]))[1], want[1])


def test_states_are_kept_from_call_to_call_until_they_are_reset(rng):
    x = _arrays(rng, 2, 8, 5)
    for kind in (layers.LSTM, layers.GRU):
        layer = kind(4, stateful=True, return_sequences=True)
        start = layer(x)
        layer.reset_state()
        np.testing.assert_array_equal(np.concatenate([layer(x[:, :3]), layer(x[:, 3:])], 1), start)
        assert [w.name for w in layer.weights] == ["kernel", "recurrent_kernel", "bias"]
        layer.reset_states()
        assert not any(state.numpy().any() for state in layer.states)
        with pytest.raises(ValueError, match="keeps the states of 2 samples; received a batch of 1"):
            layer(x[:1])
    with pytest.raises(ValueError, match="its batch size must be known"):
        layers.LSTM(4, stateful=True).build((None, 3, 5))


def test_training_keeps_states_and_its_files_too(rng, tmp_path):
    x, y = _arrays(rng, 8, 3, 5), _arrays(rng, 8, 4)

    def made():
        mp.random.set_seed(1)
        model = mp.Sequential([layers.GRU(4, stateful=True)])
        model.build((4, 3, 5))
        model.layers[0].reset_state()
        model.compile("sgd", "mse")
        return model

    whole, model = made(), made()
    whole.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0)
    model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    model.save_training_state(tmp_path / "state.h5")
    again = made()
    again.load_training_state(tmp_path / "state.h5")
    kept = [model.layers[0].states[0].numpy(), again.layers[0].states[0].numpy()]
    np.testing.assert_array_equal(*kept)
    assert kept[0].any()
    model.fit(x, y, batch_size=4, epochs=3, initial_epoch=2, shuffle=False, verbose=0)
    for got, want in zip(
        [*model.weights, *model.layers[0].states], [*whole.weights, *whole.layers[0].states], strict=True
    ):
        np.testing.assert_array_equal(got.numpy(), want.numpy())


@pytest.mark.parametrize("make", [
    lambda: layers.LSTM(4, dropout=0.2, recurrent_dropout=0.3), lambda: layers.GRU(4), lambda: layers.SimpleRNN(4),
    lambda: layers.Bidirectional(layers.RNN([layers.GRUCell(3, dropout=0.1), layers.LSTMCell(2)])),
])  # fmt: skip
def test_passes_and_threads_change_no_bit_of_training(rng, make):
    x, y = _arrays(rng, 64, 5, 3), _arrays(rng, 64, 1)

    def trained(passes, threads):
        mp.random.set_seed(2)
        model = mp.Sequential([mp.Input((5, 3)), layers.Masking(), make(), layers.Dense(1)])
        model.compile("sgd", "mse")
        with mp.config.num_threads(threads):
            model.fit(x, y, batch_size=64, epochs=2, passes=passes, verbose=0)
        return model.get_weights()

    whole = trained(1, 1)
    for passes, threads in ((2, 1), (1, 3)):
        for got, want in zip(trained(passes, threads), whole, strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_cell_of_ones_own_is_trained_and_saved(rng, tmp_path):
    @mp.saving.register_keras_serializable("recurrent")
    class Leaky(layers.Layer):
        state_size = 5

        def build(self, input_shape):
            self.rate = self.add_weight((5,), "ones", name="rate")

        def call(self, inputs, states):
            state = inputs + self.rate * states[0]
            return state, [state]

    x = _arrays(rng, 4, 3, 5)
    model = mp.Sequential([mp.Input((3, 5)), layers.RNN(Leaky())])
    np.testing.assert_allclose(model(x), x.sum(1), rtol=1e-5)
    model.compile("sgd", "mse")
    model.fit(x, np.zeros((4, 5), np.float32), verbose=0)
    assert (model.weights[0].numpy() < 1).all()
    model.save(tmp_path / "m.keras")
    np.testing.assert_array_equal(mp.saving.load_model(tmp_path / "m.keras")(x), model(x))


@pytest.mark.parametrize("make", [
    lambda: layers.LSTM(200, dropout=0.25, seed=3), lambda: layers.GRU(200, recurrent_dropout=0.25, seed=3),
    lambda: layers.SimpleRNN(200, dropout=0.25, recurrent_dropout=0.25, seed=3),
    lambda: layers.RNN([layers.LSTMCell(200, dropout=0.25, seed=3)]),
])  # fmt: skip
def test_dropped_elements_are_the_same_at_all_steps_and_others_in_each_call(rng, make):
    x = np.broadcast_to(_arrays(rng, 3, 1, 100), (3, 2, 100))
    layer = make()
    layer(x)
    cell = layer.cell if hasattr(layer.cell, "kernel") else layer.cell.cells[0]
    cell.recurrent_kernel.assign(np.zeros(cell.recurrent_kernel.shape))
    cell.activation = cell.recurrent_activation = layers.activations.get("linear")
    one, other = layer(x, training=True), layer(x, training=True)
    if cell.dropout:
        assert (one != other).any()
        kept = cell.in_scope(cell.projected, x, cell._new_draws())
        np.testing.assert_array_equal(kept[0], kept[1])
    np.testing.assert_array_equal(layer(x), layer(x, training=False))


def test_the_share_of_dropped_elements_is_the_rate():
    layer = layers.SimpleRNN(1, dropout=0.25, activation=None, use_bias=False, kernel_initializer="ones", seed=3)
    ones = np.ones((4, 1, 10000), np.float32)
    np.testing.assert_allclose(layer(ones, training=True) / 10000, np.ones((4, 1)), atol=0.03)  # 3 deviations: 0.017
    again = layers.SimpleRNN(1, recurrent_dropout=1.0, recurrent_initializer="ones", activation=None)
    assert (again(np.ones((2, 3, 4)), initial_state=np.full((2, 1), 9.0), training=True) < 9).all()


def test_symbols_take_states_and_lengths_that_are_unknown(rng, tmp_path):
    x, start = mp.Input((None, 5)), mp.Input((4,))
    sequences, *states = layers.LSTM(4, return_sequences=True, return_state=True)(x, initial_state=[start, start])
    both = layers.Bidirectional(layers.GRU(3))(sequences)
    model = mp.Model([x, start], [both, *states])
    assert sequences.shape == (None, None, 4) and both.shape == (None, 6)
    given = [_arrays(rng, 2, 7, 5), _arrays(rng, 2, 4)]
    outputs = model(given)
    model.save(tmp_path / "m.keras")
    for got, want in zip(mp.saving.load_model(tmp_path / "m.keras")(given), outputs, strict=True):
        np.testing.assert_array_equal(got, want)
    frames = layers.TimeDistributed(layers.LSTM(3))(mp.Input((2, 4, 5)))
    assert frames.shape == (None, 2, 3)


@pytest.mark.parametrize("call, kind, message", [
    (lambda: layers.LSTM(0), ValueError, "`units` must be a positive integer"),
    (lambda: layers.GRU(3, dropout=1.5), ValueError, "`dropout`"),
    (lambda: layers.LSTM(3, implementation=3), ValueError, "`implementation` must be 1 or 2; received 3"),
    (lambda: layers.LSTM(3, use_cudnn="no"), ValueError, "`use_cudnn` must be"),
    (lambda: layers.LSTM(3, kernel_size=2), ValueError, "Unrecognized keyword arguments.*kernel_size"),
    (lambda: layers.RNN(layers.Dense(2)), ValueError, "`cell` must be a Layer with a `state_size`"),
    (lambda: layers.RNN([]), ValueError, "`cells` must be a sequence of cells"),
    (lambda: layers.LSTM(3)(np.ones((2, 5))), ValueError, r"must have shape \(batch, steps, features\)"),
    (lambda: layers.LSTM(3)(np.ones((2, 0, 5))), ValueError, "must have at least one step"),
    (lambda: layers.LSTM(3)(np.ones((2, 4, 5)), mask=np.ones((2, 5), bool)), ValueError, r"`mask` .* \(2, 4\)"),
    (lambda: layers.LSTM(3)(np.ones((2, 4, 5)), initial_state=np.ones((2, 3))), ValueError, "`initial_state` of"),
    (lambda: layers.GRU(3)(np.ones((2, 4, 5)), initial_state=np.ones((2, 4))), ValueError, r"\[\(2, 3\)\]"),
    (lambda: layers.LSTM(3).build((None, 4, None)), ValueError, "with known features"),
    (lambda: layers.Bidirectional(layers.Dense(3)), ValueError, "`layer` must be a Layer with the attributes"),
    (lambda: layers.Bidirectional(layers.LSTM(3), "max"), ValueError, "`merge_mode` must be one of"),
    (lambda: layers.Bidirectional(layers.LSTM(3), backward_layer=layers.LSTM(3)), ValueError, "different directions"),
    (lambda: layers.Bidirectional(layers.LSTM(3)).reset_state(), AttributeError, "must be stateful"),
    (lambda: layers.RNN.from_config({"cell": {"class_name": "JaxLayer"}}), ValueError, "Unknown cell .*runs code"),
])  # fmt: skip
def test_wrong_arguments_are_refused_by_name(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_quantization_leaves_recurrent_layers_as_they_are(rng):
    layer = layers.LSTM(3)
    model = mp.Sequential([mp.Input((4, 5)), layer, layers.Dense(8)])
    before = layer(_arrays(rng, 2, 4, 5))
    with pytest.raises(NotImplementedError, match="LSTM cannot be quantized"):
        layer.quantize("int8")
    model.quantize("int8")
    assert model.layers[1].quantized and not layer.quantized and before.shape == (2, 3)


class Summing(layers.Layer):
    """A cell with one state, the sum of the inputs so far, which is no list and has no method that makes it."""

    state_size = output_size = 3

    def call(self, inputs, states):
        total = states[0] + inputs
        return total, [total]


def test_the_state_of_a_cell_in_a_stack_is_an_array_where_its_size_is_a_number_as_in_keras():
    x = np.arange(12, dtype=np.float32).reshape(1, 4, 3)
    outputs, first, second = layers.RNN([Summing(), Summing()], return_state=True)(x)
    np.testing.assert_array_equal(first, x.sum(1))
    np.testing.assert_array_equal(second, np.cumsum(x, 1).sum(1))
    np.testing.assert_array_equal(outputs, second)
