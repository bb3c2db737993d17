"""The history: a short set of times, shares, errors and sizes, on the best instruction set and one thread.

These benchmarks also run on commits that are older than the benchmarks. Functions that such a commit lacks are skipped.
"""

import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from timeit import Timer

import numpy as np

import mp_core as mp

sys.path.append(str(Path(__file__).parents[1] / "lab"))
import tracked

TEXTS = 16
MISSING = (AttributeError, ImportError, LookupError, TypeError, ValueError)


@contextmanager
def skipped_if_missing():
    try:
        yield
    except MISSING as error:
        raise NotImplementedError(f"not in this commit: {error}") from error


class Tracked:
    """Subclasses use functions that a commit may lack in `prepare`: asv skips a benchmark only if `setup` raises."""

    timeout = 120
    version = "1"  # asv shows results of one version only; by default that is a hash of the code

    def setup(self, *args):
        with skipped_if_missing():
            mp.config.set_num_threads(1)
            self.prepare(*args)

    def prepare(self, *args):
        """Compute the figure, or create the objects to measure."""


class Times(Tracked):
    params = tracked.CELLS
    param_names = ("cell",)

    def prepare(self, cell):
        import cells

        self.call = cells.call(cell)
        self.call()

    def track_microseconds(self, cell):
        return tracked.fastest(self.call) * 1e6

    track_microseconds.unit = "us"


class Shares(Tracked):
    params = tuple(tracked.LIMITED)
    param_names = ("cell",)

    def prepare(self, cell):
        import cells

        self.figure = 100 * tracked.share(cells.call(cell), cell)

    def track_share_of_limit(self, cell):
        return self.figure

    track_share_of_limit.unit = "% of the limit"


class WorstUlp(Tracked):
    params = ("exp", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "softplus", "expm1", "log2", "erf", "sin", "tan")
    param_names = ("function",)

    def prepare(self, function):
        from .accuracy import max_ulp

        self.figure = max_ulp(function, 65521)[0]

    def track_worst_ulp(self, function):
        return self.figure

    track_worst_ulp.unit = "ULP"


class ErrorOverBound(Tracked):
    params = ("float32", "float16", "bfloat16")
    param_names = ("type",)

    def prepare(self, dtype):
        from .accuracy import error_over_bound

        self.figure = error_over_bound(dtype, 1024)

    def track_error_over_bound(self, dtype):
        return self.figure

    track_error_over_bound.unit = "of the bound"


class Model(Tracked):
    """all-MiniLM-L6-v2 on the first texts of docs/demo.md."""

    params = ("float32", "mixed_bfloat16", "int8_from_mixed_bfloat16")
    param_names = ("policy",)

    def prepare(self, policy):
        from mp_core.cli import demo

        self.folder, self.texts = demo.model_folder(), demo.documents_and_ratings()[0][:TEXTS]
        self.encoder = mp.models.BertEncoder.from_folder(self.folder, policy)
        self.received = self.encoder.encode(self.texts)

    def track_milliseconds(self, policy):
        timer = Timer(lambda: self.encoder.encode(self.texts), timer=time.process_time)
        return min(timer.repeat(3, 1)) / TEXTS * 1e3

    track_milliseconds.unit = "ms a text"

    def track_lowest_cosine(self, policy):
        wide = mp.models.BertEncoder.from_folder(self.folder, "float32").encode(self.texts).astype(np.float64)
        received = self.received.astype(np.float64)
        lengths = np.linalg.norm(wide, axis=1) * np.linalg.norm(received, axis=1)
        return float(((wide * received).sum(axis=1) / lengths).min())

    track_lowest_cosine.unit = "cosine with float32"

    def peakmem_encode(self, policy):
        """Measure the peak, with loading the model."""


class Product(Tracked):
    """The peak memory of a product whose operands take 40 MiB."""

    params = ("bfloat16",)
    param_names = ("type",)

    def prepare(self, dtype):
        row = mp.cast(np.ones((1, 4096), np.float32), dtype)
        self.a, self.b = np.tile(row, (1024, 1)), np.tile(row, (4096, 1))

    def peakmem_matmul(self, dtype):
        mp.matmul(self.a, self.b)


class Package(Tracked):
    def prepare(self):
        self.figure = tracked.wheel_bytes() / 1e6

    def track_wheel(self):
        return self.figure

    track_wheel.unit = "MB"


class Imports(Tracked):
    params = ("mp_core", "mp_core.layers", "mp_core.models")
    param_names = ("module",)

    def prepare(self, module):
        self.figure = tracked.import_seconds(module) * 1e3

    def track_import(self, module):
        return self.figure

    track_import.unit = "ms"


class Lines(Tracked):
    params = tuple(tracked.LANGUAGES)
    param_names = ("language",)

    def prepare(self, language):
        self.figure = tracked.lines(os.environ["ASV_COMMIT"], language)  # where asv has built a commit

    def track_lines(self, language):
        return self.figure

    track_lines.unit = "lines"
