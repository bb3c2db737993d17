"""Products on the roofline: a panel for each type, a point for each shape and contender."""

from functools import partial
from typing import Any

from style import INK, Figure, legend, load, log_axis, new, points

from mp_core.cli.benchmark.records import Record, Report

DTYPES = ("float32", "bfloat16", "float16", "int8", "float8_e4m3fn")
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "float8_e4m3fn": 1}
RESULT = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 4, "float8_e4m3fn": 4}

NOTE = """flat: multiply-adds alone
slope: a read of memory;
above it: b comes from a cache
left: one row, right: many"""


def intensity(shape: str, dtype: str) -> float:
    """Return the operations per byte of the operands and the result."""
    *batch, m, k, n = map(int, shape.split("x"))
    count = (batch or [1])[0]
    nbytes = BYTES[dtype] * (m * k + k * n) + RESULT[dtype] * m * n
    return 2.0 * m * k * n * count / (nbytes * count)


def limit(report: Report, dtype: str) -> tuple[float, float]:
    """Return the rate of multiply-adds alone, and the bandwidth of memory."""
    rates = {record.shape: record.rate for record in report.records if record.operation == "limits"}
    return rates[f"{dtype} multiply-add"], rates["read, memory"]


def best(records: list[Record]) -> dict[tuple[str, str], Record]:
    """Return the fastest record for each shape and contender, without the layout in its name ("torch kn")."""
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        key = record.shape, record.contender.partition(" ")[0]
        if key not in found or found[key].rate < record.rate:
            found[key] = record
    return found


def shown_of(records: list[Record]) -> list[Record]:
    """Return the packed product of each shape, and its fastest peer."""
    fastest: dict[tuple[str, bool], Record] = {}
    for record in best(records).values():
        key = record.shape, record.contender == "packed"
        if record.contender not in ("kn", "nk") and (key not in fastest or fastest[key].rate < record.rate):
            fastest[key] = record
    return list(fastest.values())


def draw(name: str) -> Figure:
    report = load(name)
    dtypes = [dtype for dtype in DTYPES if any(record.dtype == dtype for record in report.records)]
    lines = -(-len(dtypes) // 2)
    figure, grid = new(2.15 * lines + 0.5, lines, 2, squeeze=False)
    for axes, dtype in zip(grid.flat, dtypes, strict=False):
        panel(axes, report, dtype)
    for axes in grid.flat[len(dtypes) :]:
        axes.axis("off")
        axes.text(0, 0.9, NOTE, va="top", linespacing=1.4, transform=axes.transAxes)
    for axes in grid[:, 0]:
        axes.set_ylabel("GFLOP/s, int8 GOP/s")
    for axes in grid.flat[max(0, len(dtypes) - 2) : len(dtypes)]:
        axes.set_xlabel("operations per byte")
    legend(figure, grid.flat[: len(dtypes)], title=f"{report.cpu}, {report.isa}, one thread, {report.date}")
    return figure


def panel(axes: Any, report: Report, dtype: str) -> None:
    peak, bandwidth = limit(report, dtype)
    least, most = 0.3, 2000.0
    axes.plot([least, peak / bandwidth, most], [least * bandwidth, peak, peak], color=INK, linewidth=1)
    axes.text(most, peak * 1.12, f"{peak:g}", ha="right", va="bottom", fontsize=8)
    wanted = [record for record in report.records if record.operation == "products" and record.dtype == dtype]
    shown = shown_of(wanted)
    points(axes, [(intensity(each.shape, dtype), each.rate, each.contender) for each in shown], alpha=0.85)
    axes.set_title(dtype)
    log_axis(axes.xaxis, (1, 10, 100, 1000))
    low, top = 0.6 * min(each.rate for each in shown), 2 * peak
    log_axis(axes.yaxis, [tick for tick in (3, 10, 30, 100, 300, 1000, 3000) if low < tick < top])
    axes.set_xlim(least, most)
    axes.set_ylim(low, top)
    axes.grid()


FIGURES = {
    f"roofline-{cpu}": (f"Products on the roofline of {text}", partial(draw, f"products-{cpu}"))
    for cpu, text in (
        ("zen4", "a Zen 4 core"),
        ("zen5", "a Zen 5 core"),
        ("amx", "a Xeon core with AMX"),
        ("zen3", "a Zen 3 core"),
    )
}
