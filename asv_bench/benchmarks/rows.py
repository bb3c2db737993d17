"""Rows and elements: softmax, layer norm, activations, one thread."""

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
