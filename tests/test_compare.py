"""`make bench-compare`: which slowdowns count, which files it names, and the sources of a build."""

import importlib
import sys
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parents[1]
SOFTMAX = "rows 512x384 softmax bfloat16"


@pytest.fixture(scope="module", autouse=True)
def scripts():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "asv_bench/lab")
        yield


@pytest.fixture
def compare(scripts):
    return importlib.import_module("compare")


@pytest.fixture
def trees(scripts):
    return importlib.import_module("trees")


@pytest.fixture
def tracked(scripts):
    return importlib.import_module("tracked")


def figures(compare, *ratios):
    return compare.Figures(ratios, ratios, 1e-6)


def measured(compare, monkeypatch, *measurements):
    """Let measurements return these ratios, one mapping of cells after the other; return those that were asked for."""
    asked, left = [], list(measurements)

    def fake(base, head, cells, **how):
        asked.append(cells)
        return {name: figures(compare, *ratios) for name, ratios in left.pop(0).items() if name in cells}

    monkeypatch.setattr(compare, "compare", fake)
    return asked


def test_a_slowdown_counts_if_it_is_measured_three_times(compare, monkeypatch):
    slow, same = (0.8, 0.8, 0.8), (1.0, 1.0, 1.0)
    asked = measured(
        compare, monkeypatch, {"a": slow, "b": slow, "c": same}, {"a": slow, "b": slow}, {"a": slow, "b": same}
    )
    assert compare.regressions(Path("old"), Path("new"), ["a", "b", "c"]) == {"a": 1.25}
    assert asked == [["a", "b", "c"], ["a", "b"], ["a", "b"]]


@pytest.mark.parametrize("ratios", [(0.96, 0.96, 0.96), (0.8, 0.8, 1.0), (1.3, 1.3, 1.3)])
def test_less_than_five_percent_or_one_start_without_it_is_no_slowdown(compare, ratios):
    assert not compare.clearly(figures(compare, *ratios))


def test_a_call_of_less_than_a_microsecond_must_be_much_slower(compare):
    for seconds, ratio, expected in ((0.5e-6, 0.8, 0), (0.5e-6, 0.7, 1), (0.9e-6, 0.9, 0), (0.9e-6, 0.8, 1)):
        assert compare.clearly(compare.Figures((ratio, ratio), (ratio, ratio), seconds)) == expected


def test_both_statistics_must_show_a_slowdown(compare):
    assert not compare.clearly(compare.Figures((0.8, 0.8), (1.0, 1.0), 1e-6))
    assert compare.clearly(compare.Figures((0.8, 0.8), (0.7, 0.7), 1e-6))


def test_suspected_are_the_changed_files_that_compute_a_slower_cell(compare):
    softmax, panel = "mp_core/core/kernels/rows/softmax.h", "mp_core/core/kernels/products/panel.h"
    shared, page = "mp_core/core/kernels/simd/avx2.h", "mp_core/models/texts.py"
    assert compare.suspects([SOFTMAX], [softmax, panel, shared, page]) == [softmax, shared]
    assert softmax in compare.report({SOFTMAX: 1.5}, [softmax, panel])
    assert not compare.suspects([SOFTMAX], [panel, "mp_core/layers/dense.py"])  # which fails no gate
    assert panel not in compare.report({SOFTMAX: 1.5}, [softmax, panel])


def test_every_file_of_the_core_computes_some_cell(compare, trees):
    of_no_cell = {
        "array_cast", "attention", "attention_gradient", "capi", "changes", "depthwise", "dlpack", "dlpack_export",
        "elementwise", "indexed", "look_up", "lookup", "mp_core", "mp_core_python", "noted_product", "numbers", "order",
        "pairs", "pooling", "random", "recording", "replay", "rotary", "row_gradients", "row_sums", "signals", "sums",
        "taken_rows", "update", "updates", "window_pooling", "window_rows", "windows",
    }  # fmt: skip
    everything = compare.suspects([f"{subject} cell" for subject in compare.COMPUTED_BY], sorted(trees.sources()))
    core = [
        name
        for name in trees.sources()
        if name.startswith("mp_core/core/") and name.endswith((".c", ".h", ".def", ".pyx"))
    ]
    assert {Path(name).stem for name in set(core) - set(everything)} == of_no_cell


def test_what_computes_one_operation_only_is_not_suspected_of_all(compare):
    assert compare.suspects([SOFTMAX], ["mp_core/core/library/window_pooling.c", "mp_core/core/library.pxd"]) == [
        "mp_core/core/library.pxd"
    ]
    quantizes, shared = "mp_core/arrays/quantization/calls.pyx", "mp_core/arrays/received.py"
    assert compare.suspects([SOFTMAX], [quantizes, shared]) == [shared]


def test_cells_are_those_of_builds(compare, tracked):
    assert set(tracked.CELLS) <= set(compare.names())
    assert set(tracked.CELLS) <= set(compare.full())
    assert set(tracked.LIMITED) <= set(tracked.CELLS)


def test_the_planted_slowdown_is_an_edit_of_a_kernel_that_some_cells_use(trees):
    planted = importlib.import_module("planted")
    before = trees.sources()
    after = trees.edited(before, (planted.PLANTED,))
    assert [name for name in before if before[name] != after[name]] == [planted.KERNEL]
    assert planted.expected([SOFTMAX, "casts 64 float32:bfloat16"]) == [SOFTMAX]


def test_moving_functions_edits_the_build_only(trees):
    planted = importlib.import_module("planted")
    before = trees.sources()
    after = planted.elsewhere(before, 32)
    assert [name for name in before if before[name] != after[name]] == [planted.MESON]
    assert after[planted.MESON].count(b"-falign-functions=32") == 1


def test_laying_sources_touches_only_what_differs(trees, tmp_path):
    trees.lay({"mp_core/a.c": b"1", "mp_core/b.c": b"2", "LICENSE": b"3"}, tmp_path)
    before = (tmp_path / "mp_core/a.c").stat().st_mtime_ns
    trees.lay({"mp_core/a.c": b"1", "mp_core/c.c": b"4", "LICENSE": b"5"}, tmp_path)
    assert (tmp_path / "mp_core/a.c").stat().st_mtime_ns == before
    assert sorted(path.name for path in (tmp_path / "mp_core").iterdir()) == ["a.c", "c.c"]
    assert (tmp_path / "LICENSE").read_bytes() == b"5"


def command(*arguments):
    script = [sys.executable, str(ROOT / "asv_bench/lab/compare.py"), *arguments]
    return processes.run(script, capture_output=True, text=True)


def test_a_base_that_is_missing_passes_a_short_comparison_only():
    short, full = command("no-such-revision", "--short"), command("no-such-revision")
    assert (short.returncode, full.returncode) == (0, 2)
    assert "not in this clone" in short.stdout


def test_a_revision_has_the_sources_of_itself(trees):
    if processes.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True).returncode:
        pytest.skip("not a git checkout")
    run = command("HEAD", "HEAD")
    assert (run.returncode, run.stdout) == (0, "the sources are those of HEAD: nothing to compare\n")
    assert trees.sources("HEAD").keys() >= {"meson.build", "mp_core/meson.build", "mp_core/core/kernels/isa.def"}
