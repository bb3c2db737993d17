"""Every float32 to every narrow format, on every instruction set, against NumPy and ml_dtypes: minutes."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import processes
import pytest
from oracles import NARROW, assert_same_bits, bits, exactly

import mp_core as mp
from mp_core.core import cpu

pytestmark = pytest.mark.exhaustive

CHUNK = 1 << 24
NAN = 0x7F800000


def plain_float16(chunk):
    """What a chunk of float32 below 2^-25 or from 2^16 on becomes: zeros, infinities. NumPy takes minutes for these."""
    magnitude = chunk % 128
    if magnitude < 0x33 or 0x48 <= magnitude < 0x7F:
        value = np.float16(0 if magnitude < 0x33 else np.inf)
        return np.full(CHUNK, -value if chunk >= 128 else value)
    return None


def wrong_chunks(dtype, first, last):
    """Return (instruction set, chunk) where a chunk of 2^24 codes, first <= chunk < last, differs from the oracle."""
    wrong = []
    out = np.empty(CHUNK, dtype)
    for chunk in range(first, last):
        x = np.arange(chunk * CHUNK, (chunk + 1) * CHUNK, dtype=np.uint64).astype(np.uint32).view(np.float32)
        expected = plain_float16(chunk) if dtype == "float16" else None
        expected = exactly(x, dtype) if expected is None else expected
        holds_nan = (int(x.view(np.uint32)[-1]) & 0x7FFFFFFF) > NAN
        for name in cpu.available_isas():
            cpu.set_isa(name)
            with mp.config.num_threads(1):
                mp.cast(x, dtype, out=out)
            if not holds_nan:
                same = np.array_equal(bits(out), bits(expected))
            else:
                nan = np.isnan(x)
                same = np.array_equal(bits(out)[~nan], bits(expected)[~nan])
                same &= bool(np.isnan(exactly(out[nan], np.float32)).all())
                same &= np.array_equal(np.signbit(exactly(out[nan], np.float32)), np.signbit(x[nan]))
            if not same:
                wrong.append((name, chunk))
    return wrong


@pytest.mark.parametrize("dtype", NARROW)
def test_all_float32(dtype):
    workers = len(os.sched_getaffinity(0))
    starts = range(0, 256, 16)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(wrong_chunks, dtype, start, start + 16) for start in starts]
        assert not [wrong for job in jobs for wrong in job.result(processes.LONG)]


def test_more_than_2_31_elements():
    x = np.zeros(2**31 + 1000, np.uint8).view("float8_e5m2")
    x[-500:] = np.arange(500).astype("float8_e5m2")
    x[2**31 - 8 : 2**31 + 8] = 1.5
    y = mp.cast(x, "bfloat16")
    for part in (slice(0, 64), slice(2**31 - 64, 2**31 + 64), slice(-600, None)):
        assert_same_bits(y[part], x[part].astype("bfloat16"))
