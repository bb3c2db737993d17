"""`mp-core bench`, and the plans of products that `mp-core info` prints."""

import json
import sys

import pytest
from command import usage_error

from mp_core import cli
from mp_core.cli import benchmark
from mp_core.core import cpu
from mp_core.policies import config


def test_bench_prints_and_writes_the_table(capsys, tmp_path):
    path = tmp_path / "bench.json"
    assert cli.main(["bench", "--quick", "--ops", "cast", "--json", str(path)]) == 0
    heading, head, _, *lines = capsys.readouterr().out.splitlines()
    report = benchmark.Report.load(path)
    threads = report.records[0].threads
    assert heading == f"version {report.versions['mp_core']}, isa {report.isa}, threads {threads}"
    assert head.split() == ["operation", "shape", "unit", "mp_core", "numpy", "speedup"]  # no peer without --peers
    assert len(lines) == 6 and len(report.records) == 12


def test_bench_measures_the_peers_that_are_there_and_draws_them(capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    asked = []
    monkeypatch.setattr(benchmark.operations, "_optional", lambda name: asked.append(name))
    path = tmp_path / "bench.svg"
    assert cli.main(["bench", "--quick", "--ops", "rows", "--peers", "--plot", str(path)]) == 0
    assert asked == ["torch", "torch"]  # for its threads, for its functions
    assert "softmax 512x1024" in path.read_text()


@pytest.mark.parametrize("command", [["bench", "--ops", "cast"], ["bench", "--limits"]])
def test_a_plot_without_matplotlib_is_an_error_before_the_work(capsys, monkeypatch, tmp_path, command):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main([*command, "--plot", str(tmp_path / "bench.svg")]) == 3
    out, error = capsys.readouterr()
    assert out == "" and "a plot needs the package matplotlib: pip install matplotlib" in error


@pytest.mark.parametrize("command", ["bench", "demo"])
def test_a_table_that_could_not_be_written_is_an_error_before_the_work(capsys, tmp_path, command):
    absent = tmp_path / "absent"
    cases = (absent / "t.json", "no folder"), (absent / ".." / "t.json", "no folder")
    for path, reason in cases:
        with pytest.raises(SystemExit) as stopped:
            cli.main([command, "--json", str(path)])
        out, error = capsys.readouterr()
        assert (stopped.value.code, out) == (2, "")
        assert "argument --json: " in error and reason in error


def test_bench_limits_measures_the_machine(capsys, monkeypatch):
    rows = [{"limit": "read, memory", "unit": "GB/s", "rates": {"1": 30.0, "2": 40.0}}]
    monkeypatch.setattr(benchmark, "limits", lambda quick: rows if quick else None)
    assert cli.main(["bench", "--limits", "--quick"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["read,", "memory", "GB/s", "30.0", "40.0"]


def test_bench_names_the_operations_it_knows(capsys):
    assert "cast" in usage_error(capsys, "bench", "--ops", "sum")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4", "float8_e4m3fn"])
@pytest.mark.parametrize("layout", ["packed", "kn", "nk"])
def test_a_plan_is_told_in_words(dtype, layout, capsys):
    if dtype == "int4" and layout != "packed":
        assert "must be packed" in usage_error(
            capsys, "info", "--plan", "6x64x128", "--dtype", dtype, "--layout", layout
        )
        return
    assert cli.main(["info", "--plan", "6x64x128", "--dtype", dtype, "--layout", layout, "--threads", "1"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["product"].startswith("M x K x N = 6 x 64 x 128, ")
    assert rows["limit"].startswith(("arithmetic: multiply-adds", "reading B: multiply-adds"))
    assert {"way", "tasks", "KC", "NC", "prefetching", "scratch"} <= set(rows)


def test_a_plan_for_another_machine_has_no_measured_limit(capsys):
    other = next((name for name in cpu.isas() if name not in config.available_isas()), None)
    if other is None:
        pytest.skip("this machine has every set")
    assert cli.main(["info", "--plan", "6x64x128", "--isa", other, "--json"]) == 0
    assert "roofline" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("shape", ["0x1x1", "4x4", "axbxc", "1x2x3x4"])
def test_a_plan_needs_a_shape(shape, capsys):
    assert "it must be MxKxN" in usage_error(capsys, "info", "--plan", shape)
