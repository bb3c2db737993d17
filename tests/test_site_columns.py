"""The built pages in a browser: tables are readable in a window of 1280 pixels, and on a phone."""

import html
import importlib
import json
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs/_build/html"
CSS = ROOT / "docs/_static/site.css"
WIDTHS = (1280, 400)

# Shows each page in a frame of each width. Of a word of code in a cell it tells how many lines the word takes, and of a
# page how much wider it is than its frame.
MEASURES = """<!doctype html><body><pre id="measured"></pre><script>
const pages = %s, widths = %s, found = [];
async function measure(page, width) {
  const frame = document.createElement("iframe");
  frame.style = `border: 0; height: 900px; width: ${width}px`;
  frame.src = page;
  document.body.append(frame);
  await new Promise(loaded => frame.onload = loaded);
  const inside = frame.contentDocument, root = inside.documentElement;
  const words = [...inside.querySelectorAll("article td code .pre, article th code .pre")];
  const tops = word => new Set([...word.getClientRects()].map(box => Math.round(box.top))).size;
  const broken = words.filter(word => !/\\s/.test(word.textContent) && tops(word) > 1);
  found.push({page, width, words: words.length, broken: broken.map(word => word.textContent),
    beyond: root.scrollWidth - root.clientWidth});
  frame.remove();
}
(async () => {
  for (const page of pages) for (const width of widths) await measure(page, width);
  document.getElementById("measured").textContent = JSON.stringify(found);
})();
</script>"""


@pytest.fixture(scope="module")
def charts():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "asv_bench/lab")
        module = importlib.import_module("charts")
    if module.chromium() is None:
        pytest.skip("measuring pages needs Chromium")
    return module


def measured(charts, folder, pages):
    """Return what the browser measures of pages in a folder, to which the page that measures them is added."""
    (folder / "measures.html").write_text(MEASURES % (json.dumps(pages), json.dumps(WIDTHS)))
    with charts.served(folder) as address:
        page = charts.opened(address.replace("index.html", "measures.html"), "--virtual-time-budget=600000")
    text = re.search(r'<pre id="measured">(.*?)</pre>', page.document, re.DOTALL).group(1)
    return json.loads(html.unescape(text))


def faults(found):
    return [
        f"{each['page']} at {each['width']}: {each['broken'][:5]}, {each['beyond']} pixels too wide"
        for each in found
        if each["broken"] or each["beyond"] > 0
    ]


def test_the_test_sees_a_broken_name_and_a_page_that_is_too_wide(charts, tmp_path):
    cell = '<article><table style="width: 100px"><td><code style="overflow-wrap: anywhere"><span class="pre">{}</span>'
    (tmp_path / "broken.html").write_text(cell.format("mixed_bfloat16" * 3))
    (tmp_path / "wide.html").write_text('<div style="width: 2000px">wide</div>')
    found = measured(charts, tmp_path, ["broken.html", "wide.html"])
    assert [bool(each["broken"]) for each in found] == [True, True, False, False]
    assert [each["beyond"] > 0 for each in found] == [False, False, True, True]


def test_a_column_of_names_beside_long_texts_is_not_broken(charts, tmp_path):
    """The rules of the site on a table as the API page has it, without the theme."""
    row = (
        '<tr class="row-odd"><td><p><code class="xref py py-obj"><span class="pre">{}</span></code></p></td>'
        f"<td><p>{'words ' * 60}</p></td></tr>"
    )
    names = ["metrics.SensitivityAtSpecificity", "losses.CategoricalFocalCrossentropy", "mixed_bfloat16"]
    kinds = {"autosummary longtable table autosummary", "table"}
    tables = "".join(
        f'<div class="pst-scrollable-table-container" style="overflow-x: auto"><table class="{kind}"><tbody>'
        f"{''.join(map(row.format, names))}</tbody></table></div>"
        for kind in sorted(kinds)
    )
    shutil.copy(CSS, tmp_path)
    (tmp_path / "api.html").write_text(
        f'<link rel="stylesheet" href="{CSS.name}"><article class="bd-article">{tables}</article>'
    )
    found = measured(charts, tmp_path, ["api.html"])
    assert [each["words"] for each in found] == [6, 6]
    assert faults(found) == []


@pytest.mark.skipif(not (SITE / "api.html").is_file(), reason="the pages are not built: `make docs` builds them")
def test_no_table_of_the_built_site_breaks_a_name(charts, tmp_path):
    folder = tmp_path / "site"
    shutil.copytree(SITE, folder, ignore=shutil.ignore_patterns("*.js.map", "_sources"))
    pages = sorted(path.name for path in SITE.glob("*.html") if path.name not in ("genindex.html", "search.html"))
    assert faults(measured(charts, folder, pages)) == []
