"""The scripts that compare builds (docs/tuning.md): edits apply to the sources, rows are there and run."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "asv_bench/lab")
        yield importlib.import_module("special_cases")


def test_edits_occur_once(script):
    wrong = [
        (case.name, edit.path, edit.old)
        for case in script.CASES
        for edit in case.edits
        if (ROOT / edit.path).read_text().count(edit.old) != 1
    ]
    assert not wrong


def test_cases_have_rows(script):
    cells = list(script.names())
    counts = {case.name: sum(bool(re.search(case.cells, cell)) for cell in cells) for case in script.CASES}
    assert min(counts.values()) >= 2, counts


@pytest.mark.parametrize("isa, sets", [("avx512_amx", ["avx512", "avx512_amx", "avx512_bf16"]), ("avx2", ["avx2"])])
def test_only_what_a_set_uses_is_compiled(script, isa, sets):
    assert script.trees.compiled_sets(isa) == sets


CELLS = (
    "products float32 4x16x16 packed",
    "products int8 4x16x16 nk",
    "products float8_e4m3fn 12x128x32x128 kn",
    "products bfloat16@int4 1x1024x1024 packed",
    "dynamic 1x1024x1024",
    "casts 64 float8_e5m2:float32",
    "quantize 64x64 axis=1, group, given",
    "quantize 64x64 axis=0, int4, back",
    "rows 512x384 layer_norm bfloat16",
)


@pytest.mark.parametrize("name", CELLS)
def test_cells_run(script, name):
    assert name in script.names()
    assert importlib.import_module("cells").call(name)() is not None
