"""Rows and elements: softmax, layer norm, activations; attention. One thread."""

import numpy as np

import mp_core as mp

from .common import ISAS, PerIsa, normal, seconds

OPERATIONS = {
    "softmax": mp.softmax,
    "layer_norm": mp.layer_norm,
    "gelu": mp.gelu,
    "gelu_tanh": lambda x, out: mp.gelu(x, approximate=True, out=out),
    "silu": mp.silu,
    "sigmoid": mp.sigmoid,
    "tanh": mp.tanh,
    "relu": mp.relu,
    "relu6": mp.relu6,
}


class Rows(PerIsa):
    params = (ISAS, tuple(OPERATIONS), ("float32", "float16", "bfloat16"))
    param_names = ("isa", "operation", "format")

    def prepare(self, isa, operation, dtype):
        self.call = OPERATIONS[operation]
        self.x = normal(256, 384, dtype=dtype)
        self.out = np.empty_like(self.x)

    def time_rows(self, isa, operation, dtype):
        self.call(self.x, out=self.out)

    def track_rate(self, isa, operation, dtype):
        return self.x.size / seconds(lambda: self.call(self.x, out=self.out)) / 1e9

    track_rate.unit = "Gelement/s"


FUNCTIONS = (
    "exp", "expm1", "exp2", "log", "log1p", "log2", "log10", "sinh", "cosh", "erf", "erfc", "sin", "cos", "tan",
    "arctan", "rsqrt", "selu", "softsign", "log_sigmoid",
)  # fmt: skip


class Functions(PerIsa):
    params = (ISAS, FUNCTIONS, ("float32", "bfloat16"))
    param_names = ("isa", "function", "format")

    def prepare(self, isa, function, dtype):
        self.call = getattr(mp.ops, function)
        self.x = np.abs(normal(256, 384, dtype=dtype))

    def time_function(self, isa, function, dtype):
        self.call(self.x)

    def track_rate(self, isa, function, dtype):
        return self.x.size / seconds(lambda: self.call(self.x)) / 1e9

    track_rate.unit = "Gelement/s"


class Attention(PerIsa):
    params = (ISAS, ("1x32x12x32", "8x128x12x32", "1x2048x2x64"), ("float32", "float16", "bfloat16"))
    param_names = ("isa", "n x length x heads x size", "format")

    def prepare(self, isa, shape, dtype):
        axes = [int(length) for length in shape.split("x")]
        self.parts = [normal(*axes, dtype=dtype) for _ in range(3)]
        self.multiplications = 2 * self.parts[0].size * axes[1]

    def time_attention(self, isa, shape, dtype):
        mp.dot_product_attention(*self.parts)

    def track_rate(self, isa, shape, dtype):
        return 2 * self.multiplications / seconds(lambda: mp.dot_product_attention(*self.parts)) / 1e9

    track_rate.unit = "GFLOP/s"
