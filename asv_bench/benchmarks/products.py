"""Matrix products m x k by k x n, one thread; int8 counts an integer operation as a floating-point one."""

import math

import numpy as np

import mp_core as mp

from .common import ISAS, PerIsa, normal, seconds

TYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "int8")
SHAPES = (  # [batch x] m x k x n: tiny, one row, a few, many; then 12 heads of attention
    *("1x64x64", "4x16x16", "16x64x64", "1x1024x1024", "1x4096x4096", "8x1024x1024", "128x768x3072", "512x512x512"),
    *("12x128x32x128", "12x128x128x32"),
)


def operand(*shape, dtype, seed):
    if dtype == "int8":
        return np.random.default_rng(seed).integers(-128, 128, shape, dtype=np.int8)
    return normal(*shape, dtype=dtype, seed=seed)


class Product(PerIsa):
    params = (ISAS, TYPES, SHAPES, ("packed", "array", "transposed"))
    param_names = ("isa", "type", "shape", "b")

    def prepare(self, isa, dtype, shape, layout):
        *batch, m, k, n = map(int, shape.split("x"))
        self.operations = 2 * math.prod((*batch, m, k, n))
        if isa == "scalar" and self.operations > 1 << 25:
            raise NotImplementedError("seconds a call")
        self.a = operand(*batch, m, k, dtype=dtype, seed=1)
        if layout == "transposed":
            self.b = operand(*batch, n, k, dtype=dtype, seed=2).swapaxes(-1, -2)
        else:
            self.b = operand(*batch, k, n, dtype=dtype, seed=2)
        self.out = mp.matmul(self.a, self.b)
        if layout == "packed":
            self.b = mp.pack(self.b)

    def multiply(self):
        mp.matmul(self.a, self.b, out=self.out, out_dtype=self.out.dtype)

    def time_matmul(self, isa, dtype, shape, layout):
        self.multiply()

    def track_rate(self, isa, dtype, shape, layout):
        return self.operations / seconds(self.multiply) / 1e9

    track_rate.unit = "GFLOP/s"


class Epilogue(PerIsa):
    """The cost of bias and activation in a product."""

    params = (ISAS, ("none", "bias", "relu", "gelu", "silu"))
    param_names = ("isa", "epilogue")

    def prepare(self, isa, epilogue):
        self.a, self.b = normal(64, 384, dtype="bfloat16", seed=1), mp.pack(normal(384, 384, dtype="bfloat16", seed=2))
        self.bias = None if epilogue == "none" else normal(384, seed=3)
        self.activation = epilogue if epilogue in ("relu", "gelu", "silu") else None

    def time_matmul(self, isa, epilogue):
        mp.matmul(self.a, self.b, bias=self.bias, activation=self.activation)


class Pack(PerIsa):
    params = (ISAS, TYPES, ("rows", "columns"))
    param_names = ("isa", "type", "contiguous")

    def prepare(self, isa, dtype, contiguous):
        b = operand(768, 768, dtype=dtype, seed=2)
        self.b = b if contiguous == "rows" else b.T

    def time_pack(self, isa, dtype, contiguous):
        mp.pack(self.b)


class PeakMemory:
    """A product needs its operands, its result and some scratch, but no widened copy of an operand."""

    params = ("bfloat16", "int8")
    param_names = ("type",)

    def setup(self, dtype):
        mp.config.set_num_threads(1)
        # Repeat a few rows: creating the data must not take more memory than the product.
        self.a, self.b = (
            np.tile(operand(16, 4096, dtype=dtype, seed=seed), (rows // 16, 1)) for seed, rows in ((1, 1024), (2, 4096))
        )

    def peakmem_matmul(self, dtype):
        mp.matmul(self.a, self.b)

    def peakmem_reference(self, dtype):
        """Measure the interpreter, the imports and the operands, because asv measures the whole process."""


class Einsum(PerIsa):
    """Equations of attention and of a projection out of heads, batch 2, 128 tokens, 12 heads of 32."""

    params = (ISAS, ("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bqhd,hde->bqe"), ("float32", "bfloat16"))
    param_names = ("isa", "equation", "type")

    def prepare(self, isa, equation, dtype):
        lengths = {"b": 2, "q": 128, "k": 128, "h": 12, "d": 32, "e": 384}
        terms = equation.split("->")[0].split(",")
        self.operands = [
            normal(*(lengths[label] for label in term), dtype=dtype, seed=i) for i, term in enumerate(terms)
        ]

    def time_einsum(self, isa, equation, dtype):
        mp.einsum(equation, *self.operands)
