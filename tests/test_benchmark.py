"""The basis of benchmarks: limits do the work they claim, contenders alternate, tables name what was measured."""

import re
from timeit import Timer

import numpy as np
import pytest

from mp_core import benchmark, config
from mp_core.cli.benchmark import loops, machine, timing


@pytest.fixture
def threads(request):
    before = config.get_num_threads()
    config.set_num_threads(request.param)
    yield request.param
    config.set_num_threads(before)


BOTH = pytest.mark.parametrize("threads", [1, 2], indirect=True)


@BOTH
@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 511, 512, 7 * 256, 100 * 256 + 13])
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_read_sees_every_whole_256_bytes(isa, threads, size, rounds, rng):
    x = rng.integers(0, 256, size + 1, dtype=np.uint8)[1:]
    words = x[: size // 256 * 256].copy().view(np.uint32)
    assert loops.read(x, rounds) == np.bitwise_xor.reduce(words, initial=np.uint32(0))


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_operations_are_counted(isa, threads, dtype):
    assert loops.multiply(dtype, 0) == 0
    one = loops.multiply(dtype, 1)
    assert one >= threads * 2 * 16
    assert loops.multiply(dtype, 7) == 7 * one


def test_unknown_types_are_refused():
    with pytest.raises(ValueError, match=r"`dtype` must be one of float32.*received 'float64'"):
        loops.multiply("float64", 1)


def test_many_threads_are_many_parts():
    with config.num_threads(1024):
        assert loops.multiply("float32", 1) % 1024 == 0
        assert loops.read(np.ones(256, np.uint8)) == 0


def test_contenders_take_turns():
    order = []
    timers = {name: Timer(lambda name=name: order.append(name), "pass") for name in "ab"}
    taken = benchmark.measure(timers, budget=0, rounds=4)
    assert [len(seconds) for seconds in taken.values()] == [4, 4]
    changes = sum(order[i] != order[i - 1] for i in range(1, len(order)))
    assert changes == 9  # a and b find out how many calls make a sample, then four rounds


def test_the_slow_are_timed_once(monkeypatch):
    calls = []
    monkeypatch.setattr(timing, "_SLOW", 0.0)
    taken = benchmark.measure({"slow": Timer(lambda: calls.append(1))}, budget=0, rounds=5, sample=0)
    assert len(calls) == 1 and len(set(taken["slow"])) == 1 and len(taken["slow"]) == 5


def test_limits_have_a_rate_for_every_number_of_threads(monkeypatch):
    monkeypatch.setattr(machine, "cache_bytes", lambda: (1 << 15, 1 << 16, 1 << 26))
    with config.num_threads(2):
        rows = benchmark.limits(quick=True)
    assert [list(row["rates"]) for row in rows] == [["1", "2"]] * 7 + [["1"]]
    assert all(rate > 0 for row in rows for rate in row["rates"].values())


@pytest.mark.parametrize("operation", ["cast", "quantize", "rows"])
def test_operations_are_measured_beside_numpy(operation):
    rows = benchmark.run([operation], quick=True)
    assert {row["operation"] for row in rows} == {operation}
    for row in rows:
        assert next(iter(row["rates"])) == "mp_core" and min(row["rates"].values()) > 0
        assert (row["speedup"] is None) == (len(row["rates"]) == 1)
    assert len(benchmark.table(rows).splitlines()) == 2 + len(rows)


def test_unknown_operations_are_refused():
    with pytest.raises(ValueError, match="`operations` must be of cast, matmul, quantize, rows; received sum"):
        benchmark.run(["cast", "sum"])


def test_products_agree_with_those_of_numpy():
    for case in benchmark.OPERATIONS["matmul"]():
        ours, theirs = (case.contenders[name]().astype(np.float64) for name in ("mp_core", "numpy"))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2.0**-7 * np.abs(theirs).max())


# ---- records and plots


def report():
    found = benchmark.Report("by hand", "some CPU", "scalar", "2026-11-25", {})
    for name, rate in (("mp_core", 40.0), ("numpy", 10.0), ("torch kn", 20.0)):
        details = {"ratios": {"best": 2.0}} if name == "mp_core" else {}
        found.add(benchmark.Record("cast", "1Mi", "float32", 1, name, rate, "GB/s", 50.0, details))
    return found


def test_a_report_is_read_as_it_was_written(tmp_path):
    report().save(tmp_path / "report.json")
    assert benchmark.Report.load(tmp_path / "report.json") == report()


def test_rows_of_a_report_stand_alone():
    ours, numpy, torch = report().rows()
    about = {"cpu": "some CPU", "isa": "scalar", "date": "2026-11-25", "limit": 50.0, "shape": "1Mi", "threads": 1}
    assert all(about.items() <= row.items() for row in (ours, numpy, torch))
    assert (ours["library"], numpy["library"], torch["library"]) == ("mp_core", "NumPy", "PyTorch")
    assert numpy["version"] == np.__version__ and ours["ratios"] == {"best": 2.0}


def test_this_machine_is_named():
    here = benchmark.Report.here("a test")
    assert here.cpu and here.isa == config.isa() and here.versions["mp_core"]
    assert benchmark.Report.here("a test", cpu="another").cpu == "another"


@pytest.mark.parametrize(
    ("contender", "owner"),
    [("packed", "mp_core"), ("int8/fixed+", "mp_core"), ("torch nk", "PyTorch"), ("ORT int8", "ONNX Runtime"),
     ("OpenVINO", "OpenVINO"), ("compiled", "PyTorch"), ("NumKong", "NumKong"), ("zentorch", "zentorch")],
)  # fmt: skip
def test_contenders_belong_to_libraries(contender, owner):
    assert benchmark.library(contender) == owner


def test_limits_and_rows_become_records():
    rows = [{"limit": "read, memory", "unit": "GB/s", "rates": {"1": 30.0, "2": 40.0}}]
    assert [(each.contender, each.threads, each.rate) for each in benchmark.records_of(rows, 1)] == [
        ("roofline", 1, 30.0), ("roofline", 2, 40.0),
    ]  # fmt: skip
    rows = [{"operation": "cast", "shape": "float32 to float16 1Mi", "unit": "GB/s", "rates": {"mp_core": 9.0},
             "speedup": None}]  # fmt: skip
    (record,) = benchmark.records_of(rows, 2)
    assert (record.dtype, record.shape, record.threads, record.details) == ("float32 to float16", "1Mi", 2, {})


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_report_is_drawn_alike_every_time(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    files = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for path in files:
        benchmark.plot(report(), path)
    assert files[0].read_bytes() == files[1].read_bytes()
    if suffix == "svg":
        text = files[0].read_text()
        assert {"NumPy", "PyTorch", "mp_core", "float32 1Mi", "cast, GB/s"} <= set(re.findall(r">([^<]+)</text>", text))
