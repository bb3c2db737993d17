"""The limits of this machine: the rates of multiply-adds, reads and copies."""

from collections.abc import Callable
from dataclasses import dataclass
from timeit import Timer
from typing import Any

from mp_core.arrays import Array
from mp_core.arrays.products.panels import aligned_empty
from mp_core.cli.benchmark import loops as _loops
from mp_core.cli.benchmark.timing import effort, measure
from mp_core.core.cpu import cache_bytes
from mp_core.policies import config

__all__ = ["Limit", "limits", "unit_of"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A loop that runs at a limit of the machine: a call of `timer` does `work` operations, or moves `work` bytes.

    It uses the configured number of threads, which must be the same when the limit is created and timed.

    >>> limit = Limit.multiply("int8")
    >>> limit.unit, limit.work > 1e6
    ('GOP/s', True)
    """

    name: str
    unit: str
    work: float
    timer: Timer

    @classmethod
    def multiply(cls, dtype: str, setup: str | Callable[[], Any] = "pass") -> "Limit":
        """Multiply and add in registers, with the instructions of a product of this dtype."""
        rounds = int(4e7 / _loops.multiply(dtype, 1))  # a call takes about 100 us
        timer = Timer(lambda: _loops.multiply(dtype, rounds), setup)
        return cls(f"{dtype} multiply-add", unit_of(dtype), _loops.multiply(dtype, rounds), timer)

    @classmethod
    def read(cls, nbytes: int, name: str = "", setup: str | Callable[[], Any] = "pass") -> "Limit":
        """Read `nbytes` bytes (a multiple of 256) repeatedly, so from the smallest cache into which they fit."""
        x = _filled(nbytes)
        rounds = max(1, (1 << 24) // nbytes)
        read = Timer(lambda: _loops.read(x, rounds), setup)
        return cls(name or f"read of {nbytes} bytes", "GB/s", nbytes * rounds, read)

    @classmethod
    def copy(cls, nbytes: int, name: str = "") -> "Limit":
        """Copy on one thread; `nbytes` counts the bytes that are read and those that are written."""
        x, out = (_filled(nbytes // 2) for _ in range(2))
        code = "out[all] = x"  # memcpy, because both are memoryviews
        names = {"x": memoryview(x), "out": memoryview(out), "all": slice(None)}
        return cls(name or f"copy of {nbytes} bytes", "GB/s", nbytes, Timer(code, globals=names))


def unit_of(dtype: str) -> str:
    """Return the unit of the rate of products of a dtype.

    >>> unit_of("int8"), unit_of("bfloat16")
    ('GOP/s', 'GFLOP/s')
    """
    return "GOP/s" if dtype == "int8" else "GFLOP/s"


def _filled(nbytes: int) -> Array:
    """Return memory that has been written: the system maps memory that was never written to a single page of zeros."""
    x: Array = aligned_empty(nbytes)
    x.fill(1)
    return x


def limits(*, quick: bool = False) -> list[dict[str, Any]]:
    """Measure the limits of this machine: multiply-adds, reads and copies, on one thread and on all.

    Return a dict for each limit: ``limit``, ``unit`` and ``rates``, by number of threads (a string). Copies are
    measured on one thread only.

    Parameters
    ----------
    quick : bool
        Whether to take only three samples of each.

    Examples
    --------
    >>> rows = limits(quick=True)  # doctest: +SKIP
    >>> rows[0]["limit"], rows[0]["unit"], rows[0]["rates"]["1"] > 10  # doctest: +SKIP
    ('float32 multiply-add', 'GFLOP/s', True)
    """
    rows: dict[str, dict[str, Any]] = {}
    for threads in dict.fromkeys((1, config.get_num_threads())):
        with config.num_threads(threads):
            present = _present_limits()
            taken = measure({limit.name: limit.timer for limit in present}, **effort(quick))
        for limit in present:
            row = rows.setdefault(limit.name, {"limit": limit.name, "unit": limit.unit, "rates": {}})
            row["rates"][str(threads)] = limit.work / min(taken[limit.name]) / 1e9
    return list(rows.values())


def _present_limits() -> list[Limit]:
    """Return the limits for the configured number of threads. Cache reads use half of the cache, which surely fits."""
    _, second, third = cache_bytes()
    memory = max(1 << 28, 4 * third)
    found = [Limit.multiply(dtype) for dtype in ("float32", "float16", "bfloat16", "int8")]
    found += [
        Limit.read(second // 512 * 256, "read, second-level cache"),
        Limit.read(third // 512 * 256, "read, third-level cache"),
        Limit.read(memory, "read, memory"),
    ]
    return found + [Limit.copy(memory, "copy, memory, read + written")] * (config.get_num_threads() == 1)
