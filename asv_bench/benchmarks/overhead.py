"""The cost of a call and of an import before any work is done."""

import numpy as np

import mp_core as mp

from .common import normal


class Overhead:
    """Calls so small that the arithmetic takes a few nanoseconds."""

    def setup(self):
        self.x = normal(64)
        self.out = np.empty(64, mp.dtypes.parse("bfloat16"))
        self.row, self.array = normal(1, 64), normal(64, 64)
        self.packed = mp.pack(self.array)
        self.product = np.empty((1, 64), np.float32)

    def time_cast_64(self):
        mp.cast(self.x, "bfloat16", out=self.out)

    def time_cast_64_to_a_scalar_type(self):
        mp.cast(self.x, np.float16)

    def time_quantize_64_to_a_scalar_type(self):
        mp.quantize(self.x, dtype=np.int8)

    def time_matmul_1x64x64_packed(self):
        mp.matmul(self.row, self.packed)

    def time_matmul_1x64x64_packed_out(self):
        mp.matmul(self.row, self.packed, out=self.product)

    def time_matmul_1x64x64_packed_to_a_scalar_type(self):
        mp.matmul(self.row, self.packed, out_dtype=np.float32)

    def time_softmax_64(self):
        mp.softmax(self.x)

    def time_numpy_astype_64(self):
        """The yardstick."""
        self.x.astype(np.float16)

    def time_numpy_matmul_1x64x64(self):
        """The yardstick."""
        np.matmul(self.row, self.array)


class ImportTime:
    """Imports in fresh interpreters. Finding mp_core first excludes the build check of an editable install."""

    def timeraw_import_mp_core_after_numpy(self):
        return "import mp_core", "import numpy, importlib.util; importlib.util.find_spec('mp_core')"

    def timeraw_import_numpy(self):
        """The yardstick."""
        return "import numpy"
