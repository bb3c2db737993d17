"""What `builds.py` times: the calls of mp_core in the rows of `peers.py`, and operations on rows."""

import math
from collections.abc import Callable
from functools import partial
from itertools import cycle

import numpy as np
from shapes import COPIES, LABELS

import mp_core as mp

BEYOND_CACHES = 128 << 20  # bytes of all copies of b: as many copies as fit, at most COPIES

Call = Callable[[], object]
rng = np.random.default_rng(0)
offsets = cycle(range(0, 4096, 832))


def call(name: str) -> Call:
    """Return the call that the cell of this name times; its operands and its result are allocated."""
    subject, rest = name.split(" ", 1)
    return {"products": product, "dynamic": dynamic, "casts": cast, "quantize": quantize, "rows": rows}[subject](rest)


def placed(x: np.ndarray) -> np.ndarray:
    """Return a copy at the same offset in a page in every process: a load waits for a store that is 4 KiB away."""
    raw = np.empty(x.nbytes + 8192, np.uint8)
    first = -raw.ctypes.data % 4096 + next(offsets)
    copy = raw[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Return normal deviates; beyond 1 Mi they repeat."""
    few = rng.standard_normal(min(math.prod(shape), 1 << 20), np.float32)
    few = np.rint(few * 30).astype(np.int8) if dtype == "int8" else mp.cast(few, dtype)
    return placed(np.resize(few, shape))


def product(rest: str) -> Call:
    dtypes, shape, form, *copies = rest.split()
    *batch, m, k, n = map(int, shape.split("x"))
    dtype, *quantized = dtypes.split("@")  # of a; of the weights, if they are quantized
    a = normal(*batch, m, k, dtype=dtype)
    w = normal(*batch, *((n, k) if form == "nk" else (k, n)), dtype="float32" if quantized else dtype)
    settings = {"out_dtype": "float32"} if "float8" in dtype else {}

    def one() -> tuple[Call, int]:
        if quantized:
            b = codes(w, quantized[0])
        elif form == "packed":
            b = mp.pack(w)
        else:
            b = placed(w) if form == "kn" else placed(w).swapaxes(-1, -2)
        out = placed(mp.matmul(a, b, **settings))
        return partial(mp.matmul, placed(a), b, out=out, **settings), b.nbytes

    first, nbytes = one()
    if not copies:
        return first
    turns = cycle([first, *(one()[0] for _ in range(1, min(COPIES, -(-BEYOND_CACHES // nbytes))))])
    return lambda: next(turns)()


def codes(w: np.ndarray, kind: str = "int8") -> mp.PackedMatrix:
    """Return packed codes: int8 or int4 with a scale per column, int8/64 in groups, int4/64 with zero points too."""
    dtype, *group = kind.split("/")
    group_size = int(group[0]) if group else None
    return mp.pack(mp.quantize(w, axis=1, dtype=dtype, group_size=group_size, symmetric=kind[:5] != "int4/"))


def dynamic(rest: str) -> Call:
    shape, *kind = rest.split()
    m, k, n = map(int, shape.split("x"))
    x, w, bias = normal(m, k), codes(normal(k, n), *kind), normal(n)
    return partial(mp.dynamic_matmul, x, w, bias=bias, out=placed(np.empty((m, n), np.float32)))


def cast(rest: str) -> Call:
    size, pair = rest.split()
    source, target = pair.split(":")
    x = normal(int(size), dtype=source)
    return partial(mp.cast, x, target, out=placed(mp.cast(x, target)))


def quantize(rest: str) -> Call:
    shape, label = rest.split(" ", 1)
    kind, x = LABELS[label], normal(*map(int, shape.split("x")))
    q = mp.quantize(x, **kind.settings)
    if kind.back:
        return partial(mp.dequantize, q, out=x)
    given = {"scale": float(q.scale[0, 0]) if q.scale.size == 1 else q.scale} if kind.given else {}
    return partial(mp.quantize, x, out=q, **kind.settings, **given)


def rows(rest: str) -> Call:
    shape, name, dtype = rest.split()
    x = normal(*map(int, shape.split("x")), dtype=dtype)
    gamma = np.ones(x.shape[-1], np.float32)
    return partial(getattr(mp, name), x, *[gamma] * (2 * (name == "layer_norm")), out=placed(x))
