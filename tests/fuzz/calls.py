"""Nonsense calls: every public operation with arguments of all kinds. Each must raise an error or return."""

import inspect

import ml_dtypes
import numpy as np

import mp_core as mp
from fuzz.arrays import SIZES
from mp_core import ops
from mp_core.ops import arrangement

__all__ = ["make", "run"]

REFUSALS = (TypeError, ValueError, IndexError, MemoryError)
NUMPYS = (
    OverflowError,
    ZeroDivisionError,
)  # of axes beyond int, and of no parts: errors of ops/arrangement.py are NumPy's
FLOATS = (np.float32, np.float16, ml_dtypes.bfloat16, np.float64, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
OTHERS = (np.int8, np.uint8, np.int32, np.int64, np.uint64, bool, ">f4", ">i4", object, "V2", "S3", complex)
ARRANGED = {getattr(arrangement, name) for name in arrangement.__all__}
SHAPES = ((4, 6), (6, 5), (4, 5), (3, 4, 2, 8), (8, 1, 4), (9, 3), (4, 8), (2, 0, 3))  # some of which multiply
NUMBERS = (0, 1, -1, 7, 2**31 - 1, 2**31, -(2**31), 2**63, -(2**63), 2**70, 10**400, 0.0, -1.0, np.nan, np.inf, 1e300)
OBJECTS = (None, "mean", "relu", "float32", "int8", b"x", [], (), [1, 2], [[1], [2, 3]], {}, set(), True, object(),
           "\ud800",
           np.dtype("float32"), np.float16, ("mean", "cls"), np.float16(2), ml_dtypes.bfloat16(1))  # fmt: skip


def make(rng):
    """Return what calls draw from: operations, packed and quantized matrices."""
    matrices = [rng.standard_normal(lengths).astype(np.float32) for lengths in ((4, 6), (6, 5), (9, 3), (8, 8))]
    kinds = (
        {},
        {"axis": 0},
        {"axis": 1},
        {"axis": 1, "dtype": "uint8", "symmetric": False},
        {"axis": 0, "dtype": "int4"},
    )
    codes = [mp.quantize(x, **kind) for x in matrices for kind in kinds]
    packed = [mp.pack(q) for q in codes if q.axis in ((1,), ())]
    packed += [mp.pack(matrices[1], dtype=dtype) for dtype in ("float32", "bfloat16", "float16")]
    functions = [getattr(ops, name) for name in ops.__all__] + [
        mp.quantize,
        mp.dequantize,
        mp.einsum,
        mp.QuantizedArray,
    ]
    return functions, [*codes, *packed]


def array(rng):
    """Return an array of some type and layout, which may be read-only, broadcast or backwards."""
    dtype = _one(rng, FLOATS if rng.random() < 0.7 else OTHERS)
    lengths = _one(rng, SHAPES) if rng.random() < 0.6 else tuple(rng.choice((0, *SIZES[:9]), int(rng.integers(0, 5))))
    x = rng.integers(-3, 6, lengths).astype(np.int8 if dtype in ("V2", "S3") else dtype)
    layout = rng.integers(8)
    if layout == 0 and x.ndim:
        x = x[..., ::-1]
    elif layout == 1 and x.ndim:
        x = np.repeat(x, 2, -1)[..., ::2]
    elif layout == 2:
        x = x.T
    elif layout == 3:
        x = np.broadcast_to(x, (2, *x.shape))
    elif layout == 4:
        x = np.array(x)
        x.flags.writeable = False
    return x


def run(made, rng):
    """Make one call."""
    functions, matrices = made
    function = _one(rng, functions)

    def thing():
        kind = rng.random()
        if kind < 0.7:
            return array(rng)
        return _one(rng, NUMBERS if kind < 0.8 else OBJECTS if kind < 0.9 else matrices)

    positional = [thing() for _ in range(int(rng.integers(1, 6)))]
    options = {name: thing() for name in keywords(function) if rng.random() < 0.25}
    try:
        with np.errstate(all="ignore"):
            function(*positional, **options)
    except REFUSALS:
        pass
    except NUMPYS:
        if function not in ARRANGED:
            raise


def keywords(function):
    """Return the names of the arguments that are given by name only."""
    if function is ops.PackedMatrix:  # a compiled class, which has no signature
        return []
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


def _one(rng, choices):
    return choices[int(rng.integers(len(choices)))]
