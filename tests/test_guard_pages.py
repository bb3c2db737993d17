"""No kernel touches a byte outside its operands: each ends, or begins, at a page that must not be touched."""

import ctypes
import dataclasses
import mmap

import numpy as np
import pytest
from oracles import NARROW, assert_same_bits

import mp_core as mp

PAGE = mmap.PAGESIZE
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Guarded:
    """Memory between two pages without access; arrays are placed against either end."""

    def __init__(self, pages=40):
        self.memory = mmap.mmap(-1, (pages + 2) * PAGE)
        self.bytes = np.frombuffer(self.memory, np.uint8)
        self.start, self.size = self.bytes.ctypes.data, pages * PAGE
        for guard in (self.start, self.start + PAGE + self.size):
            assert _mprotect(guard, PAGE, 0) == 0

    def place(self, x, end):
        """Return a copy of `x` that ends (or begins) where access ends (begins)."""
        assert x.nbytes <= self.size
        first = PAGE + (self.size - x.nbytes if end else 0)
        view = self.bytes[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
        view[...] = x
        return view


@pytest.fixture(scope="module")
def guards():
    return [Guarded() for _ in range(5)]


@pytest.fixture(params=[True, False], ids=["against the end", "against the start"])
def place(request, guards):
    places = iter(guards)
    return lambda x: next(places).place(x, request.param)


@pytest.mark.parametrize("n", [1, 7, 15, 16, 17, 31, 100])
@pytest.mark.parametrize("dtype", NARROW)
def test_casts(isa, place, n, dtype, rng):
    x, out = place(rng.standard_normal(n).astype(np.float32)), place(np.zeros(n, dtype))
    back = place(np.zeros(n, np.float32))
    mp.cast(x, dtype, out=out)
    mp.cast(out, "float32", out=back)


@pytest.mark.parametrize(
    ("m", "k", "n"),
    [
        *[(1, 1, 1), (7, 3, 17), (2, 5, 15), (6, 17, 65), (5, 30, 49), (13, 7, 64), (3, 77, 18), (14, 200, 33)],
        *[(1, 30, 130), (1, 77, 100), (1, 96, 80), (16, 45, 81)],  # one row reads b in memory's order
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_products(isa, place, dtype, m, k, n, rng):
    a, b = (place(rng.integers(-9, 9, shape).astype(dtype)) for shape in ((m, k), (k, n)))
    out = place(np.zeros((m, n), "int32" if dtype == "int8" else dtype))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for right in (b, mp.pack(b)):
        mp.matmul(a, right, out=out)
        if dtype != "bfloat16" and dtype != "float16":
            np.testing.assert_array_equal(out.astype(np.float64), exact)
    if dtype != "int8":
        bias = place(np.zeros(n, np.float32))
        mp.matmul(a, b, out=out, bias=bias, activation="gelu")
    transposed = place(np.ascontiguousarray(b.T)).T
    mp.matmul(a, transposed, out=out)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_rows_before_pages_that_must_not_be_touched(isa, dtype):
    """Products read a few rows of b as they lie, whole vectors at a time."""
    m, k, n = 4, 8, 24
    size, memory = np.dtype(dtype).itemsize, mmap.mmap(-1, 2 * PAGE * (k + 1))
    room = np.frombuffer(memory, np.uint8)
    b = np.ndarray((k, n), dtype, room, PAGE - n * size, (2 * PAGE, size))
    b[...] = 1
    for row in range(k):
        assert _mprotect(room.ctypes.data + (2 * row + 1) * PAGE, PAGE, 0) == 0
    np.testing.assert_array_equal(mp.matmul(np.ones((m, k), dtype), b).astype(int), np.full((m, n), k))


@pytest.mark.parametrize("n", [1, 15, 16, 17, 40])
def test_rows_and_quantization(isa, place, n, rng):
    x, out = place(rng.standard_normal((3, n)).astype(np.float32)), place(np.zeros((3, n), np.float32))
    mask, gamma = place(rng.random((3, n)) < 0.5), place(np.ones(n, np.float32))
    mp.softmax(x, mask=mask, out=out)
    mp.layer_norm(x, gamma, gamma, residual=x, out=out)
    mp.gelu(x, out=out)
    for axis in (None, 0, 1):
        q = mp.quantize(x, axis=axis)
        mp.dequantize(q)


LAYOUTS = {
    "columns": lambda x, place: place(np.ascontiguousarray(x.T)).T,
    "backwards": lambda x, place: place(np.ascontiguousarray(x[::-1]))[::-1],
    "columns backwards": lambda x, place: place(np.ascontiguousarray(x[:, ::-1]))[:, ::-1],
    "every other row": lambda x, place: place(np.repeat(x, 2, 0)[:-1])[::2],
    "every other column": lambda x, place: place(np.repeat(x, 2, 1)[:, :-1])[:, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "kind",
    [
        *({"dtype": dtype, "axis": axis} for dtype in ("int8", "uint8", "int4", "float8_e4m3fn") for axis in (0, 1)),
        *({"dtype": dtype, "axis": 1, "symmetric": False} for dtype in ("int8", "uint8", "int4", "uint4")),
        {"dtype": "int16", "axis": 1, "scale": 1e-3},
        *({"dtype": dtype, "axis": 1, "group_size": 8} for dtype in ("int8", "int4", "float8_e5m2")),
        {"dtype": "int4", "axis": 1, "group_size": 5},
        {"dtype": "int4", "axis": 0, "group_size": 5},
    ],
    ids=str,
)
def test_strided_codes(isa, place, layout, kind, rng):
    """Codes may lie in any order: of every kind, on either side of a product, in what they stand for."""
    w = rng.standard_normal((33, 21)).astype(np.float32)
    q, rows = mp.quantize(w, **kind), mp.quantize(rng.standard_normal((4, 33)), axis=0)
    x = rng.standard_normal((4, 33)).astype(np.float32)
    strided = dataclasses.replace(q, values=LAYOUTS[layout](q.values, place))
    assert not strided.values.flags.c_contiguous
    assert_same_bits(mp.dequantize(strided), mp.dequantize(q))
    assert_same_bits(mp.dequantize(strided, out=place(np.zeros_like(w))), mp.dequantize(q))
    for left in (x, x.astype(np.float16), rows):
        assert_same_bits(mp.matmul(left, strided), mp.matmul(left, q))
        assert_same_bits(mp.einsum("mk,kn->mn", left, strided), mp.matmul(left, q))
    right = rng.standard_normal((21, 9)).astype(np.float32)
    for b in (right, mp.quantize(right, axis=1), mp.pack(mp.quantize(right, axis=1))):
        assert_same_bits(mp.matmul(strided, b), mp.matmul(q, b))
