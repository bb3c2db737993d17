"""Speed of quantization, compared with the fastest peer."""

from style import Figure, legend, load, log_axis, new, points, spans


def draw() -> Figure:
    """Draw a line for each kind: mp_core, the fastest peer, and a copy of as many bytes."""
    report = load("quantize-zen5")
    figure, grid = new(6.6, 1, 2, sharey=True)
    kinds = list(dict.fromkeys(record.details["kind"] for record in report.records))
    for axes, (shape, text) in zip(
        grid, (("1024x1024", "1 Mi elements"), ("4096x8192", "32 Mi elements")), strict=True
    ):
        rows = [record for record in report.records if record.shape == shape]
        ours, peers = rows[::2], rows[1::2]
        spans(axes, [(peer.rate, our.rate) for peer, our in zip(peers, ours, strict=True)])
        both = [(record.rate, kinds.index(record.details["kind"]), record.contender) for record in rows]
        limits = [(record.limit, place, "roofline") for place, record in enumerate(ours)]
        points(axes, limits, markersize=8)
        points(axes, both)
        axes.set_title(text)
        axes.tick_params(axis="y", length=0)
        log_axis(axes.xaxis, (0.1, 0.3, 1, 3, 10, 30))
        axes.set_xlim(0.07, 50)
        axes.set_xlabel("elements per nanosecond")
        axes.grid(axis="x")
    grid[0].set_yticks(range(len(kinds)), kinds)
    grid[0].set_ylim(len(kinds) - 0.4, -0.6)
    legend(figure, grid, title=f"{report.cpu}, one thread, {report.date}")
    return figure


FIGURES = {"quantize": ("Elements per nanosecond of quantization, mp_core and the fastest peer of each kind", draw)}
