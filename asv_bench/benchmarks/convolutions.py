"""Convolutions of published networks, one thread; int8 counts an integer operation as a floating-point one."""

import math

import mp_core as mp
from mp_core import ops

from .common import ISAS, PerIsa, normal, seconds

SHAPES = {  # lengths, channels, size, filters (0: depthwise), stride
    "7x7/2 of 224x3": ((224, 224), 3, (7, 7), 64, 2),
    "3x3 of 56x64": ((56, 56), 64, (3, 3), 64, 1),
    "3x3 of 14x256": ((14, 14), 256, (3, 3), 256, 1),
    "1x1/2 of 56x256": ((56, 56), 256, (1, 1), 512, 2),
    "3/2 of 3199x512": ((3199,), 512, (3,), 512, 2),
    "depthwise 3x3 of 14x512": ((14, 14), 512, (3, 3), 0, 1),
    "depthwise 3x3/2 of 112x64": ((112, 112), 64, (3, 3), 0, 2),
    "depthwise 7x7 of 56x96": ((56, 56), 96, (7, 7), 0, 1),
}


class Convolution(PerIsa):
    params = (ISAS, ("float32", "float16", "bfloat16", "int8"), tuple(SHAPES))
    param_names = ("isa", "type", "shape")

    def prepare(self, isa, dtype, shape):
        lengths, channels, size, filters, self.stride = SHAPES[shape]
        if dtype == "int8" and not filters:
            raise NotImplementedError("depthwise kernels have no codes")
        x, kernel = normal(1, *lengths, channels, seed=1), normal(*size, channels, filters or 1, seed=2)
        self.options = {"padding": "same"}
        if not filters:
            self.function, self.operands = ops.depthwise_conv, (mp.cast(x, dtype), mp.cast(kernel, dtype))
        else:
            matrix, self.options["kernel_size"] = kernel.reshape(-1, filters), size
            is_codes = dtype == "int8"
            packed = mp.pack(mp.quantize(matrix, axis=1)) if is_codes else mp.pack(matrix, dtype=dtype)
            self.function, self.operands = ops.conv, (mp.quantize(x) if is_codes else mp.cast(x, dtype), packed)
        self.operations = 2 * self.convolve().size * math.prod(size) * (channels if filters else 1)
        if isa == "scalar" and self.operations > 1 << 25:
            raise NotImplementedError("seconds a call")

    def convolve(self):
        return self.function(*self.operands, self.stride, **self.options)

    def time_convolve(self, isa, dtype, shape):
        self.convolve()

    def track_rate(self, isa, dtype, shape):
        return self.operations / seconds(self.convolve) / 1e9

    track_rate.unit = "GFLOP/s"
