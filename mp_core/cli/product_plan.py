"""``mp-core info --plan``: explain how a matrix product would be computed, and what limits its speed."""

import argparse
import re
from typing import Any

from mp_core.arrays.dtypes import dtype_of
from mp_core.arrays.formats import PANELS
from mp_core.arrays.products.plans import product_plan
from mp_core.cli import options
from mp_core.cli.benchmark import Limit, measure
from mp_core.core.cpu import isas
from mp_core.files.checkpoint import RequestError
from mp_core.policies import config
from mp_core.utilities.suggest import refusal

__all__ = ["add_options", "described", "text"]

_LAYOUTS = {"packed": "a PackedMatrix", "kn": "row-major", "nk": "transposed: stored (N, K)"}
_WAYS = {
    "packed": "packed panels of B are multiplied as they are",
    "in turn": "each row of A is multiplied by several panels of B in turn, so that memory is read in several streams",
    "decoded": "a range of a panel is decoded (float32: copied) into scratch once, then multiplied. Up to {few_rows} "
    "rows of A the packed form is faster; here M and the rows of a task are more",
    "made wider": "A and a range of a panel of B (an array is packed first) are copied into scratch, twice as wide, "
    "then multiplied. Up to {few_rows_recoded} rows of A no copy is faster; here M and the rows of a task are more",
    "in octs": "a range of a panel of B (an array is packed first) is copied into scratch in groups of eight along K, "
    "then multiplied. Up to {few_rows_recoded} rows of A no copy is faster; here M and the rows of a task are more",
    "packed on the fly": "each range of a panel of B is packed into scratch (decoded if needed) and multiplied. With "
    "few rows of A (up to {in_place} for row-major B, {transposed} for transposed B) B is not packed; here M is more",
    "in place": "rows of B are multiplied without packing: with so few rows of A packing would cost more",
    "transposed": "columns of B are transposed in registers: with so few rows of A packing would cost more",
}
_ARITHMETICS = {
    "wide": "float32, one element of K at a time",
    "pairs": "bfloat16, two elements of K at a time",
    "quads": "8-bit integers, four elements of K at a time, exact",
}
_TYPES = f"dtype of A and B: {', '.join(PANELS)} (int4 is for B only; then A is bfloat16)"
_LAYOUT = "layout of B: packed, kn (row-major) or nk (transposed) (default: packed)"
_MOST_READ = 1 << 28  # bytes: the read rate is measured with at most so much; a larger B has the same rate


def shape(value: str) -> tuple[int, int, int]:
    """Read a text such as 16x4096x4096 as (M, K, N)."""
    if not re.fullmatch(r"[1-9][0-9]{0,11}(x[1-9][0-9]{0,11}){2}", value):
        raise argparse.ArgumentTypeError(refusal(value, "must be MxKxN, such as 16x4096x4096"))
    m, k, n = map(int, value.split("x"))
    return m, k, n


def add_options(info: argparse.ArgumentParser) -> None:
    """Add ``--plan`` and its options to ``mp-core info``."""
    info.add_argument("--plan", type=shape, metavar="MxKxN", help="explain how a product of this shape is computed")
    info.add_argument("--dtype", choices=PANELS, default="float32", metavar="TYPE", help=_TYPES)
    info.add_argument("--layout", choices=_LAYOUTS, default="packed", metavar="LAYOUT", help=_LAYOUT)
    options.add(info, "threads")
    info.add_argument("--isa", choices=isas(), metavar="SET", help="instruction set (default: the one in use)")


def described(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the plan and, if this machine has the instruction set, the roofline in seconds."""
    m, k, n = arguments.plan
    if arguments.dtype == "int4" and arguments.layout != "packed":
        raise RequestError(f"--layout must be packed for int4; received {arguments.layout}")
    threads = config.get_num_threads()
    dtype = "bfloat16" if arguments.dtype == "int4" else arguments.dtype
    plan = product_plan(
        m, k, n, dtype, b_dtype=arguments.dtype, layout=arguments.layout, threads=threads, isa=arguments.isa
    )
    plan |= {"shape": [m, k, n], "dtype": arguments.dtype, "layout": arguments.layout}
    if plan["isa"] in config.available_isas():
        nbytes = k * n // 2 if arguments.dtype == "int4" else k * n * dtype_of(dtype).itemsize
        plan["roofline"] = _roofline(2.0 * m * k * n, nbytes, dtype, plan["isa"], plan["threads"])
    return plan


def _roofline(work: float, nbytes: int, dtype: str, isa: str, threads: int) -> dict[str, float]:
    """Measure the seconds of `work` arithmetic operations alone, and of a plain read of `nbytes` of B."""
    before = config.isa()
    config.set_isa(isa)
    try:
        with config.num_threads(threads):
            multiply = Limit.multiply(dtype)
            read = Limit.read(max(256, min(nbytes, _MOST_READ) // 256 * 256))
            taken = measure({"arithmetic": multiply.timer, "read": read.timer})
    finally:
        config.set_isa(before)
    calls = {"arithmetic": work / multiply.work, "read": nbytes / read.work}
    return {name: count * min(taken[name]) for name, count in calls.items()}


def text(plan: dict[str, Any]) -> str:
    """Return the plan in words."""
    m, k, n = plan["shape"]
    limits = plan["limits"]
    rows = {
        "product": f"M x K x N = {m} x {k} x {n}, {plan['dtype']}, B {_LAYOUTS[plan['layout']]}",
        "runs on": f"{plan['isa']}, {plan['threads']} thread{'s' * (plan['threads'] > 1)}",
        "arithmetic": f"{plan['arithmetic']}: {_ARITHMETICS[plan['arithmetic']]}",
        "way": f"{plan['way']}: {_WAYS[plan['way']].format(**limits)}" + "; by AMX tiles" * plan["amx"],
        "A": "read in place" if plan["a_in_place"] else "copied into scratch in the order in which the kernel reads it",
        "tasks": "none: a product this small runs on the caller's thread"
        if plan["small"]
        else f"{plan['tasks']}, each MC = {plan['mc']} rows of A by {plan['task_panels']} panels of 64 columns of B",
        "NC": f"{plan['nc']} columns are multiplied over one range of K before the next range",
        "KC": f"{plan['kc']} elements of K in one kernel call: {_size(plan['kc_bytes'])} of a panel "
        f"(L1d {_size(limits['l1d'])}, L2 {_size(limits['l2'])})",
        "K block": f"{plan['k_block']} elements; the sum of each block starts at +0",
        "prefetching": _prefetching(plan),
        "scratch": ", ".join(f"{name} {_size(size)}" for name, size in plan["scratch"].items()) or "none",
        "limit": _limit(plan),
    }
    return "\n".join(f"{name:13}{value}" for name, value in rows.items())


def _prefetching(plan: dict[str, Any]) -> str:
    where = "B is assumed to be in memory" if plan["from_memory"] else "B is assumed to be in a cache"
    if plan["prefetch_next"]:
        return f"{where}: register blocks prefetch the next range of B"
    if plan["prefetch_within"]:
        return f"{where}: the first register blocks of a panel prefetch the rest of the panel"
    return f"{where}: the plan prefetches nothing"


def _limit(plan: dict[str, Any]) -> str:
    if "roofline" not in plan:
        return "not measured: this machine does not have the instruction set"
    arithmetic, read = plan["roofline"]["arithmetic"], plan["roofline"]["read"]
    slower = "arithmetic" if arithmetic >= read else "reading B"
    return f"{slower}: multiply-adds alone take {_time(arithmetic)}, a plain read of B {_time(read)}, measured here"


def _size(nbytes: int) -> str:
    return f"{nbytes} bytes" if nbytes < 1024 else f"{nbytes / 1024:.4g} KiB" if nbytes < 1 << 20 else _mib(nbytes)


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.4g} MiB"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
