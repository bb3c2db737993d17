"""Draw records. Each library has one colour, the same in all figures of docs/.

Figures are transparent. Text is SVG text in a grey that is legible on white and on black; if the browser reports the
colour scheme of the page (`prefers-color-scheme`), the text is darker or lighter.
"""

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from mp_core.cli.benchmark.records import Report, library
from mp_core.files.checkpoint.output import new_file
from mp_core.utilities.arguments import path_of
from mp_core.utilities.extras import needed_by

__all__ = ["INK", "LIBRARIES", "LOOK", "as_svg", "check_plots", "plot", "plot_curve"]

INK = "#767676"
"""The colour of text and axes: its contrast is 4.5 with white and 4.6 with black."""

LIBRARIES = {
    "mp_core": ("#1a7fd4", "o"),
    "PyTorch": ("#d55e00", "s"),
    "NumKong": ("#009e73", "D"),
    "ONNX Runtime": ("#cc6f9f", "v"),
    "OpenVINO": ("#8a68d0", "^"),
    "NumPy": ("#a08400", "X"),
    "zentorch": ("#b34a4a", "P"),
    "roofline": (INK, "|"),
}
"""Library -> colour and marker. Colours are visible on white and on black; markers differ too."""

LOOK: dict[Any, Any] = {
    "axes.edgecolor": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "text.color": INK,
    "xtick.color": INK, "ytick.color": INK, "grid.color": INK, "grid.alpha": 0.25, "grid.linewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.8, "axes.axisbelow": True,
    "legend.frameon": False, "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 9, "axes.titlesize": 9,
    "axes.labelsize": 9, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5, "legend.fontsize": 8.5,
    "lines.markersize": 4.5, "svg.fonttype": "none", "svg.hashsalt": "mp_core", "path.simplify": False,
}  # fmt: skip
"""Settings of matplotlib for creating and saving a figure."""

_STYLE = """<style>
  text{font-family:"DejaVu Sans",Verdana,sans-serif;fill:currentColor}
  svg{color:%s} @media(prefers-color-scheme:light){svg{color:#595959}}
  @media(prefers-color-scheme:dark){svg{color:#a0a0a0}}
"""
_DECIMALS = re.compile(r"-?\d+\.\d{2,}")
_LABELS, _EACH = 0.55, 0.26  # inches: the height of the axis below a panel, and of each row


def as_svg(figure: Any, title: str) -> bytes:
    """Return a figure, created under :data:`LOOK`, as a reproducible SVG: the same figure gives the same bytes."""
    stream = io.BytesIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Title": title})
    text = stream.getvalue().decode()
    text = text[text.index("<svg") :]
    text = text.replace("<defs>\n  <style", f"<title>{escape(title)}</title>\n <defs>\n  <style", 1)
    text = text.replace(INK, "currentColor").replace('<style type="text/css">', _STYLE % INK, 1)
    text = text.replace(" font-family: 'DejaVu Sans', sans-serif;", "").replace("; stroke-linejoin: miter", "")
    text = re.sub(r"rotate\(-0 [^)]*\)|; fill: currentColor(?=\" x=)", "", text).replace(' transform=""', "")
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.S)
    places = r'(?<= )(?:d|x|y|width|height|transform)="[^"]*"'
    text = re.sub(places, lambda place: _DECIMALS.sub(_rounded, place[0]), text)
    return re.sub(r"[ \n]*\n", "\n", text).encode()


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


def check_plots() -> None:
    """Raise ImportError unless matplotlib is installed."""
    with needed_by("a plot"):
        from matplotlib import figure  # noqa: F401


def plot(report: Report, path: str | Path) -> None:
    """Draw a report with matplotlib: a panel for each operation and unit, a line for each shape and type.

    Parameters
    ----------
    report : Report
    path : str or Path
        An .svg or .png file.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from mp_core.benchmark import Record
    >>> rates = {"mp_core": 60.0, "NumPy": 40.0}
    >>> records = [Record("matmul", "64x64x64", "float32", 1, name, rate, "GFLOP/s") for name, rate in rates.items()]
    >>> with TemporaryDirectory() as folder:
    ...     plot(Report("example", "my CPU", "avx2", "2026-11-27", {}, records), Path(folder, "rates.svg"))
    ...     "float32 64x64x64" in Path(folder, "rates.svg").read_text()
    True
    """
    check_plots()
    path = path_of(path, "path")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    panels: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for record in report.records:
        lines = panels.setdefault((record.operation, record.unit), {})
        name = f"{record.dtype} {record.shape}".strip() + f", {record.threads} threads" * (record.operation == "limits")
        line = lines.setdefault(name, {})
        line[record.contender] = record.rate
    with rc_context(LOOK):
        heights = [_LABELS + _EACH * len(lines) for lines in panels.values()]
        figure = Figure(figsize=(6.5, sum(heights) + 0.8), layout="constrained")
        grid = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        for axes, ((operation, unit), lines) in zip(grid, panels.items(), strict=True):
            _panel(axes, operation, unit, lines)
        shown = {key: handle for axes in grid for handle, key in zip(*axes.get_legend_handles_labels(), strict=True)}
        threads = max((record.threads for record in report.records), default=1)
        title = f"{report.cpu}, {report.isa}, {threads} thread{'s' * (threads > 1)}, {report.date}"
        figure.legend(shown.values(), shown, loc="outside upper center", ncols=4, title=title)
        _save(figure, path, title)


def plot_curve(values: Sequence[float], path: str | Path, title: str, x_label: str, y_label: str) -> None:
    """Draw a sequence of numbers as a curve, as an .svg or .png file; errors are those of :func:`plot`."""
    check_plots()
    path = path_of(path, "path")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(LOOK):
        figure = Figure(figsize=(6.5, 3.0), layout="constrained")
        axes = figure.subplots()
        axes.plot(range(1, len(values) + 1), values, color=LIBRARIES["mp_core"][0], linewidth=1.2)
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        axes.grid(axis="y")
        _save(figure, path, title)


def _save(figure: Any, path: Path, title: str) -> None:
    """Write a figure in the format of the suffix."""
    with new_file(path, force=True) as stream:
        if path.suffix == ".svg":
            stream.write(as_svg(figure, title))
        else:
            figure.savefig(stream, format=path.suffix[1:] or None, dpi=150)


def _panel(axes: Any, operation: str, unit: str, lines: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a horizontal line for each shape with a point for each contender; the first shape is at the top."""
    from matplotlib.ticker import LogLocator

    seen: set[str] = set()
    for place, rates in enumerate(lines.values()):
        axes.plot([min(rates.values()), max(rates.values())], [place, place], color=INK, linewidth=0.8, alpha=0.5)
        for contender, rate in rates.items():
            owner = library(contender)
            colour, marker = LIBRARIES[owner]
            axes.plot(rate, place, marker, color=colour, label=owner if owner not in seen else None)
            seen.add(owner)
    axes.set_yticks(range(len(lines)), list(lines))
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_xlabel(f"{operation}, {unit}")
    axes.grid(axis="x")
