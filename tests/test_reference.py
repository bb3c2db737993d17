"""mp_core and the second implementation of docs/numerics.md (tests/reference/) compute the same bits."""

import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from orders import ISAS, sums
from reference import functions, products, random
from reference.cases import CASES
from reference.compute import COMPUTE
from reference.formats import decode
from reference.vectors import outputs_of

import mp_core as mp
from mp_core import cli
from mp_core.cli import vectors
from mp_core.cli.vectors.calls import CALLS
from mp_core.cli.vectors.files import FOLDER, cases

STORED = [pytest.param(section, case, id=f"{section}: {case['name']}") for section, case in cases()]
KERNELS = Path(mp.__file__).parent / "core" / "kernels" / "rows"


@pytest.mark.parametrize("section, case", STORED)
def test_both_implementations_compute_the_stored_bits(section, case):
    assert outputs_of(case, section) == case["outputs"]
    if section != vectors.TILES:
        with mp.config.reproducible():
            assert vectors.failures(case) == []


@pytest.mark.skipif("avx512_amx" not in ISAS, reason="only AMX has the order of tiles")
def test_amx_computes_the_stored_bits_in_tile_order():
    before = mp.config.isa()
    mp.config.set_isa("avx512_amx")
    try:
        with mp.config.reproducible(False):
            assert [vectors.failures(case) for section, case in cases() if section == vectors.TILES] == [[]] * 5
    finally:
        mp.config.set_isa(before)


@pytest.mark.parametrize("order", ["reproducible", "AMX tiles"])
@pytest.mark.parametrize("k, group", [(33, None), (2500, None), (150, 64), (150, 40)])
def test_both_orders_are_those_of_the_third_implementation(order, k, group, rng):
    a, b = (mp.cast(rng.standard_normal(shape), "bfloat16").astype(np.float32) for shape in ((4, k), (k, 5)))
    scale = np.ones((-(-k // group), 5), np.float32) / 3 if group else None
    found = products.sums(a, b, "pairs", scale, group, tiles=order == "AMX tiles")
    assert np.array_equal(found, sums(order, a, b, scale, group))


def test_the_files_have_the_cases_of_the_table_and_are_small():
    stored = {section: [] for section in CASES}
    for section, case in cases():
        stored[section].append({key: value for key, value in case.items() if key != "outputs"})
    assert stored == json.loads(json.dumps(CASES)), "run: python -m tests.reference.vectors"
    assert sum(file.stat().st_size for file in FOLDER.glob("*.json")) < 300_000
    names = [case["name"] for _, case in cases()]
    assert len(names) == len(set(names))


def test_every_operation_of_the_table_has_vectors():
    used = {case["operation"] for _, case in cases()}
    used |= {case["arguments"].get("forward") for _, case in cases()} - {None}
    assert CALLS.keys() == used
    assert COMPUTE.keys() == used - {"take_rows"}  # only its gradient has vectors


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("name", functions.LIMITS)
def test_functions_of_narrow_types_are_correctly_rounded(name, kind):
    dtype = np.dtype(getattr(ml_dtypes, kind, None) or kind)
    codes = np.arange(1 << 8 * dtype.itemsize)
    x = decode(codes, kind)
    expected = functions.activate(name, x, kind)
    found = CALLS["function"](codes.astype(f"u{dtype.itemsize}").view(dtype), name).astype(np.float32)
    same = (found.view(np.uint32) == expected.view(np.uint32)) | np.isnan(found) & np.isnan(expected)
    assert codes[~same].tolist() == []


def test_the_page_of_functions_has_the_coefficients_of_the_source():
    """The page is executed, so its bits are compared; here each of its numbers is found in the source too."""
    numbers = re.compile(r"0x1(?:\.[0-9a-f]+)?p[+-]?\d+")
    source = "".join(file.read_text() for file in KERNELS.glob("*.h"))
    page = functions.PAGE.read_text()
    blocks = "".join(block for block in re.findall(r"```text\n(.*?)```", page, re.S) if block.startswith("def "))
    known = {float.fromhex(number) for number in numbers.findall(source)}
    known |= {float(np.float32(text)) for text in re.findall(r"set_f32\(-?([\d.]+)f", source)}
    known |= {float.fromhex("0x1.555556p-1")}  # 2/3, in the source as bits
    assert {float.fromhex(number) for number in numbers.findall(blocks)} <= known


def test_the_second_implementation_is_small_and_on_its_own():
    files = list(Path(products.__file__).parent.glob("*.py"))
    assert not [file for file in files if re.search(r"^(?:from|import) mp_core", file.read_text(), re.MULTILINE)]
    modules = [file for file in files if file.stem not in ("cases", "compute", "vectors")]
    assert sum(file.read_text().count("\n") for file in modules) < 1500


def test_philox_is_that_of_numpy():
    assert random.word_of_each((7, 3), 50).tolist() == np.random.Philox(key=[7, 3]).random_raw(50).tolist()


def test_verify_machine_reports_each_section_and_each_wrong_case(capsys, monkeypatch):
    some = [(section, case) for section, case in cases() if case["name"] in ("uniform 7 3", "cast int64 to float16")]
    assert len(some) == 2
    monkeypatch.setattr(vectors, "cases", lambda: iter(some))
    assert cli.main(["verify-machine"]) == 0
    assert capsys.readouterr().out.count("1 ok") == 2 * len(mp.config.available_isas())
    wrong = json.loads(json.dumps(some[1][1]))
    wrong["outputs"]["y"]["bits"] = "0" * 16
    monkeypatch.setattr(vectors, "cases", lambda: iter([some[0], (some[1][0], wrong)]))
    assert cli.main(["verify-machine", "--json", "-"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["cases"] == 2
    for sections in report["sets"].values():
        assert sections[some[1][0]]["failed"] == [f"{wrong['name']}: y"]
        assert sections[some[0][0]] == {"passed": 1, "failed": []}
