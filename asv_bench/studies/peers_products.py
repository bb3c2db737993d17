"""Products of m x k by k x n, b packed or an array. All contenders multiply the same operands, one or many pairs."""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import cycle
from timeit import Timer

import numkong
import numpy as np
import torch
from interleaved import Cell, aligned, as_numkong, as_torch, dtype, show_rates, show_ratio
from shapes import ARRAYS, PACKED, PRODUCT_DTYPES, PRODUCT_SHAPES
from threadpoolctl import ThreadpoolController

import mp_core as mp
from mp_core.benchmark import Limit, onnxruntime_product, unit_of

TORCH = ("torch kn", "torch nk")
PEERS, ARRAY_PEERS = (*TORCH, "NumPy", "NumKong", "ORT"), (*TORCH, "NumPy")
ONE_THREAD = "packed, 1 thread"

# Allowed relative error of a result: half a unit in the last place.
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SAMPLE, AWAKE = 200e-6, 4e-3  # seconds of a sample; longer for several threads, which first wake up
REST = 25e-3  # seconds until idle threads of the previous contender sleep: OpenBLAS spins for 2^26 ticks

HEADING = (
    "GFLOP/s, int8 GOP/s (* wrong). kn, nk: b is an array (k, n), or one (n, k) transposed. Ratios: packed to the\n"
    "best peer, the better of kn and nk to the best peer without packing, two threads to one. Limit: packed, of the\n"
    "slower of multiply-adds alone and a read of b.\n"
    f"{'':34}{''.join(f'{name:>8} ' for name in (PACKED, *ARRAYS, *PEERS))}"
    f" {'packed to':20}{'array to':20}{'limit':>6}{'threads':>8}"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shapes", nargs="+", default=PRODUCT_SHAPES, metavar="[BATCHx]MxKxN")
    parser.add_argument("--dtypes", nargs="+", choices=PRODUCT_DTYPES, default=PRODUCT_DTYPES)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument(
        "--copies", type=int, default=1, metavar="N", help="pairs of operands, used in turn like the layers of a model"
    )


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    for threads in options.threads:
        for name in options.dtypes:
            for shape in options.shapes:
                yield cell(shape, name, threads, options.copies)


def cell(shape: str, name: str, threads: int, copies: int) -> Cell:
    take_turn("limits", threads)  # a limit depends on the number of threads
    *batch, m, k, n = map(int, shape.split("x"))
    work, nbytes = 2.0 * m * k * n * (batch or [1])[0], dtype(name).itemsize * k * n * (batch or [1])[0]
    turns, missing = [], set()
    for copy in range(copies):
        a, b = numbers(name, *batch, m, k, seed=2 * copy + 1), numbers(name, *batch, k, n, seed=2 * copy + 2)
        turns.append(contenders(a, b, threads))
        missing |= wrong(turns[-1], a, b)
    calls = {who: in_turn([turn[who] for turn in turns]) for who in turns[0]}
    timers = {who: Timer("call()", partial(take_turn, who, threads), globals={"call": calls[who]}) for who in calls}
    ratios = {
        "packed": ((PACKED,), tuple(who for who in PEERS if who in calls)),
        "array": (ARRAYS, tuple(who for who in ARRAY_PEERS if who in calls)),
    }
    if threads > 1:
        timers[ONE_THREAD] = Timer("call()", partial(take_turn, ONE_THREAD, 1), globals={"call": calls[PACKED]})
        ratios["threads"] = ((PACKED,), (ONE_THREAD,))
    multiply, read = multiply_limit(name, threads), read_limit(-(-nbytes * copies // 256) * 256, threads)
    limits = {"multiply": (multiply.timer, work / multiply.work), "read": (read.timer, nbytes / read.work)}
    key = {"shape": shape, "dtype": name, "threads": threads, "copies": copies}
    return Cell(key, work, timers, ratios, limits, missing, SAMPLE if threads == 1 else AWAKE)


def in_turn(calls: list[Callable[[], object]]) -> Callable[[], object]:
    if len(calls) == 1:
        return calls[0]
    turns = cycle(calls)
    return lambda: next(turns)()


def contenders(a: np.ndarray, b: np.ndarray, threads: int) -> dict[str, Callable[[], object]]:
    """Return the contenders for these operands; each writes to the same memory in every call, if it can."""
    name, float8 = a.dtype.name, "float8" in a.dtype.name
    packed, turned = mp.pack(b), aligned(b.size, b.dtype).reshape(*b.shape[:-2], *b.shape[:-3:-1])
    turned[:] = b.swapaxes(-1, -2)  # the same numbers, stored like weights: (n, k)
    out = np.empty((*a.shape[:-1], b.shape[-1]), {"int8": "int32", "float8_e4m3fn": "float32"}.get(name, a.dtype))
    ours = partial(mp.matmul, a, out=out, out_dtype=out.dtype) if float8 else partial(mp.matmul, a, out=out)
    found = {
        PACKED: partial(ours, packed),
        ARRAYS[0]: partial(ours, b),
        ARRAYS[1]: partial(ours, turned.swapaxes(-1, -2)),
    }
    found |= torch_products(as_torch(a), as_torch(b), as_torch(turned).mT)
    if name == "float32":
        found["NumPy"] = partial(np.matmul, a, b, out=out)
        found["ORT"] = onnxruntime_product(a, b, threads)
    if a.ndim == 2:
        rows, columns = as_numkong(a), numkong.dots_pack(as_numkong(turned))
        found["NumKong"] = partial(numkong.dots_packed, rows, columns, out=numkong.dots_packed(rows, columns))
    return found


def torch_products(a: torch.Tensor, b: torch.Tensor, turned: torch.Tensor) -> dict[str, Callable[[], object]]:
    matrices = a.ndim == 2
    if a.dtype == torch.float8_e4m3fn:
        scaled = partial(torch._scaled_mm, a, turned, torch.tensor(1.0), torch.tensor(1.0), out_dtype=torch.bfloat16)
        return {TORCH[1]: scaled} if matrices else {}
    if a.dtype == torch.int8:
        out = torch.empty(*a.shape[:-1], b.shape[-1], dtype=torch.int32)
        both = {TORCH[0]: partial(torch._int_mm, a, b, out=out), TORCH[1]: partial(torch._int_mm, a, turned, out=out)}
        return both if matrices else {}
    out = torch.empty(*a.shape[:-1], b.shape[-1], dtype=a.dtype)
    weights = (
        partial(torch.nn.functional.linear, a, turned.mT) if matrices else partial(torch.matmul, a, turned, out=out)
    )
    if a.dtype == torch.float16 and a.numel() * b.shape[-1] > 1 << 30:
        return {TORCH[1]: weights}  # the other function takes minutes per call, at 0.4 GFLOP/s
    return {TORCH[0]: partial(torch.matmul, a, b, out=out), TORCH[1]: weights}


_turn = [("", 0)]


def take_turn(who: str, threads: int) -> None:
    """Let the threads of the previous contender fall asleep, and set the number of threads."""
    if _turn[0] != (who, threads):
        if max(threads, _turn[0][1]) > 1:
            time.sleep(REST)
        _turn[0] = who, threads
        mp.config.set_num_threads(threads)
        torch.set_num_threads(threads)
        blas().limit(limits=threads)


@cache
def blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


@cache
def multiply_limit(name: str, threads: int) -> Limit:
    return Limit.multiply(name, partial(take_turn, "multiply", threads))


@cache
def read_limit(nbytes: int, threads: int) -> Limit:
    return Limit.read(nbytes, setup=partial(take_turn, "read", threads))


def numbers(name: str, *shape: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = aligned(int(np.prod(shape)), dtype(name)).reshape(shape)
    x[:] = rng.integers(-128, 128, shape, np.int8) if name == "int8" else rng.standard_normal(shape, np.float32)
    return x


def wrong(calls: dict[str, Callable[[], object]], a: np.ndarray, b: np.ndarray) -> set[str]:
    """Return the contenders whose error exceeds gamma_k |a| |b| and one rounding; for int8, whose results differ.

    The bound holds for float32 sums in any order (Higham 2002, section 3.1); integers this small are exact in float64.
    """
    wide_a, wide_b, k = a.astype(np.float64), b.astype(np.float64), a.shape[-1]
    exact, found = wide_a @ wide_b, set()
    gamma = 0 if a.dtype == np.int8 else k * 2.0**-24 / (1 - k * 2.0**-24)
    bound = gamma * (np.abs(wide_a) @ np.abs(wide_b))
    for who, call in calls.items():
        result = as_array(call())
        allowed = bound if result.dtype.kind == "i" else bound + ROUNDING[result.dtype.name] * (np.abs(exact) + bound)
        if result.shape != exact.shape or not np.all(np.abs(result.astype(np.float64) - exact) <= allowed):
            found.add(who)
    return found


def as_array(result: object) -> np.ndarray:
    if isinstance(result, torch.Tensor):
        name = str(result.dtype).removeprefix("torch.")
        return result.view(getattr(torch, f"int{8 * result.itemsize}")).numpy().view(dtype(name))
    return np.asarray(result)


def unit(dtype: str) -> str:
    return unit_of(dtype)


def line(row: dict) -> str:
    ratios = row["ratios"]
    threads = f"{ratios['threads'][ONE_THREAD]:8.2f}" if "threads" in ratios else ""
    return (
        f"{row['threads']}  {row['dtype']:14}{row['shape']:17}{show_rates(row, (PACKED, *ARRAYS, *PEERS))} "
        f"{show_ratio(ratios['packed'])}{show_ratio(ratios['array'])}{row['share_of_limit']:6.0%}{threads}"
    )


def summary(rows: list[dict]) -> str:
    """Count the rows in which a peer is faster."""

    def below(column: str) -> int:
        return sum(min(row["ratios"][column].values(), default=1) < 1 for row in rows)

    return f"of {len(rows)} rows below a peer: packed {below('packed')}, array {below('array')}"
