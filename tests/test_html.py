"""Tables in notebooks: small, without external resources, and cells cannot end the table."""

import json
import pickle
import re

import numpy as np
import pytest
import tiny_bert

import mp_core as mp
from mp_core import checkpoint
from mp_core.utilities.html import Report, html_table


def cells(html):
    """Return the rows of a table as lists of texts, and its caption."""
    html = re.sub(r' onclick="[^"]*"', "", html)
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows], re.findall("<caption>(.*?)</caption>", html)


def test_texts_are_escaped_and_nothing_is_fetched():
    html = html_table([["a", "b"], ["<script>", "1"]], "x < y & z")
    assert cells(html) == ([["a", "b"], ["&lt;script&gt;", "1"]], ["x &lt; y &amp; z"])
    assert not re.search(r"https?:|src=|url\(|import", html)
    assert html.count("onclick=") == 2


def test_a_report_is_a_dict_whose_rows_are_a_table():
    rows = [{"name": "a", "file": "f", "bytes": 10, "more": None}, {"name": "b", "file": "f", "bytes": 9, "more": None}]
    report = Report({"path": "p", "failed": ["too small"], "tensors": rows})
    assert json.loads(json.dumps(report)) == report == pickle.loads(pickle.dumps(report))
    table, caption = cells(report._repr_html_())
    assert table == [["name", "bytes"], ["a", "10"], ["b", "9"]]
    assert caption == ["path: p; file: f; failed: too small"]
    assert cells(Report({"path": "p", "tensors": []})._repr_html_()) == ([[]], ["path: p"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert.write(tmp_path_factory.mktemp("tiny") / "model")


def test_reports_of_checkpoints_have_a_row_for_each_tensor(folder, tmp_path):
    converted = checkpoint.convert(folder, tmp_path / "small", "int8")
    for report in (converted, checkpoint.inspect(folder), checkpoint.verify(folder, tmp_path / "small", rtol=1)):
        table, _ = cells(report._repr_html_())
        assert [row[0] for row in table[1:]] == [tensor["name"] for tensor in report["tensors"]]


def test_encoders_plans_and_choices_are_tables(folder):
    encoder = mp.models.BertEncoder.from_folder(folder, "int8")
    rows, (caption,) = cells(encoder._repr_html_())
    weights = [str(layer.path) for layer in encoder.flatten() if layer.own_variables()]
    assert [row[0] for row in rows] == ["layer", *weights] and "TextEncoder" in caption
    model, x = mp.layers.Sequential([mp.layers.Dense(8), mp.layers.Dense(2)]), np.ones((3, 4), np.float32)
    model(x)
    rows, _ = cells(mp.compile(model, x)._repr_html_())
    assert [row[1] for row in rows[1:]] == ["product 4x8", "product 8x2"]
    choice = mp.choose_policy(model, x, max_error=1.0)
    rows, (caption,) = cells(choice._repr_html_())
    assert [row[0] for row in rows[1:]] == [row.path for row in choice.table] and "weights: " in caption


def test_large_arrays_have_short_reprs():
    q = mp.quantize(np.ones((300, 400)), axis=0)
    assert len(repr(q)) < 200 and "values=<int8 (300, 400)>" in repr(q)
    assert "values=array([[ 64, 127]]" in repr(mp.quantize([[1.0, 2.0]]))
    assert [row[0] for row in cells(q._repr_html_())[0]] == ["", "values", "scale"]
    assert len(repr(mp.AutoCastVariable(np.ones((200, 300), np.float32)))) < 300
