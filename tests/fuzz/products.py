"""Products of floats and codes, quantization and dequantization: rows of the table of operations."""

import ml_dtypes
import numpy as np
import test_int4
from oracles import FLOATS, LIMITS, gamma, onnx_qlinear_matmul, onnx_quantize, product_bound, scaled_bound

import mp_core as mp
from fuzz.arrays import shape, values
from fuzz.check import UNIT, WIDE, Case, wide
from mp_core import ops

__all__ = ["PRODUCTS"]

LENGTHS = (1, 2, 3, 7, 17, 33, 65)
EQUATIONS = (
    "ij,jk->ik", "bij,bjk->bik", "bqhd,bkhd->bhqk", "ij,kj->ki", "...ij,jk->...ik", "i,i->", "abc,cd->abd", "ij,ij->i",
)  # fmt: skip


def lengths(rng, count, choices=LENGTHS):
    return (int(x) for x in rng.choice(choices, count))


def product(rng):
    """A matrix product with some of: packed B, bias, activation, residual, batch."""
    dtype = str(rng.choice(FLOATS))
    m, k, n = (int(x) for x in rng.choice((1, 2, 3, 5, 7, 13, 16, 17, 33, 64, 65, 130), 3))
    batch = (2,) if rng.random() < 0.2 else ()
    a, b = values(rng, (*batch, m, k), dtype), values(rng, (*batch, k, n), dtype)
    exact, bound = wide(a) @ wide(b), product_bound(a, b, dtype, "float32")
    options, packs = {"out_dtype": "float32"}, rng.random() < 0.4
    if rng.random() < 0.3:
        options["bias"] = rng.standard_normal(n).astype(np.float32)
        bound, exact = bound + UNIT * (np.abs(exact) + bound + 2 * np.abs(options["bias"])), exact + options["bias"]
    if rng.random() < 0.3:
        options["activation"] = "relu"
        exact = np.maximum(exact, 0)

    def multiply(a, b, **options):
        return mp.matmul(a, mp.pack(b) if packs else b, **options)

    return Case(multiply, (a, b), options, exact, bound, out=not packs)


def drawn_codes(rng, kind, k, n, group):
    """Return a matrix of codes, scaled by column or in groups along K; int4 may have zero points."""
    w = values(rng, (k, n), "float32") + rng.standard_normal(n).astype(np.float32)
    symmetric = kind == "int8" or bool(rng.random() < 0.3)
    return mp.quantize(w, axis=1, dtype=kind, group_size=group, symmetric=symmetric)


def differences(q):
    """Return codes less their zero points."""
    if q.dtype == np.int8:
        return q.values
    codes, zero, _ = test_int4.numbers(q)
    return codes - zero


def drawn_depth(rng):
    """Return K and the size of scale groups along it, or None."""
    k, group = int(rng.choice(LENGTHS)), int(rng.choice((8, 16)))
    return (k * group, group) if rng.random() < 0.5 else (k, None)


def quantized(rng):
    """A float product by codes."""
    dtype, (m, n), (k, group) = str(rng.choice(WIDE)), lengths(rng, 2), drawn_depth(rng)
    a, q = values(rng, (m, k), dtype), drawn_codes(rng, str(rng.choice(("int8", "int4"))), k, n, group)
    scale = np.broadcast_to(q.scale, (len(q.scale), n))
    exact = wide(a) @ (wide(differences(q)) * np.repeat(scale, group or k, 0))
    bound = scaled_bound(a, differences(q), scale, dtype == "bfloat16", group).astype(np.float64)
    right = mp.pack(q) if rng.random() < 0.5 else q
    return Case(lambda a, **out: mp.matmul(a, right, out_dtype="float32", **out), (a,), {}, exact, bound)


def dynamic(rng):
    """Rows that become int8 during the product, each by its own scale: exact in each group of the codes."""
    m, n, kind = int(rng.choice((*LENGTHS, 130))), int(rng.choice(LENGTHS)), str(rng.choice(("int8", "int4")))
    k, group = drawn_depth(rng) if kind == "int4" else (int(rng.choice(LENGTHS)), None)
    a, q = values(rng, (m, k), rng.choice(WIDE)), drawn_codes(rng, kind, k, n, group)
    amax = np.abs(a.astype(np.float32)).max(-1, keepdims=True)
    scale = np.where(amax > 0, amax / np.float32(127), np.float32(1)).astype(np.float32)
    codes, packed = onnx_quantize(a.astype(np.float32), scale, 0, -127, 127), mp.pack(q)
    exact = wide(codes) @ (wide(differences(q)) * np.repeat(wide(q.scale), group or k, 0)) * wide(scale)
    size = np.abs(wide(codes)) @ (np.abs(wide(differences(q))) * np.repeat(wide(q.scale), group or k, 0)) * wide(scale)
    error = 8 * UNIT * np.abs(exact) + (gamma(len(q.scale) + 8) * size if group else 0)
    return Case(lambda a: mp.dynamic_matmul(a, packed, out_dtype="float32"), (a,), {}, exact, error)


def fixed(rng):
    """Rows that become int8 by a scale and a zero point for each input."""
    m, k, n = lengths(rng, 3)
    a, q = values(rng, (m, k), rng.choice(WIDE)), mp.quantize(rng.standard_normal((k, n)), axis=1)
    scales, zeros = rng.uniform(0.01, 0.2, k).astype(np.float32), rng.integers(-20, 21, k).astype(np.int32)
    codes, packed = onnx_quantize(a.astype(np.float32), scales, zeros, -128, 127), mp.pack(q)
    exact = (wide(codes) @ wide(q.values)) * wide(q.scale)
    return Case(lambda a: ops.fixed_matmul(a, packed, scales, zeros), (a,), {}, exact, 8 * UNIT * np.abs(exact))


def qlinear(rng):
    """Codes times codes that become codes again."""
    m, k, n = lengths(rng, 3)
    kinds, zeros = [str(x) for x in rng.choice(("int8", "uint8"), 2)], [int(x) for x in rng.integers(0, 90, 3)]
    a, b = (rng.integers(*LIMITS[kind], each).astype(kind) for kind, each in zip(kinds, ((m, k), (k, n)), strict=True))
    scales = rng.uniform(0.01, 0.1, 3).astype(np.float32)
    exact = onnx_qlinear_matmul(a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], zeros[2], kinds[0])

    def multiply(a, b):
        left, right = (mp.QuantizedArray(x, scales[i], zeros[i]) for i, x in enumerate((a, b)))
        return mp.qlinear_matmul(left, right, out_scale=float(scales[2]), out_zero_point=zeros[2]).values

    return Case(multiply, (a, b), {}, wide(exact), plans=False)


def einsum(rng):
    """Two operands of one type that an equation contracts."""
    dtype, equation = str(rng.choice(WIDE)), str(rng.choice(EQUATIONS))
    left, right = equation.partition("->")[0].split(",")
    sizes = {label: int(rng.choice((1, 2, 3, 7, 17))) for label in left + right}
    a, b = (values(rng, [sizes[label] for label in labels.replace("...", ".")], dtype) for labels in (left, right))
    size = np.einsum(equation, np.abs(wide(a)), np.abs(wide(b)))
    error = (gamma(a.size + 1) + 2.0**-126) * size
    call = Case(lambda a, b: mp.einsum(equation, a, b, out_dtype="float32"), (a, b), {}, None)
    return call._replace(exact=np.einsum(equation, wide(a), wide(b)), error=error)


def quantize(rng):
    """An array becomes int8 or uint8 by scales of all of it, its rows or its columns."""
    x = values(rng, shape(rng, 2, empty=0), rng.choice(WIDE))
    axis, dtype = (None, 0, 1)[int(rng.integers(3))], str(rng.choice(("int8", "uint8")))
    low, high = (-127, 127) if dtype == "int8" else (0, 255)
    x32 = x.astype(np.float32)
    size = np.abs(x32) if dtype == "int8" else np.maximum(x32, 0)
    peak = size.max(None if axis is None else 1 - axis, keepdims=True)
    scale = np.where(peak > 0, peak / np.float32(high), np.float32(1)).astype(np.float32)
    exact = onnx_quantize(x32, scale, 0, low, high)
    return Case(lambda x: mp.quantize(x, axis=axis, dtype=dtype).values, (x,), {}, wide(exact), plans=False)


def dequantize(rng):
    """Codes with a scale and a zero point for each column become numbers."""
    kind, dtype = str(rng.choice(("int8", "uint8"))), str(rng.choice(WIDE))
    codes = rng.integers(*LIMITS[kind], shape(rng, 2, empty=0)).astype(kind)
    scale = rng.uniform(0.01, 1, (1, codes.shape[1])).astype(np.float32)
    zero = rng.integers(0, 90, scale.shape).astype(np.int32)
    exact = (wide(codes) - zero) * scale

    def numbers(codes):
        return mp.dequantize(mp.QuantizedArray(codes, scale, zero, 1), dtype)

    return Case(numbers, (codes,), {}, exact, UNIT * np.abs(exact), plans=False)


def pack(rng):
    """A packed matrix holds the elements: the product with one in which each row has a single 1."""
    dtype = str(rng.choice(FLOATS))
    x = values(rng, tuple(lengths(rng, 2)), dtype)
    one = np.eye(len(x)).astype(ml_dtypes.bfloat16 if "float8" not in dtype else dtype)
    return Case(lambda x: mp.matmul(one, mp.pack(x), out_dtype="float32"), (x,), {}, wide(x), 2.0**-120)


PRODUCTS = {
    "matmul": product,
    "matmul by codes": quantized,
    "dynamic_matmul": dynamic,
    "fixed_matmul": fixed,
    "qlinear_matmul": qlinear,
    "einsum": einsum,
    "quantize": quantize,
    "dequantize": dequantize,
    "pack": pack,
}
