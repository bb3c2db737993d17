"""Hash the bits of many calls, by family, instruction set and thread count: `python bits.py [FILE]`.

Two builds that print the same lines give the same bits. Operands are random in every exponent, with infinities and NaN.
The hash leaves out payloads of NaN, which the numerics contract does not promise.
"""

import argparse
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import mp_core as mp

FLOATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
ROWS = (1, 2, 3, 6, 7, 13, 33, 50, 200)
SHAPES = ((1, 1), (5, 3), (64, 64), (65, 130), (127, 63), (1030, 70), (2050, 16), (300, 257))  # k, n
ACTIVATIONS = (None, "relu", "relu6", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh")


class Digest:
    """The hash of arrays: types, shapes and bits."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=8)

    def add(self, *arrays: np.ndarray | None) -> None:
        for x in arrays:
            if x is None:
                continue
            x = np.ascontiguousarray(x)
            self.hash.update(f"{x.dtype.name}{x.shape}".encode())
            if x.dtype.kind not in "iub" and x.dtype.name not in ("int4", "uint4"):
                x = np.where(np.isnan(mp.cast(x, "float32")), np.zeros((), x.dtype), x)
            self.hash.update(x.tobytes())


def numbers(rng: np.random.Generator, shape: tuple[int, ...], name: str, wild: bool = False) -> np.ndarray:
    """Return deviates of many exponents, or random bits if `wild`: the same with every C library.

    NumPy's normal deviates are not: their tails come from the library's ``log1pf``, whose last bit differs.
    """
    if name in ("int8", "uint8"):
        return rng.integers(0, 256, shape, np.uint8).view(name)
    if wild:
        return rng.integers(0, 2**32, shape, np.uint32).view(np.float32).astype(np.float32)
    return mp.cast(np.ldexp(rng.random(shape, np.float32) - np.float32(0.5), rng.integers(-6, 10, shape)), name)


def layouts(x: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the same matrix by rows, by columns, with gaps and backwards."""
    yield x
    yield np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    wide = np.zeros((*x.shape[:-1], x.shape[-1] + 9), x.dtype)
    wide[..., : x.shape[-1]] = x
    yield wide[..., : x.shape[-1]]
    yield np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :]


def products(rng: np.random.Generator, digest: Digest) -> None:
    wide = [(a, b) for a in FLOATS[:3] for b in (*FLOATS, "int8")]
    pairs = [*wide, *((name, name) for name in (*FLOATS[3:], "int8")), ("uint8", "int8")]
    for (a_name, b_name), (k, n) in itertools.product(pairs, SHAPES):
        b = numbers(rng, (k, n), b_name)
        for m in ROWS:
            a = numbers(rng, (m, k), a_name)
            for right in (*layouts(b), mp.pack(b)):
                digest.add(mp.matmul(a, right))
            for left in layouts(a):
                digest.add(mp.matmul(left, b))
    for name in (*FLOATS, "int8"):
        digest.add(mp.matmul(numbers(rng, (3, 1, 9, 70), name), numbers(rng, (2, 70, 33), name)))
        digest.add(mp.matmul(numbers(rng, (40,), name), numbers(rng, (40, 65), name)))
        digest.add(mp.matmul(numbers(rng, (65, 40), name), numbers(rng, (40,), name)))


def epilogues(rng: np.random.Generator, digest: Digest) -> None:
    for name, out, activation in itertools.product(FLOATS[:4], FLOATS[:4], ACTIVATIONS):
        for m, k, n in ((1, 70, 64), (7, 33, 70), (40, 1030, 16)):
            a, b, residual = (numbers(rng, s, name) for s in ((m, k), (k, n), (m, n)))
            bias = numbers(rng, (n,), "float32")
            how = {"out_dtype": out, "activation": activation, "bias": bias}
            digest.add(mp.matmul(a, b, **how), mp.matmul(a, mp.pack(b), residual=residual, **how))


def quantized_products(rng: np.random.Generator, digest: Digest) -> None:
    for m, (k, n) in itertools.product((1, 5, 40, 130), SHAPES):
        x, w, bias = (numbers(rng, s, "float32") for s in ((m, k), (k, n), (n,)))
        for dtype, symmetric in (("int8", True), ("int8", False), ("uint8", False), ("int4", True), ("uint4", False)):
            q = mp.quantize(w, axis=1, dtype=dtype, symmetric=symmetric)
            rows = mp.quantize(x, axis=0, symmetric=symmetric)
            digest.add(mp.matmul(rows, q, bias=bias), mp.matmul(rows, mp.pack(q)))
            for a in FLOATS[:3]:
                digest.add(mp.matmul(mp.cast(x, a), q), mp.matmul(mp.cast(x, a), mp.pack(q), activation="gelu"))
            if dtype == "int8" and symmetric:
                digest.add(mp.dynamic_matmul(x, mp.pack(q), bias=bias), mp.dynamic_matmul(x, mp.pack(q), scale=0.05))
        if k % 8 == 0 and k >= 64:
            group = mp.pack(mp.quantize(w, axis=1, dtype="int4", group_size=64))
            digest.add(*(mp.matmul(mp.cast(x, a), group) for a in FLOATS[:3]))


def casts(rng: np.random.Generator, digest: Digest) -> None:
    for size in (0, 1, 15, 16, 17, 1000, 1 << 16):
        x = numbers(rng, (size,), "float32", wild=True)
        for name, saturate in itertools.product(FLOATS, (False, True)):
            narrow = mp.cast(x, name, saturate=saturate)
            digest.add(narrow, mp.cast(x.astype(np.float64), name, saturate=saturate))
            for other in FLOATS:
                digest.add(mp.cast(narrow, other), mp.cast(narrow[::-2], other))


def quantizers(rng: np.random.Generator, digest: Digest) -> None:
    shapes = ((1, 1), (3, 17), (64, 64), (33, 700), (300, 300), (7, 5000))
    for wild, shape, dtype in itertools.product((False, True), shapes, ("int8", "uint8", "int4", "uint4", *FLOATS[3:])):
        x = numbers(rng, shape, "float32", wild)
        for axis, group, symmetric in itertools.product((None, 0, 1, (0, 1)), (None, 16, 64), (True, False)):
            if (group and axis not in (0, 1)) or (not symmetric and "float" in dtype):
                continue
            q = mp.quantize(x, axis=axis, dtype=dtype, group_size=group, symmetric=symmetric)
            digest.add(q.values, q.scale, q.zero_point, mp.dequantize(q), mp.dequantize(q, "bfloat16"))
            given = mp.quantize(mp.cast(x, "bfloat16"), axis=axis, dtype=dtype, group_size=group, scale=q.scale)
            digest.add(given.values)


def rows(rng: np.random.Generator, digest: Digest) -> None:
    for n, name in itertools.product((1, 15, 16, 17, 300, 5000, 9000), FLOATS[:3]):
        x, residual = numbers(rng, (5, n), name), numbers(rng, (5, n), name)
        gamma, beta = numbers(rng, (n,), "float32"), numbers(rng, (n,), "float32")
        digest.add(mp.softmax(x), mp.layer_norm(x, gamma, beta, residual=residual), mp.rms_norm(x, gamma))
        digest.add(mp.softmax(x, mask=rng.random((5, n)) < 0.7))
        digest.add(*(getattr(mp, each)(x) for each in ("relu", "relu6", "gelu", "silu", "sigmoid", "tanh")))


def attention(rng: np.random.Generator, digest: Digest) -> None:
    for shape, name in itertools.product(((1, 5, 3, 7), (2, 130, 2, 32), (1, 700, 1, 64)), FLOATS[:3]):
        q, k, v = (numbers(rng, shape, name) for _ in range(3))
        bias = numbers(rng, (shape[1], shape[1]), "float32")
        digest.add(mp.dot_product_attention(q, k, v), mp.dot_product_attention(q, k, v, bias, is_causal=True))


FAMILIES = (products, epilogues, quantized_products, casts, quantizers, rows, attention)


def lines(isas: tuple[str, ...], threads: tuple[int, ...]) -> Iterator[str]:
    for isa, count, family in itertools.product(isas, threads, FAMILIES):
        mp.config.set_isa(isa)
        digest = Digest()
        with mp.config.num_threads(count), np.errstate(all="ignore"):
            family(np.random.default_rng(20261124), digest)
        yield f"{family.__name__:20}{isa:16}{count}  {digest.hash.hexdigest()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isas", nargs="+", default=mp.config.available_isas())
    parser.add_argument("--threads", nargs="+", type=int, default=(1, 2))
    parser.add_argument("file", nargs="?", type=Path, help="lines of another build, to compare with")
    options = parser.parse_args()
    expected = options.file.read_text().splitlines() if options.file else None
    wrong = 0
    for line in lines(tuple(options.isas), tuple(options.threads)):
        differs = expected is not None and line not in expected
        wrong += differs
        print(line + "   differs" * differs, flush=True)
    if wrong:
        raise SystemExit(f"{wrong} lines differ")


if __name__ == "__main__":
    main()
