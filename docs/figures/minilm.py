"""The whole model all-MiniLM-L6-v2: the front page's figure, speed compared with the peers, latency, threads."""

from typing import Any

from style import INK, LIBRARIES, Figure, legend, load, log_axis, new, points

from mp_core.cli.benchmark.records import Record, Report, library

PRECISIONS = ("float32", "bfloat16", "int8")
SHAPES = {
    "news": "50 news items",
    "32x128": "32 texts, 128 tokens",
    "8x64": "8 texts, 64 tokens",
    "1x32": "1 text, 32 tokens",
}
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "int8": "int8/fixed+"}  # of policies-zen4.json
COSINE = {"float32": 0.99999, "bfloat16": 0.9999, "int8": 0.997}  # lower bound for every document


def pair(report: Report, shape: str, dtype: str, threads: int) -> tuple[Record, Record]:
    """Return the records of mp_core and its fastest peer."""
    rows = [r for r in report.records if (r.shape, r.dtype, r.threads) == (shape, dtype, threads)]
    ours = next(record for record in rows if library(record.contender) == "mp_core")
    peers = [record for record in rows if library(record.contender) != "mp_core"]
    return ours, max(peers, key=lambda record: record.rate)


def bar(axes: Any, place: float, record: Record, text: str) -> None:
    """Draw a bar with its rate in it and a text behind it."""
    owner = library(record.contender)
    axes.barh(place, record.rate, color=LIBRARIES[owner][0], height=0.36, label=owner)
    options = {"textcoords": "offset points", "va": "center", "fontsize": 8.5}
    axes.annotate(f"{record.rate:.0f}", (record.rate, place), (-3, 0), ha="right", color="white", **options)
    axes.annotate(text, (record.rate, place), (4, 0), **options)


def summary() -> Figure:
    """Draw documents per second of mp_core and the fastest peer by precision, with the size of the weights."""
    report = load("minilm-zen4")
    sizes = {record.contender: record.details["MB"] for record in load("policies-zen4").records}
    figure, axes = new(2.6)
    for place, dtype in enumerate(PRECISIONS):
        ours, peer = pair(report, "news", dtype, 1)
        bar(axes, place - 0.19, ours, f"mp_core: {sizes[POLICIES[dtype]]:.0f} MB, cosine > {COSINE[dtype]}")
        bar(axes, place + 0.19, peer, f"{library(peer.contender)}, the fastest peer")
    axes.set_yticks(range(3), PRECISIONS)
    axes.set_ylim(2.5, -0.5)
    axes.set_xlim(0, 250)
    axes.set_xlabel("documents per second: all-MiniLM-L6-v2, news items, one Zen 4 core")
    axes.grid(axis="x")
    return figure


def speed() -> Figure:
    """Draw documents per second in every shape and precision, on one thread, with the roofline."""
    report = load("minilm-zen4")
    figure, grid = new(4.6, 2, 2)
    for axes, (shape, text) in zip(grid.flat, SHAPES.items(), strict=True):
        for place, dtype in enumerate(PRECISIONS):
            ours, peer = pair(report, shape, dtype, 1)
            for offset, record in ((-0.19, ours), (0.19, peer)):
                bar(axes, place + offset, record, "")
            axes.plot([ours.limit] * 2, [place - 0.42, place + 0.42], color=INK, linewidth=1.6, label="roofline")
        axes.set_title(text)
        axes.set_yticks(range(3), PRECISIONS)
        axes.set_ylim(2.5, -0.5)
        axes.set_xlim(0, 1.05 * pair(report, shape, "int8", 1)[0].limit)
        axes.grid(axis="x")
    for axes in grid[1]:
        axes.set_xlabel("documents per second")
    legend(figure, grid.flat, title=f"{report.cpu}, one thread, {report.date}")
    return figure


def threads() -> Figure:
    """Draw the speed of two threads over that of one."""
    report = load("minilm-zen4")
    figure, axes = new(3.6)
    names, gains = [], []
    for dtype in PRECISIONS:
        for shape, text in SHAPES.items():
            for few, many in zip(pair(report, shape, dtype, 1), pair(report, shape, dtype, 2), strict=True):
                if few.contender == many.contender:  # of the peers, the table has only the fastest
                    gains.append((many.rate / few.rate, len(names), few.contender))
            names.append(f"{dtype}, {text}")
    points(axes, gains)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y")
    axes.set_xlim(1, 2.1)
    axes.axvline(2, color=INK, linewidth=1)
    axes.set_xlabel("speed on two threads / speed on one")
    axes.grid(axis="x")
    legend(figure, [axes], title=f"{report.cpu}, {report.date}")
    return figure


SIMULATED = {"32x128": "32 texts, 128 tokens", "8x64": SHAPES["8x64"], "1x32": SHAPES["1x32"]}
LINES = {"float32": ("#1a7fd4", "o"), "mixed_bfloat16": ("#5c8a00", "D"), "int8": ("#d1495b", "s")}


def scaling() -> Figure:
    """Draw the predicted speed-up on many threads, by shape and policy."""
    report = load("scaling-zen4")
    figure, grid = new(2.6, 1, 3, sharey=True)
    for axes, (shape, text) in zip(grid, SIMULATED.items(), strict=True):
        for policy, (colour, marker) in LINES.items():
            found = [record for record in report.records if (record.shape, record.dtype) == (shape, policy)]
            places = [1, *(record.threads for record in found)], [1, *(record.rate for record in found)]
            axes.plot(*places, color=colour, marker=marker, linewidth=0.9, label=policy)
        axes.plot([1, 64], [1, 64], color=INK, linewidth=0.8, linestyle=":", label="as many threads")
        axes.set_title(text)
        for axis in (axes.xaxis, axes.yaxis):
            log_axis(axis, (1, 4, 16, 64))
        axes.grid()
    grid[1].set_xlabel("threads (simulated)")
    grid[0].set_ylabel("speed / speed on one")
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def latency() -> Figure:
    """Draw the milliseconds of one sentence."""
    report = load("minilm-zen4")
    figure, grid = new(2.4, 1, 2, sharey=True)
    for axes, threads in zip(grid, (1, 2), strict=True):
        for place, dtype in enumerate(PRECISIONS):
            for offset, record in zip((-0.19, 0.19), pair(report, "1x32", dtype, threads), strict=True):
                owner = library(record.contender)
                axes.barh(place + offset, 1e3 / record.rate, color=LIBRARIES[owner][0], height=0.36, label=owner)
                axes.text(1e3 / record.rate - 0.15, place + offset, f"{1e3 / record.rate:.1f}", color="white",
                          ha="right", va="center", fontsize=8.5)  # fmt: skip
        axes.set_title(f"{threads} thread{'s' * (threads > 1)}")
        axes.set_yticks(range(3), PRECISIONS)
        axes.set_ylim(2.5, -0.5)
        axes.set_xlim(0, 8)
        axes.set_xticks(range(0, 7, 2))
        axes.set_xlabel("milliseconds")
        axes.grid(axis="x")
    legend(figure, grid, title=f"{report.cpu}, {report.date}")
    return figure


FIGURES = {
    "summary": ("Documents per second of all-MiniLM-L6-v2: mp_core and its fastest peer, by precision", summary),
    "minilm": ("Documents per second of all-MiniLM-L6-v2 by shape and precision, with the roofline", speed),
    "latency": ("Milliseconds of one sentence of 32 tokens in all-MiniLM-L6-v2, beside the fastest peer", latency),
    "threads": ("What a second thread gains in all-MiniLM-L6-v2", threads),
    "scaling": ("What up to 64 threads would gain in all-MiniLM-L6-v2, as simulated", scaling),
}
