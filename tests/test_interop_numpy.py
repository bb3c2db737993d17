"""Variables, quantized arrays and packed matrices with NumPy: expressions, out-of-band pickles, memory maps."""

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp

X = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
BF16 = np.dtype(ml_dtypes.bfloat16)


def _built(policy):
    layer = mp.layers.Dense(48, dtype=policy)
    layer(np.ones((2, 64), np.float32))
    return layer


PICKLED = {
    "variable": lambda: mp.AutoCastVariable(X),
    "variable of bfloat16": lambda: mp.AutoCastVariable(X.astype(BF16)),
    "variable of float8": lambda: mp.AutoCastVariable(X.astype(ml_dtypes.float8_e5m2)),
    "int8": lambda: mp.quantize(X, axis=0),
    "int4": lambda: mp.quantize(X, axis=1, dtype="int4"),
    "float8": lambda: mp.quantize(X, axis=0, dtype="float8_e4m3fn"),
    "packed": lambda: mp.pack(X),
    "packed bfloat16": lambda: mp.pack(X, dtype="bfloat16"),
    "packed int8": lambda: mp.pack(mp.quantize(X, axis=1)),
    "layer": lambda: _built("float32"),
    "bfloat16 layer": lambda: _built("bfloat16"),
    "int8 layer": lambda: _built("int8_from_float32"),
    "int4 layer": lambda: _built("int4/32_from_bfloat16"),
}


def numbers_of(x):
    if isinstance(x, mp.QuantizedArray):
        return mp.dequantize(x)
    if isinstance(x, mp.PackedMatrix):
        return mp.matmul(np.eye(64, dtype=np.float32), x, out_dtype="float32")
    if isinstance(x, mp.AutoCastVariable):
        return x.numpy()
    return x(X[:2, :1] * np.ones((1, 64), np.float32))


@pytest.mark.parametrize("name", PICKLED)
def test_protocol_5_copies_no_large_buffer(name):
    x = PICKLED[name]()
    buffers = []
    data = pickle.dumps(x, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 2500
    assert sum(buffer.raw().nbytes for buffer in buffers) >= X.size // 2
    loaded = pickle.loads(data, buffers=buffers)
    assert_same_bits(numbers_of(loaded), numbers_of(x))
    addresses = [np.frombuffer(buffer, np.uint8).ctypes.data for buffer in buffers]
    if isinstance(x, mp.AutoCastVariable):
        assert loaded.numpy().ctypes.data in addresses and x.numpy().ctypes.data in addresses
    elif isinstance(x, mp.QuantizedArray):
        assert loaded.values.ctypes.data in addresses and x.values.ctypes.data in addresses
    elif isinstance(x, mp.PackedMatrix):
        assert loaded.data.ctypes.data in addresses and x.data.ctypes.data in addresses


@pytest.mark.parametrize("name", PICKLED)
@pytest.mark.parametrize("clone", [
    copy.deepcopy, copy.copy, *(lambda x, p=p: pickle.loads(pickle.dumps(x, p)) for p in range(2, 6)),
])  # fmt: skip
def test_every_copy_has_the_same_numbers(name, clone):
    x = PICKLED[name]()
    assert_same_bits(numbers_of(clone(x)), numbers_of(x))


@pytest.mark.parametrize("codes", [np.ones(3, np.uint8), np.ones(3, np.float16), [1, 2], None])
@pytest.mark.parametrize("name", ["bfloat16", "complex64", 3, None])
def test_damaged_pickles_of_arrays_are_refused(codes, name):
    from mp_core.arrays.pickling import _restored

    with pytest.raises(TypeError, match="a pickled array is damaged"):
        _restored(codes, name)


def test_variables_are_arrays_in_expressions():
    variable = mp.AutoCastVariable(X)
    with mp.autocast.autocast_scope("float16"):
        half = X.astype(np.float16)
        for result, expected in (
            (variable + 1, half + np.float16(1)),
            (np.exp(variable), np.exp(half)),
            (half * variable, half * half),
            (np.concatenate([variable, half]), np.concatenate([half, half])),
            (np.where(variable > 0, variable, 0), np.where(half > 0, half, np.float16(0))),
            (np.asarray(variable), half),
            (np.add(variable, half, out=np.empty_like(half)), half + half),
            (np.maximum.reduce(variable, axis=0), half.max(0)),
        ):
            assert_same_bits(result, expected)


def test_quantized_arrays_multiply_and_are_otherwise_refused():
    q = mp.quantize(X, axis=1)
    a = np.ones((3, 64), np.float32)
    expected = mp.matmul(a, q)
    assert_same_bits(a @ q, expected)
    assert_same_bits(np.matmul(a, q), expected)
    out = np.empty_like(expected)
    assert np.matmul(a, q, out=out) is out
    assert_same_bits(out, expected)
    assert_same_bits(q.T @ a.T, mp.matmul(q.T, a.T))
    assert_same_bits(mp.AutoCastVariable(a) @ q, expected)
    for call in (
        lambda: np.exp(q), lambda: a + q, lambda: q * np.float32(2), lambda: np.matmul(a, q, dtype=np.float64),
        lambda: np.sum(q), lambda: np.add.reduce(q), lambda: np.asarray(q), lambda: np.concatenate([q, q]),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"QuantizedArray.*: dequantize\(\) returns what it stands for"):
            call()


@pytest.fixture
def mapped(tmp_path):
    path = tmp_path / "x"
    X.tofile(path)
    return np.memmap(path, np.float32, "r", shape=X.shape)


OPERATIONS = {
    "matmul": lambda x: mp.matmul(x, x.T), "pack": lambda x: mp.pack(x).unpack(), "sum": lambda x: mp.sum(x, 0),
    "cast": lambda x: mp.cast(x, "bfloat16"), "quantize": lambda x: mp.dequantize(mp.quantize(x, axis=0)),
    "softmax": mp.softmax, "norm": lambda x: mp.layer_norm(x, x[0], x[1], residual=x), "gelu": mp.gelu,
    "einsum": lambda x: mp.einsum("ij,kj->ik", x, x), "variable": lambda x: mp.AutoCastVariable(x).numpy(),
    "dense": lambda x: _assigned(x)(np.ones((1, 64), np.float32)),
}  # fmt: skip


def _assigned(x):
    layer = _built("float32")
    layer.kernel.assign(x)
    return layer


@pytest.mark.parametrize("operation", OPERATIONS)
def test_read_only_memory_maps_are_operands(operation, mapped):
    result = OPERATIONS[operation](mapped)
    assert type(result) is np.ndarray
    assert_same_bits(result, OPERATIONS[operation](X))


def test_memory_maps_are_kept_and_written(mapped, tmp_path):
    assert mp.AutoCastVariable(mapped).numpy().ctypes.data == mapped.ctypes.data
    codes = mapped.view(np.int8)
    assert mp.QuantizedArray(codes, 0.5).values.ctypes.data == mapped.ctypes.data
    out = np.memmap(tmp_path / "out", np.float32, "w+", shape=(64, 64))
    assert mp.matmul(mapped, mapped.T, out=out) is out
    out.flush()
    np.testing.assert_array_equal(np.fromfile(tmp_path / "out", np.float32).reshape(64, 64), mp.matmul(X, X.T))
    with pytest.raises(ValueError, match="`out` must be writeable"):
        mp.gelu(X, out=mapped)
