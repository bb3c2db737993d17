"""Products whose weights come from memory."""

from style import Figure, legend, load, log_axis, new, points, spans

from mp_core.cli.benchmark.records import library


def draw() -> Figure:
    """Draw a line for each shape: mp_core with packed weights, and the fastest peer."""
    report = load("products-memory-zen5")
    shapes = list(dict.fromkeys(record.shape for record in report.records))
    figure, grid = new(3.9, 2, 2, sharey=True)
    for axes, dtype in zip(grid.flat, ("float32", "bfloat16", "float16", "int8"), strict=True):
        rows = [record for record in report.records if record.dtype == dtype]
        ours = [record for record in rows if record.contender == "packed"]
        peers = [record for record in rows if library(record.contender) != "mp_core"]
        spans(axes, [(peer.rate, our.rate) for peer, our in zip(peers, ours, strict=True)])
        points(axes, [(record.rate, shapes.index(record.shape), record.contender) for record in peers + ours])
        axes.set_title(dtype)
        log_axis(axes.xaxis, (10, 30, 100, 300, 1000))
        axes.set_xlim(10, 1100)
        axes.grid(axis="x")
    for axes in grid[1]:
        axes.set_xlabel("GFLOP/s, int8 GOP/s")
    for axes in grid[:, 0]:
        axes.set_yticks(range(len(shapes)), shapes)
        axes.set_ylim(len(shapes) - 0.5, -0.5)
    legend(figure, grid.flat, title=f"{report.cpu}, one thread, weights from memory, {report.date}")
    return figure


FIGURES = {"products-memory": ("Products whose weights come from memory, mp_core and the fastest peer", draw)}
