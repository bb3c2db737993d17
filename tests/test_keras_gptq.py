"""Keras' policies gptq, awq and ternary: layers that compute, samples, and files that Keras opens."""

import numpy as np
import pytest
from conftest import run_with_keras
from oracles import assert_same_bits

import mp_core as mp
from mp_core.layers import Dense, EinsumDense, Embedding, Sequential
from mp_core.quantizers import AWQConfig, GPTQConfig

MODES = ["gptq/2/8", "gptq/3/8", "gptq/4/8", "gptq/4/20", "gptq/4/-1", "gptq/8/8", "awq/4/8", "awq/4/-1", "ternary"]
CASES = ["gptq4", "gptq4_channels", "gptq4_symmetric", "gptq4_ordered", "gptq8", "gptq3", "gptq2", "awq4"]
TOKENS = np.random.default_rng(0).integers(0, 50, 900)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gptq")
    run_with_keras("keras_gptq.py", folder, "numpy")
    return folder


@pytest.mark.parametrize("case", CASES)
def test_models_go_to_keras_and_back(results, case):
    found = np.load(results / f"{case}.npz")
    np.testing.assert_allclose(found["got"], found["want"], atol=1e-6)  # quantized by Keras, computed here
    np.testing.assert_allclose(found["reopened"], found["ours"], atol=1e-6)  # quantized here, opened by Keras


@pytest.mark.parametrize("case", CASES)
def test_errors_do_not_exceed_those_of_keras(results, case):
    found = np.load(results / f"{case}.npz")
    ours, theirs = (np.square(found[name] - found["exact"]).mean() ** 0.5 for name in ("ours", "want"))
    assert ours <= 1.05 * theirs


def quantized(layer, shape, mode):
    layer.build(shape)
    kernel = layer.kernel.numpy()
    layer.quantize(mode)
    return kernel


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_outputs_are_products_with_the_values_of_the_codes(mode, dtype, rng):
    layer, x = Dense(9, dtype=dtype), rng.standard_normal((5, 24), np.float32)
    quantized(layer, (None, 24), mode)
    lines = layer.matrix
    floats = mp.dequantize(lines) if isinstance(lines, mp.QuantizedArray) else lines
    want = mp.cast(x, layer.compute_dtype).astype(np.float64) @ floats.T.astype(np.float64)
    bound = 1e-5 if dtype == "float32" else 0.02
    np.testing.assert_allclose(layer(x).astype(np.float64), want, atol=bound * np.abs(want).max())
    again = Dense.from_config(layer.get_config())
    again.build((None, 24))
    again.set_weights(layer.get_weights())
    assert_same_bits(again(x), layer(x))


@pytest.mark.parametrize(("bits", "largest"), [(2, 3), (3, 7), (4, 15), (8, 255)])
def test_codes_are_the_nearest_ones(bits, largest, rng):
    layer = Dense(7)
    kernel = quantized(layer, (None, 20), f"gptq/{bits}/8").T
    for first in range(0, 20, 8):
        part = kernel[:, first : first + 8].astype(np.float64)
        low, high = part.min(axis=1, initial=0, keepdims=True), part.max(axis=1, initial=0, keepdims=True)
        scale = ((high - low) / largest).astype(np.float32)
        zero = np.rint(-low / scale).clip(0, largest)
        codes = np.rint(part / scale + zero).clip(0, largest)
        assert (np.abs(layer.kernel[:, first : first + 8] - codes) <= 1).all()  # ties may differ in float32
        assert (layer.kernel[:, first : first + 8] == codes).mean() > 0.95
        np.testing.assert_array_equal(layer.kernel_zero.numpy()[:, [first // 8]], zero)


def test_ternary_codes_are_five_in_a_byte(rng):
    layer = Dense(6)
    kernel = quantized(layer, (None, 13), "ternary").T
    scale = np.abs(kernel).mean(axis=1, keepdims=True)
    codes = np.rint(kernel / scale).clip(-1, 1)
    padded = np.pad(codes, ((0, 0), (0, 2))) + 1
    packed = (padded.reshape(6, 3, 5) * 3 ** np.arange(5)).sum(axis=2)
    np.testing.assert_array_equal(layer.codes.numpy(), packed)
    np.testing.assert_allclose(mp.dequantize(layer.matrix), codes * scale, rtol=1e-6)
    layer.codes.assign(np.full((6, 3), 243, np.uint8))
    with pytest.raises(ValueError, match=r"`codes` of layer .* must be less than 243; received 243"):
        layer(np.ones((1, 13), np.float32))


def test_ternary_tables_look_rows_up():
    table = Embedding(7, 11)
    table.build((None, 2))
    table.quantize("ternary")
    np.testing.assert_array_equal(table(np.array([[3, 6]]))[0], mp.dequantize(table.matrix)[[3, 6]])


def model():
    mp.utils.set_random_seed(1)
    stack = Sequential([Embedding(50, 32), Dense(64, activation="relu", name="wide"), Dense(16, name="head")])
    stack.build((None, 8))
    return stack


@pytest.mark.parametrize("kind", [GPTQConfig, AWQConfig])
def test_a_sample_makes_the_error_smaller(kind):
    ids = np.random.default_rng(2).integers(0, 50, (64, 8))
    exact, nearest, fitted = model()(ids), model(), model()
    config = kind([TOKENS], None, num_samples=64, sequence_length=8, group_size=16)
    nearest.quantize(config.dtype_policy_string())
    fitted.quantize(config=config)
    errors = [np.square(each(ids) - exact).mean() ** 0.5 for each in (nearest, fitted)]
    assert errors[1] < (0.85 if kind is GPTQConfig else 1.1) * errors[0]


def test_awq_protects_inputs_with_large_values(rng):
    x = rng.standard_normal((200, 32), np.float32) * np.where(np.arange(32) % 8 == 0, 30, 0.1).astype(np.float32)
    table = Embedding(200, 32)
    table.build((None,))
    table.embeddings.assign(x)
    errors = {}
    for name in ("nearest", "fitted"):
        mp.utils.set_random_seed(3)
        stack = Sequential([table, Dense(16, name="dense")])
        stack.build((None, 4))
        exact = stack(np.arange(200).reshape(-1, 4))
        sample = [np.arange(200)] if name == "fitted" else None
        stack.layers[1].quantize("awq/4/16") if sample is None else stack.quantize(
            config=AWQConfig(sample, None, num_samples=50, sequence_length=4, group_size=16)
        )
        errors[name] = np.square(stack(np.arange(200).reshape(-1, 4)) - exact).mean() ** 0.5
    assert errors["fitted"] < 0.6 * errors["nearest"]


def test_layers_outside_of_the_blocks_stay_floats():
    stack = model()
    structure = {"pre_block_layers": [stack.layers[0]], "sequential_blocks": [stack.get_layer("wide")]}
    stack.quantize(config=GPTQConfig([TOKENS], None, sequence_length=8, quantization_layer_structure=structure))
    assert [layer.quantized for layer in stack.layers] == [False, True, False]


def test_texts_are_tokenized():
    stack = model()
    tokenizer = type("Words", (), {"tokenize": lambda self, text: [len(word) for word in text.split()]})()
    stack.quantize(config=GPTQConfig(["a bc def", "ghij"] * 9, tokenizer, sequence_length=4, num_samples=3))
    assert stack.layers[1].quantization_mode == "gptq"


SAMPLES = [
    ("abc", None, TypeError, "`dataset` must be an iterable of texts or arrays; received str"),
    ([], None, ValueError, "`dataset` must have tokens; it is empty"),
    (["a text"], None, ValueError, "`tokenizer` must tokenize the texts of `dataset`; received None"),
    ([np.ones(3)], None, TypeError, "`dataset` must hold integers or texts; received an array of float64"),
]


@pytest.mark.parametrize(("dataset", "tokenizer", "error", "text"), SAMPLES)
def test_a_wrong_sample_is_refused_and_changes_nothing(dataset, tokenizer, error, text):
    stack = model()
    before = [weight.numpy() for weight in stack.weights]
    with pytest.raises(error, match=text):
        stack.quantize(config=GPTQConfig(dataset, tokenizer, sequence_length=8))
    assert not any(layer.quantized for layer in stack.layers)
    for now, then in zip(stack.weights, before, strict=True):
        np.testing.assert_array_equal(now.numpy(), then)


def test_inputs_that_are_not_finite_are_refused_and_change_nothing():
    stack = model()
    stack.layers[0].embeddings.assign(np.full((50, 32), np.nan))
    with pytest.raises(ValueError, match=r"the sample must give layer '.*wide' finite inputs; it has Inf or NaN there"):
        stack.quantize(config=GPTQConfig([TOKENS], None, sequence_length=8))
    assert not any(layer.quantized for layer in stack.layers)


STRUCTURES = [
    ([], TypeError, "must be a dict"),
    ({"sequential_blocks": []}, ValueError, "must have 'sequential_blocks'"),
]


@pytest.mark.parametrize(("structure", "error", "text"), STRUCTURES)
def test_a_wrong_structure_is_refused(structure, error, text):
    with pytest.raises(error, match=text):
        model().quantize(config=GPTQConfig([TOKENS], None, quantization_layer_structure=structure))


ARGUMENTS = [
    (GPTQConfig, {"weight_bits": 5}, "`weight_bits` must be 2, 3, 4 or 8; received 5"),
    (AWQConfig, {"weight_bits": 8}, "`weight_bits` must be 4; received 8"),
    (GPTQConfig, {"group_size": 0}, "`group_size` must be a positive integer"),
    (GPTQConfig, {"num_samples": 0}, "`num_samples` must be a positive integer"),
    (GPTQConfig, {"hessian_damping": 2}, "`hessian_damping` must be a number from 0 to 1"),
    (GPTQConfig, {"per_channel": False}, "`per_channel` must be True"),
    (AWQConfig, {"num_grid_points": 0}, "`num_grid_points` must be a positive integer"),
]


@pytest.mark.parametrize(("kind", "arguments", "text"), ARGUMENTS)
def test_wrong_arguments_are_refused(kind, arguments, text):
    with pytest.raises(ValueError, match=text):
        kind([TOKENS], None, **arguments)


@pytest.mark.parametrize("kind", [GPTQConfig, AWQConfig])
def test_configurations_without_the_sample_are_restored(kind):
    config = kind([TOKENS], None, group_size=32, num_samples=7)
    again = kind.from_config(config.get_config())
    assert again.dataset is None and again.get_config() == config.get_config()


@pytest.mark.parametrize("groups", [[np.nan] * 24, [-1.0] * 24, [3.0] * 24, [np.inf] * 24])
def test_groups_that_do_not_exist_are_refused(groups):
    layer = Dense(4)
    quantized(layer, (None, 24), "gptq/4/8")
    layer.g_idx.assign(np.float32(groups))
    with pytest.raises(ValueError, match=r"`g_idx` of layer .* must hold integers from 0 to 2"):
        layer(np.ones((1, 24), np.float32))


def test_groups_in_another_order_are_computed_as_keras_does(rng):
    layer, x = Dense(4), rng.standard_normal((3, 24), np.float32)
    quantized(layer, (None, 24), "gptq/4/8")
    groups = rng.permutation(np.arange(24) // 8)
    layer.g_idx.assign(groups + rng.random(24, np.float32) * 0.5)  # Keras writes fractions
    scale, zero = layer.kernel_scale.numpy()[:, groups], layer.kernel_zero.numpy().astype(np.float32)[:, groups]
    np.testing.assert_allclose(layer(x), x @ ((layer.kernel - zero) * scale).T, atol=1e-5)


def test_scales_of_inputs_must_be_positive():
    layer = Dense(4)
    quantized(layer, (None, 24), "awq/4/8")
    layer.awq_scales.assign(np.zeros(24))
    with pytest.raises(ValueError, match=r"`awq_scales` of layer .* must be positive and finite"):
        layer(np.ones((1, 24), np.float32))


def test_kernels_with_four_axes_are_refused():
    layer = EinsumDense("abc,cdef->abdef", (None, 2, 3, 4))
    layer.build((None, 5, 6))
    with pytest.raises(NotImplementedError, match="'gptq' needs a kernel with 2 or 3 axes"):
        layer.quantize("gptq/4/8")
    assert not layer.quantized
