"""Check one case: compare a call with float64, with the portable instruction set and with a plan."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from oracles import assert_same_bits

import mp_core as mp
from fuzz.arrays import contiguous
from mp_core.core import cpu
from mp_core.plans import UnseenError

__all__ = ["UNIT", "WIDE", "Case", "check", "near", "on_isa", "wide"]

WIDE = ("float32", "float16", "bfloat16")
UNIT = 2.0**-24  # half a unit in the last place of float32, relative


class Case(NamedTuple):
    """A call ``function(*arrays, **options)``, what it gives in float64, and how far from that it may be.

    Rounding to the type of the result comes on top. Without `exact`, only bits are compared. `out`: the operation takes
    the array of the result. `plans`: it can be recorded.
    """

    function: Callable[..., np.ndarray]
    arrays: tuple[np.ndarray, ...]
    options: dict[str, Any]
    exact: np.ndarray | None
    error: Any = 0.0
    out: bool = False
    plans: bool = True


def wide(x):
    return x.astype(np.float64)


def near(found, exact, error):
    """Hold a result to float64: as many units of its type as one rounding takes, and the error that the case allows."""
    assert found.shape == exact.shape, (found.shape, exact.shape)
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, exact)
        return
    limits, received = ml_dtypes.finfo(found.dtype), wide(found)
    with np.errstate(all="ignore"):
        allowed = error + np.abs(exact) * float(limits.eps) * 0.5000001 + float(limits.smallest_subnormal) / 2
        largest = float(limits.max) * (1 + float(limits.eps) / 4)
        is_huge = np.abs(exact) + allowed >= largest  # may become infinite, or NaN where a type has no infinity
        is_nan = np.isnan(exact)
        fine = np.where(is_nan, np.isnan(received), np.abs(received - exact) <= allowed) | is_huge
        fine |= np.isinf(exact) & (received == exact)
    wrong = np.argwhere(~fine)
    if len(wrong):
        place = tuple(wrong[0])
        bound = np.broadcast_to(allowed, exact.shape)[place]
        raise AssertionError(
            f"{len(wrong)} elements; the first at {place}: {received[place]} is not {exact[place]} +- {bound}"
        )


def by_plan(case, arrays):
    """Return what a plan of the call gives, or None if it cannot be recorded."""
    try:
        plan = mp.compile(lambda *given: case.function(*given, **case.options), *map(contiguous, case.arrays))
    except UnseenError:
        return None
    return plan(*arrays)


def check(case, memory, rng):
    """Compute a case on one instruction set, by some threads, in some layout; raise where it is wrong."""
    arrays = [memory.laid(rng, x) for x in case.arrays]
    isa, threads = str(rng.choice(cpu.available_isas())), int(rng.integers(1, 4))
    with on_isa(isa), mp.config.num_threads(threads):
        found = case.function(*arrays, **case.options)
        planned = by_plan(case, arrays) if case.plans and rng.random() < 0.2 else None
        if case.out:
            given = memory.laid(rng, np.zeros_like(found))
            assert case.function(*arrays, **case.options, out=given) is given
            assert_same_bits(given, found)
    for given, original in zip(arrays, case.arrays, strict=True):
        assert_same_bits(given, original)
    with on_isa("scalar"), mp.config.num_threads(1):
        assert_same_bits(found, case.function(*map(contiguous, case.arrays), **case.options))
    if planned is not None:
        assert_same_bits(planned, found)
    if case.exact is not None:
        near(found, np.asarray(case.exact), case.error)


@contextlib.contextmanager
def on_isa(name):
    before = cpu.isa()
    cpu.set_isa(name)
    try:
        yield
    finally:
        cpu.set_isa(before)
