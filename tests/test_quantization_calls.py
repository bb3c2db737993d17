"""Arguments of quantize and dequantize: `out`, rare types, threads, and errors."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from oracles import assert_same_bits, onnx_quantize

import mp_core as mp
from mp_core.arrays.quantization.recipe import pack_nibbles, unpack_nibbles
from mp_core.dtypes import STORED

KINDS = [
    {},
    {"axis": 1, "symmetric": False},
    {"axis": 0, "dtype": "float8_e4m3fn"},
    {"axis": 1, "dtype": "int4", "group_size": 32},
    {"axis": 0, "group_size": 48, "dtype": "uint8", "symmetric": False},
    {"axis": 1, "scale": 0.02, "zero_point": 3},
]


@pytest.mark.parametrize("kind", KINDS)
def test_out_takes_what_a_call_like_it_returned(kind, rng):
    a, b = rng.standard_normal((2, 70, 130)).astype(np.float32)
    out, expected = mp.quantize(a, **kind), mp.quantize(b, **kind)
    assert mp.quantize(b, out=out, **kind) is out
    assert_same_bits(out.values, expected.values)
    assert_same_bits(out.scale, expected.scale)
    if expected.zero_point is not None:
        assert_same_bits(out.zero_point, expected.zero_point)
    for dtype in ("float32", "bfloat16", "float64"):
        x = np.zeros((70, 130), dtype)
        assert mp.dequantize(out, dtype, out=x) is x
        assert_same_bits(x, mp.dequantize(expected, dtype))


def test_out_may_overlap(rng):
    x = rng.standard_normal((4, 64)).astype("float8_e4m3fn")
    expected = mp.quantize(x, dtype="float8_e4m3fn", scale=0.5)
    out = mp.QuantizedArray(x, np.ones((1, 1), np.float32), None, ())
    assert_same_bits(mp.quantize(x, dtype="float8_e4m3fn", scale=0.5, out=out).values, expected.values)
    back = mp.dequantize(expected, "float8_e4m3fn")
    assert_same_bits(mp.dequantize(out, "float8_e4m3fn", out=x), back)


@pytest.mark.parametrize("kind", KINDS)
def test_unusual_arguments_give_what_usual_ones_do(kind, rng):
    """The short way serves ndarrays, names of types and ints; everything else takes another."""
    x = rng.standard_normal((24, 64)).astype(np.float32)
    usual = mp.quantize(x, **kind)
    unusual = dict(kind, dtype=np.dtype(usual.dtype), axis=usual.axis)
    if kind.get("group_size"):
        unusual["group_size"] = np.int64(kind["group_size"])
    again = mp.quantize(x.tolist(), **unusual)
    for part in ("values", "scale", "zero_point"):
        a, b = getattr(usual, part), getattr(again, part)
        assert (a is None) == (b is None)
        assert a is None or (a.dtype == b.dtype and a.tobytes() == b.tobytes())
    assert (usual.axis, usual.group_size, usual.dtype, usual.shape) == (
        again.axis,
        again.group_size,
        again.dtype,
        again.shape,
    )
    y = mp.dequantize(usual)
    out = np.empty((64, 24), np.float32).T
    assert mp.dequantize(usual, np.float32, out=out) is out
    assert_same_bits(np.ascontiguousarray(out), y)


@pytest.mark.parametrize("given", [True, False, 1.0])
def test_an_int_is_no_bool(given):
    """A shape and arguments that were served before do not let through what only equals them."""
    x = np.ones((4, 4), np.float32)
    mp.quantize(x, axis=1)
    mp.quantize(x, axis=1, group_size=1)
    with pytest.raises((TypeError, ValueError), match="group_size"):
        mp.quantize(x, axis=1, group_size=given)


def test_given_scales_broadcast_or_run_along_the_axis(rng):
    x = rng.standard_normal((3, 4)).astype(np.float32)
    scale = np.float32([0.1, 0.2, 0.3, 0.4])
    a = mp.quantize(x, axis=1, scale=scale, zero_point=[1, 2, 3, 4])
    b = mp.quantize(x, axis=1, scale=scale[None], zero_point=np.int32([[1, 2, 3, 4]]))
    assert_same_bits(a.values, b.values)
    np.testing.assert_array_equal(a.values, onnx_quantize(x, scale, [1, 2, 3, 4], -128, 127))


def test_rows_without_elements_need_no_memory():
    """In a thread of its own, which has no scratch yet."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: mp.quantize(np.zeros((3, 0), np.float32), axis=0)).result().scale.shape == (3, 1)


def test_threads_do_not_change_codes(rng):
    x = rng.standard_normal((700, 600)).astype(np.float32)
    for axis in (None, 0, 1):
        results = []
        for count in (1, 2, 5):
            with mp.config.num_threads(count):
                results.append(mp.quantize(x, axis=axis))
        for other in results[1:]:
            assert_same_bits(other.values, results[0].values)
            assert_same_bits(other.scale, results[0].scale)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize(
    ("shape", "axis", "group_size"),
    [((2**40, 3, 0), 1, None), ((2**40, 0, 3), None, None), ((2**40, 0), 1, None), ((2**40, 0), 1, 4)],
)
def test_arrays_without_elements_take_no_time(shape, axis, group_size, dtype, symmetric):
    q = mp.quantize(np.empty(shape, np.float32), axis=axis, dtype=dtype, group_size=group_size, symmetric=symmetric)
    assert np.all(q.scale == 1) and mp.dequantize(q, "float16").shape == shape


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(700, 611), (3, 200_001), (200_000, 3)])
def test_threads_do_not_change_any_kind(kind, shape, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    with mp.config.num_threads(1):
        expected = mp.quantize(x, **kind)
        numbers = mp.dequantize(expected)
    for count in (2, 5):
        with mp.config.num_threads(count):
            q = mp.quantize(x, **kind)
            assert_same_bits(mp.dequantize(q), numbers)
        assert_same_bits(q.values, expected.values)
        assert_same_bits(q.scale, expected.scale)


@pytest.mark.parametrize(
    ("values", "scale", "zero_point", "axis", "error"),
    [
        (np.zeros((4, 8), "i1"), np.ones((1, 2), "f4"), None, (1,), ValueError),
        (np.zeros((4, 8), "i1"), np.ones((4, 8), "f4"), None, (1,), ValueError),
        (np.zeros((4, 8), "i1"), np.ones((1, 8), "f4"), np.zeros(2, "i4"), (1,), ValueError),
        (np.zeros((4, 8), "i2"), np.ones((1, 8), "f4"), np.full(8, 2**15), (1,), ValueError),
        (np.zeros((4, 8)), np.ones((1, 1), "f4"), None, (), TypeError),
        (np.ma.zeros((4, 8), "i1"), np.ones((1, 1), "f4"), None, (), TypeError),
        ([1, 2], np.ones(1, "f4"), None, (), TypeError),
        (np.zeros((4, 8), "i1"), np.ones((1, 1), "f4"), np.full((1, 1), 128), (), ValueError),
        (np.zeros((4, 8), "u1"), np.ones((1, 1), "f4"), np.full((1, 1), 2**32), (), ValueError),
        (np.zeros((4, 8), "u1"), np.ones((1, 1), "f4"), np.full((1, 1), 0.5), (), TypeError),
    ],
)
def test_a_quantized_array_checks_what_the_kernels_trust(values, scale, zero_point, axis, error):
    with pytest.raises(error, match="must"):
        mp.QuantizedArray(values, scale, zero_point, axis)


X, CODES = np.ones((2, 3), np.float32), np.ones((2, 3), np.int8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: mp.quantize(X, dtype="int32"),
            TypeError,
            "`dtype` must be one of int8, uint8, int4, .*received int32",
        ),
        (lambda: mp.quantize(X, dtype="int16"), ValueError, "`scale` must be given for int16"),
        (
            lambda: mp.QuantizedArray(CODES.astype("int4"), 1.0, shape=(2, 4)),
            ValueError,
            "`shape` must be the shape of the int4 codes",
        ),
        (lambda: mp.QuantizedArray.from_onnx(CODES, [1.0, 2.0], axis=2), ValueError, "`axis` must lie in"),
        (lambda: mp.QuantizedArray.from_onnx(CODES, [1.0, 2.0]), ValueError, "`scale` must broadcast"),
        (lambda: mp.QuantizedArray.from_onnx(CODES, [[1.0], [1.0, 2.0]]), TypeError, "`scale` must be an array"),
        (
            lambda: mp.QuantizedArray.from_onnx(CODES, 1.0, block_size=-1),
            ValueError,
            "`block_size` must be an integer of at least 0",
        ),
        (lambda: mp.QuantizedArray.from_onnx(CODES, 1.0, block_size=1.5), TypeError, "`block_size` must be an integer"),
        (lambda: mp.QuantizedArray.from_onnx(CODES.tolist(), 1.0), TypeError, "`values` must be an ndarray"),
        (
            lambda: mp.QuantizedArray.from_onnx(CODES.astype("float8_e5m2"), 1.0, 3),
            ValueError,
            "`zero_point` must be zero",
        ),
        (lambda: mp.quantize(X, axis=2), ValueError, "`axis` must name distinct axes .*received 2"),
        (lambda: mp.quantize(X, axis=(0, -2)), ValueError, "distinct"),
        (lambda: mp.quantize(X, scale=0.0), ValueError, "`scale` must be positive and finite"),
        (lambda: mp.quantize(X, scale=np.inf), ValueError, "`scale` must be positive and finite"),
        (lambda: mp.quantize(X, scale=np.nan), ValueError, "`scale` must be positive and finite"),
        (lambda: mp.quantize(X, zero_point=1), ValueError, "`zero_point` must be None unless `scale`"),
        (lambda: mp.quantize(X, scale=1.0, zero_point=2**32 + 1), ValueError, "`zero_point` must lie in"),
        (lambda: mp.quantize(X, axis=1.5), TypeError, "`axis` must be an int"),
        (lambda: mp.quantize(X, axis="0"), TypeError, "`axis` must be an int"),
        (lambda: mp.quantize(X, scale=1.0, zero_point=128), ValueError, r"must lie in \[-128, 127\]"),
        (lambda: mp.quantize(X, scale=1.0, zero_point=1.5), TypeError, "`zero_point` must be integers"),
        (lambda: mp.quantize(X, axis=1, scale=[1.0, 2.0]), ValueError, "`scale` must broadcast to shape"),
        (lambda: mp.quantize(["x"]), TypeError, "`x` must be an array"),
        (lambda: mp.quantize(X, dtype="int16x"), TypeError, "`dtype` must be one of .*, mxfp4, .*, nvfp4; received"),
        (lambda: mp.quantize(X, dtype=None), TypeError, "`dtype` must be one of .*received None"),
        (lambda: mp.quantize(X, axis=0, group_size=0), ValueError, "`group_size` must be positive"),
        (
            lambda: mp.quantize(X, axis=0, group_size=True),
            TypeError,
            "`group_size` must be an int or None; received True",
        ),
        (lambda: mp.quantize(X, axis=0, group_size=2.0), TypeError, "`group_size` must be an int"),
        (lambda: mp.quantize(X, group_size=2), ValueError, "`axis` must leave out one axis"),
        (lambda: mp.quantize(X, axis=(0, 1), group_size=2), ValueError, "`axis` must leave out one axis"),
        (lambda: mp.quantize(X, axis=(1.0,)), TypeError, "`axis` must be an int"),
        (lambda: mp.quantize(X, dtype="float8_e5m2", symmetric=False), ValueError, "`symmetric` True"),
        (lambda: mp.quantize(X, dtype="float8_e5m2", scale=1.0, zero_point=0), ValueError, "`zero_point` must be None"),
        (lambda: mp.quantize(X, dtype="int4", scale=1.0, zero_point=8), ValueError, r"must lie in \[-8, 7\]"),
        (lambda: mp.quantize(X, out=X), TypeError, "`out` must be a QuantizedArray; received ndarray"),
        (lambda: mp.quantize(X, out=mp.quantize(X, axis=0)), ValueError, "`out` must have"),
        (lambda: mp.quantize(X, out=mp.quantize(X, dtype="uint8")), ValueError, "`out` must have"),
        (lambda: mp.dequantize(mp.quantize(X), out=np.zeros((3, 2), "f4")), ValueError, "`out` must have shape"),
        (lambda: mp.QuantizedArray(np.zeros((4, 8), "i1"), np.ones((3, 8)), None, (1,), 3), ValueError, "`scale` must"),
        (
            lambda: mp.QuantizedArray(np.zeros((4, 8), "i1"), np.ones((1, 8)), None, (1,), dtype="int4"),
            TypeError,
            "uint8 for int4",
        ),
        (
            lambda: mp.QuantizedArray(np.zeros((4, 8), "u1"), np.ones((1, 1)), None, (), None, "int4", (4, 17)),
            ValueError,
            "`shape` must",
        ),
        (
            lambda: mp.QuantizedArray(np.zeros((4, 0), "u1"), np.ones((4, 1)), None, (0,), None, "int4", (4, -1)),
            ValueError,
            "`shape` must",
        ),
        (
            lambda: mp.QuantizedArray(np.zeros(0, "i1"), np.ones(1), None, (), shape=(0,) * 65),
            ValueError,
            "`shape` must",
        ),
        (lambda: mp.QuantizedArray(np.zeros(4, "i1"), [1j], None, ()), TypeError, "`scale` must be an array"),
        (lambda: mp.QuantizedArray(np.zeros(4, "i1"), [1.0], ["0"], ()), TypeError, "`zero_point` must be an array"),
        (lambda: mp.dequantize(X), TypeError, "`q` must be a QuantizedArray; received ndarray"),
        (lambda: mp.dequantize(mp.quantize(X), "int8"), TypeError, "`dtype` must be a float type"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "float8_e4m3fn"])
def test_a_pickle_is_checked_and_has_the_types_by_identity(dtype):
    q = mp.quantize(X, axis=0, dtype=dtype)
    restored = pickle.loads(pickle.dumps(q))
    assert restored.dtype is q.dtype and restored.shape == q.shape
    np.testing.assert_array_equal(mp.dequantize(restored), mp.dequantize(q))
    make, (values, _, *others) = q.__reduce__()
    with pytest.raises(ValueError, match="`scale` must broadcast to shape"):
        make(values, np.ones((2, 2), np.float32), *others)


@pytest.mark.filterwarnings("ignore:Setting the dtype:DeprecationWarning")  # by NumPy 2.5
@pytest.mark.parametrize("part", ["values", "scale", "zero_point"])
def test_arrays_that_became_others_are_refused(part):
    """NumPy lets the type of an array be set in place: kernels trust what was checked when the object was made."""
    packed = mp.pack(mp.quantize(np.ones((4, 2), np.float32), axis=1))
    for use in (mp.dequantize, lambda q: mp.matmul(q, packed)):
        q = mp.quantize(np.ones((64, 4), np.float32), axis=0, symmetric=False)
        array = getattr(q, part)
        array.dtype = np.uint8 if part == "values" else np.float32 if part == "zero_point" else np.int32
        with pytest.raises(ValueError, match="arrays of a QuantizedArray must keep"):
            use(q)


@pytest.mark.parametrize(
    ("given", "axis"),
    [(0.5, ()), (np.float64(0.5), None), ([0.5], 1), ([0.5, 1, 2], 1), ([[0.5], [2]], 0), ([1, 2], -2)],
)
def test_a_quantized_array_takes_the_scales_that_quantize_takes(given, axis):
    q = mp.quantize(8 * X, axis=axis, scale=given, zero_point=3)
    again = mp.QuantizedArray(q.values, given, 3, axis)
    assert (again.axis, again.group_size) == (q.axis, None)
    for part in ("scale", "zero_point"):
        assert_same_bits(getattr(again, part), getattr(q, part))
    assert mp.quantize(8 * X, axis=axis, scale=given, zero_point=3, out=again) is again
    assert mp.dequantize(mp.QuantizedArray(CODES, 0.5)).tolist() == [[0.5] * 3] * 2


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("shape", [(5,), (4, 7), (2, 3, 8)])
def test_codes_of_half_a_byte_come_one_to_an_element_too(dtype, shape, rng):
    low, high = (-8, 7) if dtype == "int4" else (0, 15)
    codes = rng.integers(low, high + 1, shape)
    values, zero = codes.astype(STORED[dtype]), np.full(shape[0], high).astype(STORED[dtype])
    for layout in (values, np.asfortranarray(values), values[::-1][::-1]):
        q = mp.QuantizedArray(layout, 0.5, zero, 0)
        assert_same_bits(mp.QuantizedArray(layout, 0.5, zero, 0, None, dtype, shape).values, q.values)
        assert (q.shape, q.dtype.name, q.values.dtype) == (shape, dtype, np.uint8)
        np.testing.assert_array_equal(mp.dequantize(q), (codes - high) * np.float32(0.5))
        np.testing.assert_array_equal(mp.quantization.unpacked_codes(q), codes)


def test_values_of_a_subclass_are_read_as_a_plain_array():
    class Shaped(np.ndarray):
        shape = (4096, 4096)

    codes = np.arange(6, dtype=np.int8).reshape(2, 3)
    q = mp.QuantizedArray(codes.view(Shaped), np.ones((1, 1), np.float32), None, ())
    assert type(q.values) is np.ndarray and np.shares_memory(q.values, codes)
    np.testing.assert_array_equal(mp.dequantize(q), codes)


def test_scales_that_are_not_aligned_are_copied():
    scale = np.frombuffer(b"x" + np.float32([0.5, 2]).tobytes(), np.uint8)[1:].view(np.float32).reshape(1, 2)
    assert not scale.flags.aligned
    q = mp.QuantizedArray(np.ones((3, 2), np.int8), scale, None, (1,))
    np.testing.assert_array_equal(mp.dequantize(q), np.broadcast_to(scale, (3, 2)))


@pytest.mark.parametrize("part", ["codes", "packed"])
def test_kernels_refuse_an_order_that_they_do_not_know(part):
    arrays = {"codes": np.zeros((4, 6), np.int8), "packed": np.zeros((4, 3), np.uint8)}
    arrays[part] = np.asfortranarray(arrays[part])
    for call in (pack_nibbles, lambda codes, packed: unpack_nibbles(packed, codes, True)):
        with pytest.raises(ValueError, match="C-contiguous"):
            call(arrays["codes"], arrays["packed"])
        with pytest.raises(ValueError, match="shapes"):
            call(np.zeros((4, 8), np.int8), np.zeros((4, 3), np.uint8))


def test_a_given_scale_of_groups_lies_as_the_scales_do():
    q = mp.quantize(np.arange(8.0).reshape(2, 4), axis=0, group_size=2, scale=np.array([1.0, 10.0], np.float32))
    np.testing.assert_array_equal(q.scale, [[1, 10], [1, 10]])
