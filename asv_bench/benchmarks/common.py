"""Shared code of the benchmarks: literal tables, one instruction set and one thread at a time, a stopwatch."""

import time

import numpy as np

import mp_core as mp

# asv's parameters must not depend on the machine. tests/test_docs.py compares these with the package's own tables.
ISAS = (
    "neon_bf16",
    "neon_dotprod",
    "neon",
    "avx512_amx",
    "avx512_bf16",
    "avx512_vnni",
    "avx512",
    "avx2_vnni",
    "avx2",
    "scalar",
)
FORMATS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


class PerIsa:
    """The first parameter is the instruction set; one thread, so that the figures are those of a core."""

    params = (ISAS,)
    param_names = ("isa",)

    def setup(self, isa, *args):
        if isa not in mp.config.available_isas():
            raise NotImplementedError(f"this machine lacks {isa}")
        self.before = mp.config.isa(), mp.config.get_num_threads()
        mp.config.set_isa(isa)
        mp.config.set_num_threads(1)
        self.prepare(isa, *args)

    def prepare(self, isa, *args):
        """Make the data; raise NotImplementedError for a combination that is not measured."""

    def teardown(self, isa, *args):
        if hasattr(self, "before"):
            mp.config.set_isa(self.before[0])
            mp.config.set_num_threads(self.before[1])


def normal(*shape, dtype="float32", seed=20261121):
    """Return normal deviates."""
    return mp.cast(np.random.default_rng(seed).standard_normal(shape, np.float32), dtype)


def seconds(call, budget=0.05):
    """Return the time of the fastest call among those that fit in `budget` seconds; the first call is a warm-up."""
    call()
    best, end = float("inf"), time.perf_counter() + budget
    while (start := time.perf_counter()) < end:
        call()
        best = min(best, time.perf_counter() - start)
    return best if best < float("inf") else seconds(call, 2 * budget)
