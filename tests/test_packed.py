"""Packed matrices: contents, sizes, errors; and they do not change."""

import pickle
import sys

import ml_dtypes
import numpy as np
import processes
import pytest
from oracles import FLOATS, assert_same_bits, integers, values

import mp_core as mp


@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1), (3, 17), (65, 130), (2, 3, 33, 20), (2, 0, 4)])
def test_unpack_gives_the_matrix_back(isa, dtype, shape, rng):
    b = integers(rng, shape) if dtype == "int8" else values(rng, shape, dtype)
    packed = mp.pack(b)
    assert packed.shape == shape and packed.dtype == b.dtype
    assert_same_bits(packed.unpack(), b)
    assert_same_bits(mp.pack(np.asfortranarray(b)).unpack(), b)


FIRST = """
import pickle, sys
import numpy as np
right = pickle.load(sys.stdin.buffer)
assert (np.ones((2, 8), np.float32) @ right == 8).all()
"""


@pytest.mark.parametrize("make", [mp.pack, lambda b: mp.quantize(b, axis=1)], ids=["packed", "quantized"])
def test_the_first_thing_that_a_process_does_may_be_to_multiply_what_was_pickled(make):
    right = pickle.dumps(make(np.ones((8, 3), np.float32)))
    processes.run([sys.executable, "-c", FIRST], input=right, check=True)


@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
def test_packed_matrices_pickle_with_buffers_out_of_band(dtype, rng):
    b = integers(rng, (130, 70)) if dtype == "int8" else values(rng, (130, 70), dtype)
    packed = mp.pack(mp.quantize(b, axis=1)) if dtype == "int8" else mp.pack(b)
    buffers = []
    data = pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 2000 and buffers
    again = pickle.loads(data, buffers=buffers)
    assert_same_bits(again.unpack(), packed.unpack())
    a = b.T.copy() if dtype != "int8" else mp.quantize(b.T, axis=0)
    assert_same_bits(mp.matmul(a, again), mp.matmul(a, packed))


@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
def test_packed_memory_is_the_narrow_bytes(dtype):
    """The bytes of the elements, k rounded up to 4 at most, 64 bytes of slack, and 4 for the sum of an int8 column."""
    for k, n in ((384, 1536), (64, 64), (4, 16), (1000, 81), (4096, 1)):
        packed = mp.pack(np.zeros((k, n), dtype))
        assert packed.data.nbytes == k * n * packed.dtype.itemsize + 64 and packed.data.ctypes.data % 64 == 0
        assert packed.nbytes == packed.data.nbytes + (4 * n if dtype == "int8" else 0)


def test_packing_casts(rng):
    b = values(rng, (20, 20), "float32")
    assert_same_bits(mp.pack(b, dtype="bfloat16").unpack(), b.astype(ml_dtypes.bfloat16))
    assert_same_bits(mp.pack(b, dtype="float8_e4m3fn").unpack(), b.astype(ml_dtypes.float8_e4m3fn))


def test_packed_beside_a_wider_left_operand(rng):
    a, b = values(rng, (3, 20), "float32"), values(rng, (20, 4), "bfloat16")
    assert_same_bits(mp.matmul(a, mp.pack(b)), mp.matmul(a, b))


BYTES, ZEROS = np.zeros(1088, np.uint8), np.zeros(16, np.int32)


@pytest.mark.parametrize(
    "arguments",
    [
        ((1000, 100000), "float32", BYTES),
        ((4, 4), "int8", np.zeros(80, np.uint8)),
        ((4,), "float32", BYTES),
        ((4, 16), "float64", BYTES),
        ((16, 16), "float32", BYTES.view(np.int8)),
        ((16, 16), "float32", BYTES, None, np.zeros(3, np.float32)),
        ((16, 16), "float32", BYTES[::2]),
        ((16, 16), "float32", None),
        ((-16, -16), "float32", BYTES),
        ((*[1] * 63, 16, 16), "float32", BYTES),  # more axes than an array has
        ((16, 16), ">f4", BYTES),
        ((2**60, 4), "float32", BYTES[:64]),  # sizes that are 0 modulo 2^64
        ((2**58, 64, 1), "float32", BYTES[:64]),
        ((0, 2**70, 3), "float32", BYTES[:64]),
        ((16, 16), "bfloat16", BYTES[:576], None, np.ones((2, 16), np.float32), None, 7),
        ((32, 16), "int4", BYTES[:320]),
        ((4, 16), "int8", BYTES[:128], ZEROS[None], None, ZEROS),
        ((4, 16), "int8", BYTES[:128], ZEROS[None], np.ones(16, np.float32), ZEROS + 128),
        ((4, 16), "int8", BYTES[:128], ZEROS[None], np.ones((1, 16), np.float32), ZEROS, 8),
        ((4, 16), "float8_e5m2", BYTES[:128], None, np.ones(16, np.float32), ZEROS),
    ],
)
def test_a_packed_matrix_checks_what_the_kernels_trust(arguments):
    shape, dtype, *parts = arguments
    with pytest.raises(ValueError, match=r"received|too big"):
        mp.PackedMatrix(shape, np.dtype(dtype), *parts)
    assert mp.PackedMatrix((16, 16), np.dtype("float32"), BYTES).nbytes == 1088


def test_a_packed_matrix_does_not_change(rng):
    q = mp.quantize(rng.standard_normal((16, 3)), axis=1)
    a, packed = values(rng, (2, 16), "float32"), mp.pack(q)
    expected = mp.matmul(a, packed)
    mp.quantize(rng.standard_normal((16, 3)), axis=1, out=q)
    packed.__init__((10**7, 3), packed.dtype, None)
    assert packed.shape == (16, 3)
    assert_same_bits(mp.matmul(a, packed), expected)
    for part in (packed.data, packed.column_sums, packed.scale):
        assert not part.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            part.setflags(write=True)

    class Unfinished(mp.PackedMatrix):
        def __init__(self, *arguments):
            pass

    with pytest.raises(ValueError, match="received"):
        Unfinished((10**7, 3), packed.dtype, None)
    with pytest.raises(TypeError):
        mp.PackedMatrix.__new__(mp.PackedMatrix)


@pytest.mark.parametrize("group", [8, 2**40 + 8, 2**62 + 8, 2**80])
@pytest.mark.parametrize("k", [0, 7, 3000])
def test_groups_of_any_length(isa, group, k):
    packed = mp.pack(np.ones((k, 33), np.int8))
    scale = np.full((-(-k // group), 33), 2, np.float32)
    packed = mp.PackedMatrix((k, 33), packed.dtype, packed.data, packed.column_sums, scale, None, group)
    for m in (1, 3, 5, 9):
        mp.matmul(
            np.full((9, 300), np.inf, np.float32), np.full((300, 33), np.inf, np.float32)
        )  # leaves infinities behind
        for dtype in ("float32", "bfloat16"):
            assert np.all(mp.matmul(np.ones((m, k), dtype), packed, out_dtype="float32") == 2 * k)


OPERANDS = {
    "packed": lambda w: mp.pack(w),
    "packed int8": lambda w: mp.pack(mp.quantize(w, axis=1)),
    "packed uint8": lambda w: mp.pack(mp.quantize(w, axis=1, dtype="uint8", symmetric=False)),
    "packed groups": lambda w: mp.pack(mp.quantize(w, axis=1, group_size=8, dtype="int4")),
    "quantized": lambda w: mp.quantize(w, axis=1),
}


@pytest.mark.parametrize("kind", OPERANDS)
def test_the_operator_is_matmul_on_either_side(kind, rng):
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 20), (20, 7)))
    right = OPERANDS[kind](w)
    assert_same_bits(x @ right, mp.matmul(x, right))
    assert_same_bits(x.tolist() @ right, mp.matmul(x.tolist(), right))
    y = rng.standard_normal((7, 3)).astype(np.float32)
    np.testing.assert_allclose(right @ y, w @ y, atol=2 if "groups" in kind else 0.1)
    assert_same_bits(right @ mp.pack(y), mp.matmul(right, y))
    refused = [lambda: x * right, lambda: right + 1]
    if kind == "quantized":
        assert_same_bits(np.matmul(x, right), mp.matmul(x, right))
    else:
        refused.append(lambda: np.matmul(x, right))
    for other in refused:
        with pytest.raises(
            TypeError, match=r"unsupported operand|does not support ufuncs|does not accept a QuantizedArray"
        ):
            other()
    with pytest.raises(TypeError, match=r"cannot be converted to an ndarray: (unpack|dequantize)\(\) returns"):
        np.asarray(right)


def test_a_type_that_cannot_be_packed_says_what_to_pass():
    with pytest.raises(TypeError, match=r"`b` must be of type float32, .*; received float64: pass dtype="):
        mp.pack(np.ones((2, 2)))
