"""`mp-core profile`: the table, its JSON and its plot."""

import json

import pytest
import tiny_bert
from command import usage_error

from mp_core import cli


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(tiny_bert.write(tmp_path_factory.mktemp("profile") / "model"))


@pytest.mark.parametrize("policy", ["float32", "int8"])
def test_each_operation_has_its_time_share_and_limit(capsys, model, tmp_path, policy):
    files = {name: tmp_path / f"profile.{name}" for name in ("json", "svg", "png")}
    shape = ["--batch", "2", "--length", "5", "--threads", "1"]
    for plot in ("svg", "png"):
        outputs = ["--json", str(files["json"]), "--plot", str(files[plot])]
        assert cli.main(["profile", model, "--policy", policy, *shape, *outputs]) == 0
        assert files[plot].stat().st_size > 1000
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 texts of 5 tokens, ")
    assert lines[1].split() == ["operation", "times", "ms", "share", "%", "of", "its", "limit", "%"]
    report = json.loads(files["json"].read_text())
    assert {"attention", "layer norm", "look-up"} < {row["operation"] for row in report["rows"]}
    assert all(row["seconds"] > 0 and row["limit"] > 0 for row in report["rows"])
    assert (report["batch"], report["length"], report["threads"]) == (2, 5, 1)
    assert sum(row["times"] for row in report["rows"]) == int(lines[-1].split()[1])


def test_wrong_arguments_are_named(capsys, model, tmp_path):
    assert "at most" in usage_error(capsys, "profile", model, "--length", "100000")
    assert "--plot" in usage_error(capsys, "profile", model, "--plot", str(tmp_path))
    assert "at least 1" in usage_error(capsys, "profile", model, "--batch", "0")
