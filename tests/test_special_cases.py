"""The scripts that compare builds (docs/performance.md): special cases can be left out, rows are there and run."""

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


def test_a_build_can_be_without_each_case(script):
    """meson's option takes the names of the header, and each is asked for somewhere in the sources."""
    core = ROOT / "mp_core/core"
    text = "".join(path.read_text() for path in core.rglob("*") if path.suffix in (".c", ".h", ".def"))
    named = set(re.findall(r"#define MP_CASE_(\w+) [1-9]", text))
    assert {case.option.upper() for case in script.CASES} == named
    assert set(re.findall(r"MP_HAS\((\w+)\)", text)) - {"CASE"} == named
    numbers = re.findall(r"#define MP_CASE_\w+ (\d+)", text)
    assert len(numbers) == len(set(numbers)) == 1 + len(named)


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
