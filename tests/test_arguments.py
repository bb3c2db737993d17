"""Wrong arguments of public functions are named, with what came and what is allowed."""

import ml_dtypes
import numpy as np
import pytest

import mp_core as mp
from mp_core import layers, tf_keras
from mp_core.loss_scale import DynamicLossScale
from mp_core.quantizers import abs_max_quantize
from mp_core.tf_keras.mixed_precision import experimental

X = np.ones((2, 3), np.float32)
PACKED = mp.pack(mp.quantize(np.ones((3, 2)), axis=1))
GROUPED, STEPS = mp.pack(mp.quantize(np.ones((64, 2)), axis=1, group_size=32)), np.ones(64, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mp.softmax(X, axis=1.5), TypeError, "`axis` must be an integer; received 1.5"),
        (lambda: mp.softmax(X, scale="a"), ValueError, "`scale` must be a number; received scale='a'"),
        (lambda: mp.layer_norm(X, epsilon=-1), ValueError, "`epsilon` must be a number of at least 0"),
        (lambda: mp.ops.dynamic_matmul(X, PACKED, scale="a"), (TypeError, ValueError), "scale"),
        (lambda: mp.ops.dynamic_matmul(X, PACKED, scale=np.ones(2)), TypeError, "`scale` must be a number"),
        (
            lambda: mp.ops.fixed_matmul(X, mp.pack(X.T), X[0], X[0].astype("i4")),
            TypeError,
            "`b` must be a Packed",
        ),
        (
            lambda: mp.ops.fixed_matmul(np.ones((1, 64), np.float32), GROUPED, STEPS, np.zeros(64, np.int32)),
            TypeError,
            "`b` must be a PackedMatrix of int8 with scales by column",
        ),
        (lambda: mp.layer_norm(X, epsilon=10**400), ValueError, "`epsilon` must be a number of at least 0"),
        (lambda: mp.ops.dynamic_matmul(X, PACKED, scale=10**400), ValueError, "`scale` must be positive and finite"),
        (lambda: mp.softmax(X, mask=np.ma.array(X > 0, mask=X > 0)), TypeError, "`mask` must not be a masked array"),
        (lambda: mp.cast(X, "bfloat16", out=np.ma.array(X)), TypeError, "`out` must not be a masked array"),
        (lambda: mp.cast(np.ma.array(X.astype(ml_dtypes.float8_e4m3fnuz)), "float32"), TypeError, "`x` must not be"),
        (lambda: abs_max_quantize(X, -1, (-(2**31 - 1), 2**31 - 1), "int32"), ValueError, "`value_range` must be two"),
        (lambda: abs_max_quantize(X, -1, (-(10**6), 10**6), "float16"), ValueError, "`value_range` must be two"),
        (lambda: abs_max_quantize(X, -1, (0, 1), "bool"), ValueError, "`value_range` must be two increasing numbers"),
        (lambda: mp.dtypes.finfo("int8"), TypeError, "`dtype` must be a float type; received int8"),
        (lambda: layers.LayerNormalization(epsilon="a"), ValueError, "`epsilon` must be a number"),
        (lambda: layers.LayerNormalization(axis={}), TypeError, "Expected an int or a list/tuple of ints"),
        (lambda: layers.MultiHeadAttention(2, 3, output_shape=-3), ValueError, "`output_shape` must be a positive"),
        (lambda: layers.MultiHeadAttention(2, 3, dropout=7), ValueError, "`dropout` must be a number from 0 to 1"),
        (lambda: layers.EinsumDense("ab,bc->ac", -3), ValueError, "`output_shape` must be a positive integer"),
        (lambda: layers.Dense(2, activation=["relu"]), ValueError, "Could not interpret activation"),
        (lambda: layers.Softmax()(X, mask=np.array([0.0, 0.0, -1e9])), ValueError, "`mask` must be 1 .True. where"),
        (lambda: layers.Softmax()(X, mask=np.array([0, 0, 2])), ValueError, "`mask` must be 1 .True. where"),
        (
            lambda: mp.convert_file("a", "b", "int8", keep="embeddings"),
            ValueError,
            "`keep` must be a sequence",
        ),
        (lambda: mp.convert_file("a", "b", "int8", keep=3), ValueError, "`keep` must be a sequence"),
        (lambda: mp.convert_file("a", "b", "int8", fail_if="sqnr<30"), ValueError, "`fail_if` must be a sequence"),
        (lambda: mp.convert_file("a", "b", "int8", map=[("a",)]), ValueError, "`map` must be pairs of a pattern"),
        (lambda: mp.convert_file("a", "b", "int8", granularity=64), ValueError, "`granularity` must be a string"),
        (lambda: mp.convert_file("a", "b", "int8", threads=0), ValueError, "`threads` must be a positive integer"),
        (lambda: mp.convert_file("a", "b", "int8", max_memory="512MiB"), ValueError, "`max_memory` must be a positive"),
        (lambda: layers.LayerNormalization().build((None, None)), ValueError, "must have a length"),
        (lambda: layers.Sequential([abs]), TypeError, "`layer` must be a Layer; received <built-in function abs>"),
        (lambda: tf_keras.mixed_precision.deserialize({}), ValueError, "Unknown policy class_name=None"),
        (lambda: tf_keras.mixed_precision.deserialize({"class_name": ["a"]}), ValueError, "Unknown policy class_name"),
        (lambda: experimental.DynamicLossScale(increment_period=2.9), ValueError, "`increment_period` must be"),
        (lambda: DynamicLossScale(max_loss_scale=np.nan), ValueError, "`max_loss_scale` must be a number"),
        (lambda: mp.verify_files("a", "b", rtol="a"), ValueError, "`rtol` must be a number of at least 0"),
    ],
)
def test_the_argument_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_masks_of_integers():
    expected = layers.Softmax()(X, mask=np.array([True, True, False]))
    for dtype in (int, np.float32):
        np.testing.assert_array_equal(layers.Softmax()(X, mask=np.array([1, 1, 0], dtype)), expected)


def test_softmax_over_several_axes(rng):
    x = rng.standard_normal((2, 3, 4), np.float32)
    keep = rng.random((3, 4)) < 0.8
    flat = np.where(keep, x, -np.inf).transpose(1, 0, 2).reshape(3, 8)
    expected = np.exp(flat - flat.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    got = layers.Softmax(axis=(0, -1))(x, mask=keep)
    np.testing.assert_allclose(got.transpose(1, 0, 2).reshape(3, 8), expected, rtol=1e-5, atol=1e-7)


def test_layer_normalization_of_the_last_axis_takes_any_number_of_axes():
    layer = layers.LayerNormalization()
    expected = layer(X)
    np.testing.assert_array_equal(layer(np.stack([X, X])), np.stack([expected, expected]))


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_arrays_that_shrank_are_refused(dtype):
    q = mp.quantize(np.ones((64, 200), np.float32), axis=1, dtype=dtype)
    q.values.resize((64, 1), refcheck=False)
    for call in (
        mp.dequantize,
        mp.pack,
        lambda q: mp.quantize(np.ones((64, 200), np.float32), axis=1, dtype=dtype, out=q),
    ):
        with pytest.raises(ValueError, match=r"must keep their shapes|received"):
            call(q)


def test_masked_codes_are_refused():
    masked = np.ma.array(np.ones((2, 2), np.int8), mask=True)
    with pytest.raises(TypeError, match=r"`values` must be an ndarray of int8.*MaskedArray"):
        mp.QuantizedArray(masked, np.ones((1, 1), np.float32), None, ())


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_a_type_may_be_given_as_name_dtype_or_scalar_type(name):
    dtype = mp.dtypes.parse(name)
    x = np.linspace(-2, 2, 64, dtype=np.float32).reshape(8, 8)
    q = mp.quantize(x)
    for spelling in (name, dtype, dtype.type):
        assert mp.cast(x, spelling).dtype is dtype
        assert mp.matmul(x, x, out_dtype=spelling).dtype is dtype
        assert mp.dequantize(q, spelling).dtype is dtype
        assert mp.pack(x, dtype=spelling).dtype is dtype
        if name.startswith("float8"):
            assert mp.quantize(x, dtype=spelling).dtype is dtype
    for spelling in ("int8", np.dtype("int8"), np.int8):
        assert mp.quantize(x, dtype=spelling).dtype is q.dtype


class Unhashable(type):
    __hash__ = None


@pytest.mark.parametrize("wrong", [list, object, {}, [1], 3, "float3", np.complex64, type, Unhashable("U", (), {})])
def test_what_is_no_type_is_refused(wrong):
    x = np.ones((2, 2), np.float32)
    for call in (mp.cast, lambda x, t: mp.matmul(x, x, out_dtype=t), lambda x, t: mp.dequantize(mp.quantize(x), t),
                 lambda x, t: mp.quantize(x, dtype=t)):  # fmt: skip
        with pytest.raises(TypeError, match="dtype` must be one of"):
            call(x, wrong)
