"""Casts between float32 and the narrow formats, into an existing array."""

import numpy as np

import mp_core as mp

from .common import FORMATS, ISAS, PerIsa, normal, seconds

NARROW = FORMATS[1:]


class Cast(PerIsa):
    params = (ISAS, NARROW, ("narrow", "widen"), (1 << 12, 1 << 20))
    param_names = ("isa", "format", "direction", "elements")

    def prepare(self, isa, dtype, direction, elements):
        source, self.target = ("float32", dtype) if direction == "narrow" else (dtype, "float32")
        self.x = normal(elements, dtype=source)
        self.out = np.empty(elements, mp.dtypes.parse(self.target))

    def time_cast(self, isa, dtype, direction, elements):
        mp.cast(self.x, self.target, out=self.out)

    def track_rate(self, isa, dtype, direction, elements):
        rate = 1 / seconds(lambda: mp.cast(self.x, self.target, out=self.out))
        return rate * (self.x.nbytes + self.out.nbytes) / 1e9

    track_rate.unit = "GB/s"


class CastFloat64(PerIsa):
    """float64 is rounded once, through rounding to odd."""

    params = (ISAS, NARROW)
    param_names = ("isa", "format")

    def prepare(self, isa, dtype):
        self.x = normal(1 << 16, dtype="float64")
        self.out = np.empty(self.x.shape, mp.dtypes.parse(dtype))

    def time_cast(self, isa, dtype):
        mp.cast(self.x, dtype, out=self.out)
