"""Convolution layers of codes: integers of NumPy, and the bits of a Dense that gets all windows, written out."""

import numpy as np
import pytest
from gradients import by_rules
from oracles import assert_same_bits
from test_convolution import CASES, written_out

import mp_core as mp
from mp_core import layers
from mp_core.arrays.quantization import dequantize
from mp_core.ops.convolution import convolve_quantized
from mp_core.ops.convolution_specs import windows_over

CLASSES = {1: layers.Conv1D, 2: layers.Conv2D, 3: layers.Conv3D}
SCHEMES = ["int8", "int8/weight_only", "int4", "int4/16", "float8_e4m3fn", "float8_e5m2", "mxfp4", "mxint8",
           "ternary"]  # fmt: skip


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def drawn(case, policy="float32", batch=3, **options):
    """Return inputs, and a layer of the case with drawn weights under a policy."""
    lengths, channels, groups, filters, size, strides, dilation, padding = case
    rng = np.random.default_rng(67)
    layer = CLASSES[len(size)](filters, size, strides, padding, groups=groups, dilation_rate=dilation, **options)
    layer.build((None, *lengths, channels))
    layer.kernel.assign(rng.standard_normal(layer.kernel.shape))
    layer.bias.assign(rng.standard_normal(filters))
    x = rng.standard_normal((batch, *lengths, channels)).astype(np.float32)
    return x, layer if policy == "float32" else layer.with_policy(policy)


def rows_by_group(x, case):
    """Return all windows of each group, shape (groups, windows, k)."""
    windows, groups = written_out(x, case), case[2]
    windows = windows.reshape(*windows.shape[:-1], groups, -1)
    return np.moveaxis(windows, -2, 0).reshape(groups, -1, windows.shape[-3] * windows.shape[-1])


def test_dynamic_int8_is_the_integer_product_with_one_scale_for_each_window(case, isa):
    x, layer = drawn(case, "int8_from_float32")
    q, groups = layer.matrix, case[2]
    rows = rows_by_group(x, case)
    scale = np.abs(rows).max(axis=-1, keepdims=True) / np.float32(127)
    scale[scale == 0] = 1
    codes = np.rint(rows / scale).clip(-127, 127).astype(np.int64)
    lines = q.values.astype(np.int64).reshape(groups, -1, rows.shape[-1])
    sums = (codes @ lines.swapaxes(1, 2)).astype(np.float32) * scale * q.scale.reshape(groups, 1, -1)
    wanted = np.moveaxis(sums, 0, 1).reshape(layer(x).shape)
    layer.bias.assign(np.zeros(layer.bias.shape))
    assert_same_bits(layer(x), wanted)


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_convolution_has_the_bits_of_a_dense_that_gets_its_windows(scheme, activation):
    case = (7, 6), 64, 1, 9, (3, 2), (1, 2), (1, 1), [(1, 1), (2, 0)]
    x, layer = drawn(case, f"{scheme}_from_float32", activation=activation)
    dense = layers.Dense(9, activation, dtype=layer.dtype_policy)
    dense.build((None, layer.form.geometry.rows))
    if scheme == "ternary":
        dense.codes.assign(layer.codes.numpy())
        dense.scale.assign(layer.scale.numpy())
    else:
        dense.set_matrix(layer.matrix)
    dense.bias.assign(layer.bias.numpy())
    rows = written_out(x, case)
    assert_same_bits(layer(x), dense(rows.reshape(*rows.shape[:-2], -1)))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_groups_have_the_values_of_their_codes(scheme):
    x, layer = drawn(((5, 6), 64, 2, 6, (3, 3), (1, 1), (1, 1), [(1, 1), (1, 1)]), f"{scheme}_from_float32")
    floats = layers.Conv2D(6, 3, padding="same", groups=2, name="floats")
    floats.build((None, 5, 6, 64))
    lines = layer.matrix
    floats.set_matrix(lines if isinstance(lines, np.ndarray) else dequantize(lines))
    floats.bias.assign(layer.bias.numpy())
    tolerance = 0.05 if layer.form.dynamic else 1e-5
    np.testing.assert_allclose(layer(x), floats(x), rtol=0, atol=tolerance * np.abs(floats(x)).max())


@pytest.mark.parametrize("policy", ["int8_from_mixed_bfloat16", "int8_from_float64"])
def test_other_types_are_quantized_from_float32_and_rounded_once(policy):
    case = CASES["two axes, all options"]
    (x, layer), (_, exact) = drawn(case, policy), drawn(case, "int8_from_float32")
    given = mp.cast(x, layer.compute_dtype)
    for each in (layer, exact):
        each.bias.assign(np.zeros(each.bias.shape))
    assert_same_bits(layer(given), mp.cast(exact(mp.cast(given, "float32")), layer.compute_dtype))


@pytest.mark.parametrize(
    "policy", ["int8_from_float32", "int8/weight_only_from_mixed_bfloat16", "int4/16_from_float32"]
)
def test_plans_threads_and_batches_do_not_change_a_bit(policy, case):
    x, layer = drawn(case, policy, batch=5)
    y = layer(x)
    for batch in (1, 5):
        plan = mp.compile(layer, x[:batch])
        for threads in (1, 2):
            with mp.config.num_threads(threads):
                assert_same_bits(plan(x[:batch]), y[:batch])
                assert_same_bits(layer(x[-batch:]), y[-batch:])


@pytest.mark.parametrize("policy", ["int8/fixed", "float8_e4m3fn/fixed/tensor", "int4/16"])
def test_a_sample_calibrates_convolutions(policy):
    case = CASES["two axes, all options"]
    x, layer = drawn(case, batch=8)
    found = mp.calibrate(layer, x, f"{policy}_from_float32")
    assert found.form.name == "codes"
    assert found.dtype_policy.name == f"{policy}_from_float32"
    error = np.abs(found(x) - layer(x)).max() / np.abs(layer(x)).max()
    assert error < {"int8/fixed": 0.02, "float8_e4m3fn/fixed/tensor": 0.1, "int4/16": 0.2}[policy]
    if policy == "int8/fixed":
        assert_same_bits(mp.compile(found, x)(x), found(x))


def test_fixed_scales_quantize_each_place_of_a_window_and_its_padding(isa):
    case = CASES["two axes"]
    x, layer = drawn(case)
    found = mp.calibrate(layer, x, "int8/fixed_from_float32")
    q, inputs = found.matrix, found.inputs
    rows = rows_by_group(x, case)[0]
    codes = (np.rint(rows / inputs.scale) + inputs.zero_point).clip(-128, 127).astype(np.int64) - inputs.zero_point
    wanted = (codes @ q.values.T.astype(np.int64)) * q.scale.reshape(-1).astype(np.float64) + found.bias.numpy()
    np.testing.assert_allclose(found(x).reshape(wanted.shape), wanted, rtol=1e-5, atol=1e-5)


def test_training_scales_and_codes_of_convolutions_starts_where_calibration_ends():
    x, layer = drawn(CASES["two axes"])
    found = mp.calibrate(layer, x, "int8/fixed_from_float32")
    before = found(x)
    mp.prepare_qat(found)
    np.testing.assert_allclose(found(x), before, rtol=0, atol=1e-4 * np.abs(before).max())
    mp.convert_qat(found)
    assert_same_bits(found(x), before)
    grouped = mp.calibrate(drawn(CASES["two axes, all options"])[1], drawn(CASES["two axes, all options"])[0],
                           "int8/fixed_from_float32")  # fmt: skip
    with pytest.raises(ValueError, match="must have one group of channels"):
        mp.prepare_qat(grouped)


@pytest.mark.parametrize("scheme", ["int8", "int4/16"])
def test_codes_are_saved_and_read(scheme, tmp_path):
    x, layer = drawn(CASES["two axes, all options"], name="conv")
    model = mp.Sequential([layer])
    model(x)
    quantized = model.with_policy(f"{scheme}_from_float32")
    quantized.save(tmp_path / "model.keras")
    assert_same_bits(mp.load_model(tmp_path / "model.keras")(x), quantized(x))


def test_keras_modes_quantize_convolutions_in_its_variables():
    x, layer = drawn(CASES["two axes"])
    wanted = layer(x)
    layer.quantize("int8")
    assert layer.kernel.dtype == np.int8
    assert layer.kernel_scale.shape == (65,)
    np.testing.assert_allclose(layer(x), wanted, rtol=0, atol=0.02 * np.abs(wanted).max())


def test_transposed_and_depthwise_convolutions_stay_floats():
    for layer in (layers.Conv2DTranspose(3, 3), layers.DepthwiseConv2D(3)):
        layer.build((None, 6, 6, 4))
        found = layer.with_policy("int8_from_float32")
        assert not found.quantized
        assert found(np.ones((1, 6, 6, 4))).dtype == np.float32


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("is_fixed", [False, True])
def test_gradients_pass_straight_through_the_quantization_of_windows(is_fixed, activation):
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 5, 4, 3)).astype(np.float32), rng.standard_normal((18, 4)).astype(np.float32)
    scales, zeros = np.full(18, 0.03, np.float32), np.zeros(18, np.int32)
    q = mp.quantize(w * 0.03 if is_fixed else w, axis=1)
    given = {"scales": scales, "zeros": zeros} if is_fixed else {}
    windows = windows_over((5, 4), (3, 2), 1, "same", 1)
    matrix = mp.pack(q)

    def quantized(x):
        return convolve_quantized(x, matrix, windows=windows, activation=activation, **given)

    def exact(x):
        floats = dequantize(q) / (np.float32(0.03) if is_fixed else 1)
        return mp.ops.conv(x, floats, 1, "same", kernel_size=(3, 2), activation=activation)

    found, wanted = (by_rules(f, x)[0] for f in (quantized, exact))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=0.05 * np.abs(wanted).max())
