"""Quantization to 8-bit integers and back, one thread."""

import mp_core as mp

from .common import ISAS, PerIsa, normal, seconds

AXES = {"tensor": None, "row": 0, "column": 1}


class Quantize(PerIsa):
    params = (ISAS, tuple(AXES), ("float32", "bfloat16"))
    param_names = ("isa", "scale per", "format")

    def prepare(self, isa, granularity, dtype):
        self.axis = AXES[granularity]
        self.x = normal(1024, 768, dtype=dtype)
        self.q = mp.quantize(self.x, axis=self.axis)

    def time_quantize(self, isa, granularity, dtype):
        mp.quantize(self.x, axis=self.axis)

    def time_dequantize(self, isa, granularity, dtype):
        mp.dequantize(self.q, dtype)

    def track_rate(self, isa, granularity, dtype):
        return (self.x.nbytes + self.q.nbytes) / seconds(lambda: mp.quantize(self.x, axis=self.axis)) / 1e9

    track_rate.unit = "GB/s"


class QuantizedProduct(PerIsa):
    """Float rows in, float out: quantize the rows, multiply integers, rescale."""

    params = (ISAS, (1, 8, 128))
    param_names = ("isa", "rows")

    def prepare(self, isa, rows):
        if isa == "scalar" and rows > 8:
            raise NotImplementedError("seconds a call")
        self.x = normal(rows, 768, seed=1)
        self.weights = mp.pack(mp.quantize(normal(768, 768, seed=2), axis=1))

    def time_dynamic(self, isa, rows):
        mp.dynamic_matmul(self.x, self.weights)

    def time_quantized(self, isa, rows):
        mp.matmul(mp.quantize(self.x, axis=0), self.weights)
