"""Errors for wrong arguments of public functions name the argument, the value and the allowed values."""

import os
import pickle
from typing import Union, get_args, get_origin

import ml_dtypes
import numpy as np
import pytest
import tiny_bert
from oracles import assert_same_bits

import mp_core as mp
from mp_core import layers, tf_keras
from mp_core.arrays.formats import PANELS
from mp_core.arrays.products.operands import ACTIVATIONS
from mp_core.arrays.quantization.codes import CODES
from mp_core.arrays.quantization.microscaling import MICROSCALING
from mp_core.core import names
from mp_core.interop.keras import load_keras
from mp_core.loss_scale import DynamicLossScale
from mp_core.quantizers import abs_max_quantize
from mp_core.tf_keras.mixed_precision import experimental

X = np.ones((2, 3), np.float32)
PACKED = mp.pack(mp.quantize(np.ones((3, 2)), axis=1))
GROUPED, STEPS = mp.pack(mp.quantize(np.ones((64, 2)), axis=1, group_size=32)), np.ones(64, np.float32)


class Nowhere(os.PathLike):
    def __fspath__(self):
        return ""


@pytest.mark.parametrize("empty", ["", Nowhere()], ids=["str", "PathLike"])
@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("path", lambda empty: mp.checkpoint.open_tensors(empty)),
        ("path", lambda empty: mp.checkpoint.stored_policies(empty)),
        ("path", lambda empty: mp.checkpoint.inspect(empty)),
        ("a", lambda empty: mp.checkpoint.verify(empty, ".")),
        ("b", lambda empty: mp.checkpoint.verify(".", empty)),
        ("source", lambda empty: mp.checkpoint.convert(empty, "x", "int8")),
        ("target", lambda empty: mp.checkpoint.convert("x", empty, "int8")),
        ("path", lambda empty: mp.checkpoint.save_tensors(empty, {"x": X}, policy="float32")),
        ("source", lambda empty: mp.checkpoint.save_folder(empty, "x", {"x": X}, policy="float32")),
        ("target", lambda empty: mp.checkpoint.save_folder(".", empty, {"x": X}, policy="float32")),
        ("path", lambda empty: mp.models.BertEncoder.from_folder(empty)),
        ("path", lambda empty: mp.models.Reranker.from_folder(empty)),
        ("path", lambda empty: load_keras(empty)),
        ("path", lambda empty: mp.benchmark.Report.load(empty)),
        ("path", lambda empty: mp.benchmark.Report.here("a test").save(empty)),
    ],
)  # fmt: skip
def test_an_empty_path_is_refused_everywhere(tmp_path, monkeypatch, argument, call, empty):
    monkeypatch.chdir(tiny_bert.write(tmp_path / "model"))  # where each of these would find something
    with pytest.raises(ValueError, match=f"^`{argument}` must not be empty; the working directory is '.'$"):
        call(empty)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mp.softmax(X, axis=1.5), TypeError, "`axis` must be an integer; received axis=1.5"),
        (lambda: mp.softmax(X, scale="a"), ValueError, "`scale` must be a number; received scale='a'"),
        (lambda: mp.layer_norm(X, epsilon=-1), ValueError, "`epsilon` must be a number of at least 0"),
        (lambda: mp.ops.dynamic_matmul(X, PACKED, scale="a"), (TypeError, ValueError), "scale"),
        (lambda: mp.ops.dynamic_matmul(X, PACKED, scale=np.ones(2)), TypeError, "`scale` must be a number"),
        (lambda: mp.ops.dynamic_matmul(X, PACKED, scale=True), TypeError, "`scale` must be a number; received True"),
        (lambda: mp.ops.dynamic_matmul(X, PACKED, scale=np.True_), TypeError, "`scale` must be a number; received"),
        (lambda: mp.quantize(X, scale=True), TypeError, "`scale` must be numbers; received dtype bool"),
        (lambda: mp.quantize(X, axis=1, scale=[True, True, True]), TypeError, "`scale` must be numbers"),
        (lambda: mp.quantize(X, scale=1.0, zero_point=True), TypeError, "`zero_point` must be integers"),
        (lambda: mp.quantize(X, axis=True), TypeError, "`axis` must be an int, a sequence of int or None; received Tr"),
        (lambda: mp.quantize(X, axis=(0, True)), TypeError, "`axis` must be an int, a sequence of int or None"),
        (lambda: mp.QuantizedArray(X.astype(np.int8), True), TypeError, "`scale` must be numbers; received dtype bool"),
        (lambda: mp.QuantizedArray(X.astype(np.int8), 1.0, axis=True), TypeError, "`axis` must be an int, a sequence"),
        (lambda: abs_max_quantize(X, True), TypeError, "`axis` must be an int or a sequence of int; received True"),
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
            lambda: mp.checkpoint.convert("a", "b", "int8", keep="embeddings"),
            ValueError,
            "`keep` must be a sequence",
        ),
        (lambda: mp.checkpoint.convert("a", "b", "int8", keep=3), ValueError, "`keep` must be a sequence"),
        (
            lambda: mp.checkpoint.convert("a", "b", "int8", fail_if="sqnr<30"),
            ValueError,
            "`fail_if` must be a sequence",
        ),
        (lambda: mp.checkpoint.convert("a", "b", "int8", map=[("a",)]), ValueError, "`map` must be pairs of a pattern"),
        (
            lambda: mp.checkpoint.convert("a", "b", "int8", threads=0),
            ValueError,
            "`threads` must be a positive integer",
        ),
        (
            lambda: mp.checkpoint.convert("a", "b", "int8", max_memory="512MiB"),
            ValueError,
            "`max_memory` must be a positive",
        ),
        (lambda: layers.LayerNormalization().build((None, None)), ValueError, "must have known lengths"),
        (lambda: layers.Sequential([abs]), TypeError, "`layer` must be a Layer; received <built-in function abs>"),
        (lambda: tf_keras.mixed_precision.deserialize({}), ValueError, "Unknown policy class_name=None"),
        (lambda: tf_keras.mixed_precision.deserialize({"class_name": ["a"]}), ValueError, "Unknown policy class_name"),
        (lambda: experimental.DynamicLossScale(increment_period=2.9), ValueError, "`increment_period` must be"),
        (lambda: DynamicLossScale(max_loss_scale=np.nan), ValueError, "`max_loss_scale` must be a number"),
        (lambda: mp.checkpoint.verify("a", "b", rtol="a"), ValueError, "`rtol` must be a number of at least 0"),
        (
            lambda: mp.config.set_num_threads(True),
            ValueError,
            "`count` must be an integer from 1 to 1024; received True",
        ),
        (
            lambda: mp.QuantizedArray(np.zeros(2, np.int8), 1.0, shape=2.5),
            TypeError,
            "`shape` must be a sequence of integers; received 2.5",
        ),
        (
            lambda: mp.QuantizedArray.from_onnx(np.zeros((2, 2), np.int8), 1.0, block_size=True),
            ValueError,
            "`block_size` must be an integer of at least 0; received True",
        ),
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


@pytest.mark.parametrize("shape", [(4, 8), (2, 4, 8)])
@pytest.mark.parametrize("part", ["values", "scale", "zero_point"])
@pytest.mark.parametrize("new", [(1,), (), (0, 0), (1, 1, 1)])
def test_quantized_operands_that_changed_are_refused(shape, part, new):
    def right():
        q = mp.quantize(np.ones(shape), axis=len(shape) - 1, dtype="uint8", symmetric=False)
        getattr(q, part).resize(new, refcheck=False)
        return q

    left = mp.quantize(np.ones((3, 4)), axis=0)
    changed = mp.quantize(np.ones((3, 4)), axis=0, dtype="uint8", symmetric=False)
    getattr(changed, part).resize(new, refcheck=False)
    for call in (
        lambda: mp.matmul(np.ones((3, 4), np.float32), right()),
        lambda: mp.matmul(left, right()),
        lambda: mp.matmul(changed, mp.quantize(np.ones(shape), axis=len(shape) - 1)),
    ):
        with pytest.raises(ValueError, match=r"must keep their shapes"):
            call()
    for call in (
        lambda: mp.pack(right()),
        lambda: changed.T,
        lambda: mp.qlinear_matmul(left, right(), out_scale=1.0),
        lambda: mp.qlinear_matmul(changed, mp.quantize(np.ones(shape), axis=len(shape) - 1), out_scale=1.0),
    ):
        with pytest.raises((TypeError, ValueError), match=r"must (keep|be)"):
            call()


def test_masked_codes_are_refused():
    masked = np.ma.array(np.ones((2, 2), np.int8), mask=True)
    with pytest.raises(TypeError, match=r"`values` must not be a masked array"):
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


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_a_type_may_be_another_frameworks(name):
    import torch

    dtype, x = mp.dtypes.parse(name), np.ones((2, 2), np.float32)
    for given in (getattr(torch, name), _OfTensorFlow(name)):
        assert mp.dtypes.parse(given) is mp.cast(x, given).dtype is dtype
        assert mp.matmul(x, x, out_dtype=given).dtype is mp.dequantize(mp.quantize(x), given).dtype is dtype
        assert mp.pack(x, dtype=given).dtype is dtype
        assert mp.dtypes.finfo(given).max == mp.dtypes.finfo(name).max
        assert mp.dtype_policies.get(given).name == mp.dtype_policies.standardize_dtype(given) == name
        for face in (mp.layers, mp.tf_keras.layers):
            layer = face.Dense(2, dtype=given)
            assert layer.dtype == name and layer.add_weight(shape=(2,), name="w", dtype=given).true_dtype is dtype
        variable = mp.autocast.AutoCastVariable([1, 2], dtype=given)
        assert variable.true_dtype is dtype
        for scope in (mp.autocast.autocast_scope, mp.autocast.enable_auto_cast_variables):
            with scope(given):
                assert mp.autocast.AutoCastVariable([1.0]).dtype is dtype
    for codes in ("int8", "uint8", "float8_e4m3fn", "float8_e5m2"):
        assert mp.quantize(x, dtype=getattr(torch, codes)).dtype.name == codes
    assert mp.cast(x, torch.float8_e4m3fnuz).dtype.name == "float8_e4m3fnuz"
    with pytest.raises(TypeError, match=r"`dtype` must be one of .*; received torch\.complex64"):
        mp.cast(x, torch.complex64)


class _OfTensorFlow:
    """A dtype as TensorFlow has it: an object with a name."""

    __module__ = "tensorflow.python.framework.dtypes"

    def __init__(self, name):
        self.name = name


def test_names_for_type_checkers_are_those_that_are_accepted():
    accepted = {
        names.Activation: set(ACTIVATIONS) - {None},
        names.FloatName | names.OtherName: set(mp.dtypes.ALLOWED),
        names.StoredName: set(mp.dtypes.STORED),
        names.CodeName | names.BlockName: {*CODES, *MICROSCALING},
        names.PanelName: set(PANELS) - {"int4", "float4_e2m1fn"},
    }
    for literal, wanted in accepted.items():
        parts = get_args(literal) if get_origin(literal) is Union else (literal,)
        assert {name for part in parts for name in get_args(part)} == wanted


class Unhashable(type):
    __hash__ = None


@pytest.mark.parametrize("wrong", [list, object, {}, [1], 3, "float3", np.complex64, type, Unhashable("U", (), {})])
def test_what_is_no_type_is_refused(wrong):
    x = np.ones((2, 2), np.float32)
    for call in (mp.cast, lambda x, t: mp.matmul(x, x, out_dtype=t), lambda x, t: mp.dequantize(mp.quantize(x), t),
                 lambda x, t: mp.quantize(x, dtype=t)):  # fmt: skip
        with pytest.raises(TypeError, match="dtype` must be one of"):
            call(x, wrong)


# ---- whose memory it is: subclasses that lie, code that runs inside a call

SHAPE = (40, 40)  # more than the 1,024 elements that activations take at a time


class Lying(np.ndarray):
    """Says that it is larger, contiguous and of another type than it is."""

    shape = property(lambda self: (1000, 1000))
    dtype = property(lambda self: np.dtype(np.float64))
    ndim = property(lambda self: 7)
    size = property(lambda self: 10**6)
    strides = property(lambda self: (1, 1))
    itemsize = property(lambda self: 1)
    flags = property(lambda self: np.zeros(1).flags)

    def view(self, *_):
        return np.zeros((1000, 1000))

    reshape = transpose = copy = astype = __getitem__ = view


MATRICES = {
    "matrix": lambda x: x.view(np.matrix),
    "lying": lambda x: x.view(Lying),
    "recarray": lambda x: x.view(np.recarray),
}
WITH_OUT = {
    "cast": lambda x, out: mp.cast(x, "float32", out=out),
    "cast float64": lambda x, out: mp.cast(x.astype(float), "float32", out=out),
    "matmul": lambda x, out: mp.matmul(x, x, out=out),
    "matmul float64": lambda x, out: mp.matmul(x.astype(float), x, out_dtype="float32", out=out),
    "matmul bias": lambda x, out: mp.matmul(x, x, bias=x[0], residual=x, activation="gelu", out=out),
    "dynamic_matmul": lambda x, out: mp.ops.dynamic_matmul(x, mp.pack(mp.quantize(x, axis=1)), out=out),
    "einsum": lambda x, out: mp.einsum("ij,jk->ik", x, x, out=out),
    "einsum turned": lambda x, out: mp.einsum("ij,jk->ki", x, x, out=out),
    "einsum apart": lambda x, out: mp.einsum("ij,kj->ik", x, x, out=out),
    "softmax": lambda x, out: mp.softmax(x, out=out),
    "softmax axis": lambda x, out: mp.softmax(x, axis=0, mask=x > 0, out=out),
    "layer_norm": lambda x, out: mp.layer_norm(x, x[0], x[1], residual=x, out=out),
    "rms_norm": lambda x, out: mp.rms_norm(x, x[0], out=out),
    "dequantize": lambda x, out: mp.dequantize(mp.quantize(x), out=out),
    "dequantize int4": lambda x, out: mp.dequantize(mp.quantize(x, axis=0, group_size=5, dtype="int4"), out=out),
    "gelu_tanh": lambda x, out: mp.gelu(x, True, out=out),
    **{
        name: lambda x, out, name=name: getattr(mp.ops, name)(x, out=out)
        for name in ("gelu", "relu", "relu6", "sigmoid", "silu", "tanh")
    },
}


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("name", WITH_OUT)
def test_out_may_be_a_subclass_which_is_not_asked(name, kind, rng):
    x = rng.standard_normal(SHAPE).astype(np.float32)
    memory = np.full((3, *SHAPE), 7, np.float32)
    out, expected = MATRICES[kind](memory[1]), WITH_OUT[name](x, None)
    assert WITH_OUT[name](x, out) is out
    np.testing.assert_array_equal(memory[1], expected)
    assert np.all(memory[::2] == 7)


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("name", WITH_OUT)
def test_an_out_that_does_not_fit_is_refused_whatever_it_says(name, kind):
    x = np.ones(SHAPE, np.float32)
    for wrong in (np.zeros((40, 39), np.float32), np.zeros(SHAPE, np.int16), np.broadcast_to(np.float32(0), SHAPE)):
        with pytest.raises((TypeError, ValueError), match="`out` must "):
            WITH_OUT[name](x, MATRICES[kind](wrong))


def test_an_out_that_is_no_array_is_refused_whatever_class_it_gives():
    class Pretender:
        __class__ = np.ndarray

        def __array__(self, dtype=None, copy=None):
            raise AssertionError("nobody asks for it")

    for call in WITH_OUT.values():
        with pytest.raises(TypeError, match=r"`out` must be a numpy.ndarray or a tensor .*received Pretender"):
            call(np.ones(SHAPE, np.float32), Pretender())


def test_operands_of_lying_subclasses_are_read_as_they_are(rng):
    x = rng.standard_normal(SHAPE).astype(np.float32)
    lying = x.view(Lying)
    assert_same_bits(mp.matmul(lying, lying, residual=lying), mp.matmul(x, x, residual=x))
    assert_same_bits(mp.layer_norm(lying, x[0].view(Lying)), mp.layer_norm(x, x[0]))
    assert_same_bits(mp.pack(lying).unpack(), x)
    assert_same_bits(mp.quantize(lying).values, mp.quantize(x).values)
    data = np.zeros(64, np.uint8).view(Lying)
    with pytest.raises(ValueError, match="`data` must be contiguous uint8"):
        mp.PackedMatrix((1000, 1000), np.dtype(np.float32), data)
    steps, zeros = np.ones(3, np.float32), np.zeros(3, np.int32)
    assert mp.ops.fixed_matmul(X, PACKED, steps.view(Lying), zeros.view(Lying)).shape == (2, 2)
    with pytest.raises(ValueError, match="`scales` and `zeros`"):
        mp.ops.fixed_matmul(X, PACKED, steps[:2].view(Lying), zeros)


class Meddler:
    """An argument whose conversion runs code: it gives `array` after it has taken the memory of other arrays."""

    def __init__(self, array, *victims):
        self.array, self.victims = array, victims

    def meddle(self):
        for victim in self.victims:
            victim.resize((1,) * victim.ndim, refcheck=False)

    def __array__(self, dtype=None, copy=None):
        self.meddle()
        return self.array

    def __float__(self):
        self.meddle()
        return 1.0

    def __index__(self):
        self.meddle()
        return -1

    @property
    def dtype(self):
        self.meddle()
        return np.dtype(np.float32)


def _operands():
    """Return arrays of their own memory: a matrix of 64 MiB, whose pages are gone once it is resized, and a row."""
    return np.ones((4096, 4096), np.float32), np.ones(4096, np.float32)


MEDDLED = {
    "matmul bias": lambda x, row: mp.matmul(x, row[:, None], bias=Meddler(np.ones(1, np.float32), x)),
    "matmul residual": lambda x, row: mp.matmul(x, row, residual=Meddler(row, x)),
    "matmul a": lambda x, row: mp.matmul(Meddler(row, x), x),
    "matmul b": lambda x, row: mp.matmul(x, Meddler(row, x)),
    "matmul subclass": lambda x, row: mp.matmul(x.view(np.matrix), Meddler(row)),
    "matmul out_dtype": lambda x, row: mp.matmul(x, row, out_dtype=Meddler(row, x)),
    "matmul quantized": lambda x, row: mp.matmul(row, (q := mp.quantize(x)), bias=Meddler(row, q.values)),
    "dynamic_matmul": lambda x, row: mp.ops.dynamic_matmul(x, _packed(), bias=Meddler(row[:4], x)),
    "dynamic_matmul scale": lambda x, row: mp.ops.dynamic_matmul(x, _packed(), scale=Meddler(row, x)),
    "dynamic_matmul out_dtype": lambda x, row: mp.ops.dynamic_matmul(x, _packed(), out_dtype=Meddler(row, x)),
    "einsum": lambda x, row: mp.einsum("ij,j->i", x, Meddler(row, x)),
    "einsum out_dtype": lambda x, row: mp.einsum("ij,kj->ki", x, x, out_dtype=Meddler(row, x)),
    "layer_norm gamma": lambda x, row: mp.layer_norm(x, Meddler(row, x)),
    "layer_norm beta": lambda x, row: mp.layer_norm(x, row, Meddler(row.copy(), x, row)),
    "rms_norm gamma": lambda x, row: mp.rms_norm(x, Meddler(row, x)),
    "layer_norm residual": lambda x, row: mp.layer_norm(x, residual=Meddler(x.copy(), x)),
    "softmax mask": lambda x, row: mp.softmax(x, mask=Meddler(row > 0, x)),
    "softmax axis": lambda x, row: mp.softmax(x, axis=Meddler(row, x)),
    "cast dtype": lambda x, row: mp.cast(x, Meddler(row, x)),
    "pack dtype": lambda x, row: mp.pack(x, dtype=Meddler(row, x)),
    "quantize scale": lambda x, row: mp.quantize(x, axis=0, scale=Meddler(row, x)),
    "quantize zero_point": lambda x, row: mp.quantize(x, scale=1.0, zero_point=Meddler(np.int32(1), x)),
    "quantize axis": lambda x, row: mp.quantize(x, axis=Meddler(row, x)),
    "quantize both": lambda x, row: mp.quantize(x, axis=0, scale=row, zero_point=Meddler(np.int32(1), row)),
    "dequantize dtype": lambda x, row: mp.dequantize((q := mp.quantize(x)), Meddler(row, q.values)),
}


def _packed():
    return mp.pack(mp.quantize(np.ones((4096, 4), np.float32), axis=1))


@pytest.mark.parametrize("name", MEDDLED)
def test_arguments_are_imported_before_any_of_them_is_measured(name):
    """A conversion that shrinks another argument leads to an error or to a result of what is left."""
    try:
        result = MEDDLED[name](*_operands())
    except (TypeError, ValueError, IndexError) as error:
        assert str(error)
    else:
        assert np.prod(result.shape) < 4096**2


def test_a_memory_error_of_an_argument_stays_one():
    class Huge:
        def __array__(self, dtype=None, copy=None):
            raise MemoryError("too large")

    class Tensor(Huge):
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **_):
            raise MemoryError("too large")

    for x in (Huge(), Tensor()):
        for call in (mp.cast, lambda x, _: mp.matmul(X, x), lambda x, _: mp.layer_norm(X, x), lambda x, _: mp.pack(x)):
            with pytest.raises(MemoryError, match="too large"):
                call(x, "float16")


@pytest.mark.parametrize("dtype", [">f2", np.dtype(">f4"), np.dtype("bfloat16").newbyteorder(">")])
def test_types_in_another_byte_order(dtype):
    x = np.linspace(-2, 2, 9, dtype=np.float32).reshape(3, 3)
    swapped = mp.cast(x, dtype)
    native = mp.dtypes.parse(np.dtype(dtype).name)
    assert swapped.dtype == np.dtype(dtype) and not swapped.dtype.isnative
    assert_same_bits(mp.cast(swapped, "float32"), mp.cast(mp.cast(x, native), "float32"))
    for call, argument in (
        (lambda: mp.matmul(x, x, out_dtype=dtype), "out_dtype"),
        (lambda: mp.einsum("ij,kj->ki", x, x, out_dtype=dtype), "out_dtype"),
        (lambda: mp.ops.dynamic_matmul(x, mp.pack(mp.quantize(x, axis=1)), out_dtype=dtype), "out_dtype"),
        (lambda: mp.dequantize(mp.quantize(x), dtype), "dtype"),
        (lambda: mp.pack(x, dtype=dtype), "dtype"),
    ):
        with pytest.raises(TypeError, match=f"`{argument}` must be in native byte order; received"):
            call()


# ---- arrays without elements

HUGE = 2**40
EMPTY = {
    "cast": lambda: mp.cast(np.empty((HUGE, 3, 0)), "float16"),
    "cast int4": lambda: mp.cast(np.empty((HUGE, 3, 0)), "int4"),
    "matmul": lambda: mp.matmul(np.empty((HUGE, 3, 0), np.float32), np.empty((HUGE, 0, 0), np.float32)),
    "matmul broadcast": lambda: mp.matmul(np.empty((HUGE, 0, 5), np.float16), np.empty((1, 5, 7), np.float32)),
    "matmul float64": lambda: mp.matmul(np.empty((HUGE, 0, 5)), np.empty((1, 5, 7))),
    "dynamic_matmul": lambda: mp.ops.dynamic_matmul(np.empty((HUGE, 0, 3), np.float32), PACKED),
    "einsum": lambda: mp.einsum("bij,bjk->kbi", np.empty((HUGE, 0, 5)), np.empty((HUGE, 5, 0))),
    "einsum sums": lambda: mp.einsum("bij,jk->ik", np.empty((HUGE, 0, 5)), np.empty((5, 3))),
    "softmax": lambda: mp.softmax(np.empty((HUGE, 3, 0)), mask=np.empty((HUGE, 1, 0), bool)),
    "softmax axis": lambda: mp.softmax(np.empty((HUGE, 3, 0), np.float32), axis=1),
    "layer_norm": lambda: mp.layer_norm(np.empty((HUGE, 3, 0))),
    "gelu": lambda: mp.gelu(np.empty((HUGE, 3, 0))),
    "pack": lambda: mp.pack(np.empty((HUGE, 3, 0), np.float32)).unpack(),
    "pack int8": lambda: mp.pack(np.empty((HUGE, 3, 0), np.int8)).unpack(),
    "pack dtype": lambda: mp.pack(np.empty((10**8, 0, 3)), dtype="bfloat16").unpack(),
    "state": lambda: pickle.loads(
        pickle.dumps(mp.PackedMatrix((HUGE, 3, 0), np.dtype(np.float32), np.zeros(64, np.uint8)))
    ).unpack(),
}


@pytest.mark.parametrize("name", EMPTY)
def test_arrays_without_elements_cost_nothing_however_many_there_are(name):
    """Each would take hours, or terabytes."""
    assert EMPTY[name]().size == 0


@pytest.mark.parametrize(("name", "kind"), [("bfloat16", "V2"), ("float8_e4m3fn", "V1")])
def test_what_a_file_of_numpy_gives_back_is_named_with_its_way_back(name, kind, tmp_path):
    x = mp.cast(np.arange(6.0).reshape(2, 3), name)
    np.save(tmp_path / "x.npy", x)
    back = np.load(tmp_path / "x.npy")
    assert back.dtype == kind
    for call in (mp.relu, mp.quantize, lambda x: mp.matmul(x, x.T), lambda x: mp.cast(x, "float32"), layers.Dense(2)):
        with pytest.raises(
            TypeError, match=rf"received dtype \|{kind}.*saved as {name}.*`\.view\(ml_dtypes\.{name}\)`"
        ):
            call(back)
    np.testing.assert_array_equal(back.view(getattr(ml_dtypes, name)), x)
    with pytest.raises(TypeError, match=r"received dtype \|V3$"):
        mp.relu(np.zeros(2, "V3"))
