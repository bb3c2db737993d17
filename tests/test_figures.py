"""The figures of docs/: they agree with the stored data, are small, and are readable on white and on black."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from mp_core.benchmark import Report, library
from mp_core.cli.benchmark.plots import INK, LIBRARIES

DOCS = Path(__file__).parents[1] / "docs"
DATA = sorted((DOCS / "figures" / "data").glob("*.json"))
LARGEST = 60_000  # bytes
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?=[\s\"),])")
NAME = re.compile(r"(?<=[\"#])[mpC][0-9a-f]{10}(?:_\d+)?")  # of a marker or a clip path: a hash of its coordinates


@pytest.fixture(scope="module")
def figures():
    """Name -> title, function that draws it; and what renders such a function."""
    pytest.importorskip("matplotlib")
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS / "figures")
        yield importlib.import_module("figures").FIGURES, importlib.import_module("style").render
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(DOCS) in str(sys.modules[name].__file__):
            del sys.modules[name]


def skeleton(text):
    """Return an SVG without its numbers, and the numbers."""
    text = NAME.sub("", text)
    return NUMBER.sub("0", text), [float(number) for number in NUMBER.findall(text)]


def drawn_by(text):
    return re.search(r"Matplotlib v([\d.]+)", text)[1]


def words(text):
    return re.findall(r"<text[^>]*>([^<]+)", text), text.count("<use ")


def test_committed_figures_are_drawn_from_the_stored_data(figures):
    found, render = figures
    for name, (title, draw) in found.items():
        committed = (DOCS / "images" / f"{name}.svg").read_text()
        again = render(draw, title).decode()
        assert words(again) == words(committed), name
        if drawn_by(again) == drawn_by(committed):
            (form, numbers), (committed_form, committed_numbers) = skeleton(again), skeleton(committed)
            assert form == committed_form, name
            assert numbers == pytest.approx(committed_numbers, abs=0.5), name


def test_drawing_twice_gives_the_same_bytes(figures):
    found, render = figures
    title, draw = found["summary"]
    assert render(draw, title) == render(draw, title)


def test_figures_are_small_and_fit_light_and_dark_pages(figures):
    for name, (title, _) in figures[0].items():
        text = (DOCS / "images" / f"{name}.svg").read_text()
        assert len(text) < LARGEST, name
        assert f"<title>{title}</title>" in text and "<dc:date>" not in text
        assert "currentColor" in text and "prefers-color-scheme" in text
        assert INK not in text.replace(f"svg{{color:{INK}}}", "") and "#000000" not in text


def test_no_drawing_has_a_ground_of_its_own_or_black_text():
    for path in (DOCS / "images").glob("*.svg"):
        text = path.read_text().lower()
        assert "prefers-color-scheme" in text and "currentcolor" in text, path.name
        assert not re.search(r'<rect[^>]*"#f{3,6}"|#(0{3}|0{6}|2{6})\b', text), path.name


def test_every_figure_is_shown_on_a_page(figures):
    pages = "".join(page.read_text() for page in DOCS.glob("*.md")) + (DOCS.parent / "README.md").read_text()
    assert [name for name in figures[0] if f"images/{name}.svg" not in pages] == []


def luminance(colour):
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_show_on_white_and_on_black_and_differ_from_each_other():
    for colour, _ in LIBRARIES.values():
        assert 1.05 / (luminance(colour) + 0.05) >= 3  # WCAG's contrast for graphics
        assert (luminance(colour) + 0.05) / (luminance("#121212") + 0.05) >= 3
    assert len({colour for colour, _ in LIBRARIES.values()}) == len({mark for _, mark in LIBRARIES.values()}) == 8


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.stem)
def test_stored_data_say_who_was_measured_where_and_when(path):
    report = Report.load(path)
    assert report.source and report.cpu and report.isa and re.fullmatch(r"20\d\d-\d\d-\d\d", report.date)
    assert report.records
    for record in report.records:
        assert record.rate > 0 and record.threads >= 1 and record.unit
        assert library(record.contender) in LIBRARIES
        assert record.limit is None or record.limit > 0


def test_every_file_of_data_is_linked():
    pages = "".join(page.read_text() for page in DOCS.glob("*.md"))
    assert [path.name for path in DATA if f"figures/data/{path.name}" not in pages] == []
