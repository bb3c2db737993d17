"""The stored history: a browser draws its charts without script errors, with every commit that has results."""

import importlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "asv_bench/results"
EXPECTED = {
    "tracked.ErrorOverBound.track_error_over_bound",
    "tracked.Imports.track_import",
    "tracked.Lines.track_lines",
    "tracked.Model.peakmem_encode",
    "tracked.Model.track_lowest_cosine",
    "tracked.Model.track_milliseconds",
    "tracked.Package.track_wheel",
    "tracked.Product.peakmem_matmul",
    "tracked.Shares.track_share_of_limit",
    "tracked.Times.track_microseconds",
    "tracked.WorstUlp.track_worst_ulp",
}


def kept():
    return [path for path in RESULTS.glob("*/*.json") if path.name != "machine.json"]


def test_commits_are_kept_in_small_files_that_name_no_place():
    assert kept()
    for path in kept():
        text = path.read_text()
        assert text == json.dumps(json.loads(text), separators=(",", ":")) + "\n"
        assert len(text) < 10_000
        assert not re.search(r"(?<![\w.])/\w+/\w", text)  # an absolute path


def test_kept_files_have_every_tracked_benchmark():
    known = json.loads((RESULTS / "benchmarks.json").read_text())
    assert known.keys() - {"version"} == EXPECTED
    for path in kept():
        results = json.loads(path.read_text())["results"]
        assert results.keys() == EXPECTED
        assert [values for values, *_ in results.values() if values and None not in values], path.name


@pytest.fixture(scope="module")
def charts():
    pytest.importorskip("asv", reason="asv is not installed: `make bench-html` installs it")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "asv_bench/lab")
        module = importlib.import_module("charts")
        if module.chromium() is None or shutil.which("npm") is None:
            pytest.skip("opening pages needs Chromium, and npm for their libraries")
        command = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"]
        shallow = processes.run(command, check=True, capture_output=True, text=True).stdout
        if shallow.strip() == "true":
            pytest.skip("asv needs the whole history, and this is a shallow clone")
        try:
            module.libraries()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"npm has no access to its packages: {error}")
        importlib.import_module("history").publish()
        yield module


@pytest.fixture(scope="module")
def address(charts):
    with charts.served(charts.HTML) as address:
        yield address


def test_the_pages_name_nothing_on_other_sites(charts):
    page = (charts.HTML / "index.html").read_text()
    assert re.findall(r"""(?:src|href)=["']([^"']*//[^"']*\.(?:js|css))["']""", page) == []
    assert all((charts.HTML / "libraries" / name).is_file() for name in charts.SOURCES)


def test_charts_show_every_commit_that_is_kept(charts):
    assert charts.commits(charts.HTML) == dict.fromkeys(EXPECTED, len(kept()))


@pytest.mark.parametrize("route", ["", "#/summarylist"], ids=["grid", "list"])
def test_the_benchmarks_are_listed_without_an_error_of_a_script(charts, address, route):
    page = charts.opened(address + route)
    assert page.console == ()
    assert not [name for name in EXPECTED if f'href="#{name}' not in page.document]


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_chart_is_drawn_without_an_error_of_a_script(charts, address, name):
    page = charts.opened(f"{address}#{name}")
    assert page.console == ()
    assert "flot-base" in page.document


def test_an_error_of_a_script_is_seen(charts, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<script>missing()</script>")
    assert "missing is not defined" in charts.opened(page.as_uri()).console[0]
