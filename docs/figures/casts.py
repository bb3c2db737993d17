"""Bandwidth of casts by size, compared with the peers and a plain copy."""

from style import INK, LIBRARIES, Figure, legend, load, log_axis, new

from mp_core.cli.benchmark.records import library

PAIRS = ("float32:bfloat16", "bfloat16:float32", "float32:float16", "float16:float32",
         "float32:float8_e4m3fn", "float8_e4m3fn:float32")  # fmt: skip
SIZES = {64: "64", 1 << 12: "4 Ki", 1 << 16: "64 Ki", 1 << 20: "1 Mi", 1 << 24: "16 Mi"}


def draw() -> Figure:
    """Draw a panel for each pair of types and a curve for each contender, in bytes read plus written."""
    report = load("casts-zen3")
    figure, grid = new(6.0, 3, 2, sharex=True, sharey=True)
    for axes, pair in zip(grid.flat, PAIRS, strict=True):
        rows = [record for record in report.records if record.dtype == pair]
        for contender in dict.fromkeys(record.contender for record in rows):
            curve = [record for record in rows if record.contender == contender]
            sizes = [int(record.shape) for record in curve]
            per = [record.details["nbytes"] / size for record, size in zip(curve, sizes, strict=True)]
            if contender == "mp_core":
                copy = [record.limit * each for record, each in zip(curve, per, strict=True)]
                axes.plot(sizes, copy, color=INK, linewidth=1.4, linestyle=":", label="roofline")
            colour, marker = LIBRARIES[library(contender)]
            speed = [record.rate * each for record, each in zip(curve, per, strict=True)]
            axes.plot(sizes, speed, color=colour, marker=marker, linewidth=1, label=library(contender))
        axes.set_title(pair.replace(":", " to "))
        log_axis(axes.xaxis, SIZES, SIZES.values())
        log_axis(axes.yaxis, (1, 10, 100))
        axes.set_ylim(0.2, 200)
        axes.grid()
    for axes in grid[:, 0]:
        axes.set_ylabel("GB/s")
    for axes in grid[-1]:
        axes.set_xlabel("elements")
    legend(figure, grid.flat, columns=5, title=f"{report.cpu}, one thread, {report.date}")
    return figure


FIGURES = {"casts": ("Bandwidth of casts by size, with the peers and a plain copy", draw)}
