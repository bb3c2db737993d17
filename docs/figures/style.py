"""Shared code of the figures: folders of data and pictures, creating a figure, saving it."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from mp_core.cli.benchmark.plots import INK, LIBRARIES, LOOK, as_svg
from mp_core.cli.benchmark.records import Report, library

__all__ = ["INK", "LIBRARIES", "Figure", "legend", "load", "log_axis", "new", "points", "render", "spans"]

HERE = Path(__file__).parent
DATA, IMAGES = HERE / "data", HERE.parent / "images"
WIDTH = 5.2  # inches: on 700 pixels, 9 points are 17 pixels; on a phone, whose pages have 358, they are 9


def load(name: str) -> Report:
    return Report.load(DATA / f"{name}.json")


def new(height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """Return a figure and its axes: an array of them, if there are several."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def render(draw: Callable[[], Figure], title: str) -> bytes:
    """Return the drawing of a function as SVG."""
    with rc_context(LOOK):
        return as_svg(draw(), title)


def points(axes: Any, found: Iterable[tuple[float, float, str]], **options: Any) -> None:
    """Draw points (x, y, contender) in the colours of the contenders' libraries, mp_core last."""
    places: dict[str, list[tuple[float, float]]] = {}
    for x, y, contender in found:
        places.setdefault(library(contender), []).append((x, y))
    for owner in sorted(places, key=lambda owner: owner == "mp_core"):
        colour, marker = LIBRARIES[owner]
        chosen = {"marker": marker, "color": colour, "linestyle": "none", "label": owner}
        axes.plot(*zip(*places[owner], strict=True), **{**chosen, **options})


def spans(axes: Any, ends: Iterable[tuple[float, float]]) -> None:
    """Draw a thin line from the first to the second in each row, the rows being 0, 1, ..."""
    ends = list(ends)
    axes.hlines(range(len(ends)), *zip(*ends, strict=True), color=INK, linewidth=0.8, alpha=0.5)


def legend(figure: Figure, axes: Iterable[Any], columns: int = 5, **options: Any) -> None:
    """Name each library once, above everything, in the order of their table."""
    shown = {key: handle for each in axes for handle, key in zip(*each.get_legend_handles_labels(), strict=True)}
    order = sorted(shown, key=lambda key: list(LIBRARIES).index(key) if key in LIBRARIES else len(LIBRARIES))
    where = {
        "loc": "outside upper center",
        "ncols": columns,
        "columnspacing": 1,
        "handletextpad": 0.2,
        "handlelength": 1.4,
    }
    figure.legend([shown[key] for key in order], order, **{**where, **options})


def log_axis(axis: Any, ticks: Iterable[float], labels: Iterable[str] | None = None) -> None:
    """Make an axis logarithmic, with only these ticks."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    ticks = list(ticks)
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axis.set_ticks(ticks, list(labels) if labels else [f"{tick:g}" for tick in ticks])
