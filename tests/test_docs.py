"""Documentation and benchmarks agree with the code: docstrings run, files exist, literal tables agree.

`tests/test_docs_blocks.py` runs the code blocks of the pages.
"""

import doctest
import importlib
import inspect
import json
import pkgutil
import re
import tomllib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from oracles import stated_sum

import mp_core as mp
from mp_core.core import cpu
from mp_core.forms import FORMS

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
NO_MODULES = ("mp_core.__main__", "mp_core.core.libmp_core")
MODULES = [info.name for info in pkgutil.walk_packages(mp.__path__, "mp_core.") if info.name not in NO_MODULES]


@pytest.fixture(autouse=True)
def settings():
    """Examples may change the settings of the process, and the table of forms."""
    before = cpu.isa(), mp.config.floatx(), mp.config.dtype_policy()
    forms = dict(FORMS)
    yield
    FORMS.clear()
    FORMS.update(forms)
    cpu.set_isa(before[0])
    mp.config.set_floatx(before[1])
    mp.config.set_dtype_policy(before[2])


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "asv_bench")
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def by_name(path):
    return path.name


def failures(test):
    """Run the examples of a DocTest and return what they print about those that fail."""
    lines = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=lines.append)
    return "".join(lines)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_modules_run(name):
    module = importlib.import_module(name)
    users = {"__name__": "__main__"}  # a class of an example is one of a user, whom no configuration may name
    found = doctest.DocTestFinder().find(module, name, extraglobs=users)
    reports = [failures(test) for test in found if test.examples]
    assert not "".join(reports)


def methods(module):
    """Yield name and docstring of each public method and property in the public classes that a module defines."""
    classes = [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__]
    for kind in classes:
        for name, method in vars(kind).items():
            function = getattr(method, "__func__", getattr(method, "fget", method))
            own = inspect.isfunction(function) and function.__qualname__ == f"{kind.__qualname__}.{name}"
            if own and not name.startswith("_") and not kind.__name__.startswith("_"):
                yield function.__qualname__, inspect.getdoc(getattr(kind, name))


@pytest.mark.parametrize("name", MODULES)
def test_every_public_method_has_a_docstring_of_its_own_or_of_the_method_that_it_overrides(name):
    assert [method for method, text in methods(importlib.import_module(name)) if not text] == []


@pytest.mark.parametrize("home", ["constraints", "layers.initializers", "losses", "metrics", "regularizers"])
@pytest.mark.parametrize("name", ["serialize", "deserialize", "get"])
def test_examples_of_the_functions_of_families_run(home, name):  # which are made, so that no finder meets them
    module = importlib.import_module(f"mp_core.{home}")
    test = doctest.DocTestParser().get_doctest(getattr(module, name).__doc__, vars(module), name, home, 0)
    assert test.examples and not failures(test)


def test_modules_are_found():
    assert {"mp_core.ops", "mp_core.core.cpu", "mp_core.layers.dense"} <= set(MODULES)


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_named_files_exist(page):
    """A word in backticks whose first part is a folder or file of the repository's root is a path; * is a glob."""
    text = page.read_text()
    words = {word for word in re.findall(r"`([\w.*-][\w./*-]*)`", text) if (ROOT / word.split("/")[0]).exists()}
    links = {link for link in re.findall(r"\]\(([\w./-]+)\)", text) if not link.startswith("http")}
    missing = [word for word in words if not any(ROOT.glob(word.rstrip("/")))]
    missing += [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_benchmarks_list_the_instruction_sets_and_formats(benchmarks):
    common = benchmarks("common")
    rows = re.findall(r"^MP_ISA\((\w+),", (ROOT / "mp_core/core/kernels/isa.def").read_text(), re.M)
    assert tuple(rows) == common.ISAS
    assert set(cpu.isas()) <= set(rows)  # a build may have some of them only
    floats = {name for name, dtype in mp.dtypes.ALLOWED.items() if mp.dtypes.is_float(dtype)}
    assert set(common.FORMATS) == floats - {"float64"}


def test_quantization_has_the_rows_that_its_script_prints(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "asv_bench/studies")
    schemes = importlib.import_module("minilm_accuracy").SCHEMES
    page = (ROOT / "docs/quantization.md").read_text()
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \|.*\| (.+?) \|$", page, re.MULTILINE)
    assert [(scheme, *told) for scheme, told in schemes.items()] == rows


def test_stated_block_lengths_are_those_of_the_header(benchmarks):
    header = (ROOT / "mp_core/core/kernels/kernels.h").read_text()
    blocks = {name.lower(): int(length) for name, length in re.findall(r"MP_BLOCK_(\w+) = (\d+)", header)}
    page = (ROOT / "docs/numerics.md").read_text()
    stated = re.findall(r"^\| (wide|pairs).*\| float32 \| (\d+) \|$", page, re.MULTILINE)
    assert f"in blocks of {blocks.pop('row')} elements" in page
    assert {(name, int(length)) for name, length in stated} == set(blocks.items())
    kinds = {"float32": "wide", "float16": "wide", "bfloat16": "pairs"}
    assert {dtype: blocks[kind] for dtype, kind in kinds.items()} == benchmarks("accuracy").BLOCK


# The order of operations that docs/numerics.md states, in exact arithmetic with one rounding where it says so.


def to_float32(q):
    """A Fraction, rounded once to the nearest float32 number, as a Fraction."""
    if not q:
        return q
    exponent = max(abs(q).numerator.bit_length() - q.denominator.bit_length() - 1, -126)
    exponent += exponent > -126 and abs(q) >= Fraction(2) ** (exponent + 1)
    step = Fraction(2) ** (exponent - 23)
    return round(q / step) * step


def stated_product(a, b, block, pairs):
    def flushed(q):
        return Fraction(0) if pairs and abs(q) < Fraction(2) ** -126 else q

    a, b = ([flushed(Fraction(float(x))) for x in operand] for operand in (a, b))
    total = Fraction(0)
    for first in range(0, len(a), block):
        terms = list(range(first, min(first + block, len(a))))
        if pairs:
            terms = [term for i in range(0, len(terms), 2) for term in reversed(terms[i : i + 2])]
        s = Fraction(0)
        for p in terms:
            s = flushed(to_float32(a[p] * b[p] + s))
        total = flushed(to_float32(total + s))
    return float(total)


@pytest.mark.usefixtures("reproducible")
@pytest.mark.parametrize("k", [1, 2, 7, 1024, 1025, 2051, 4099])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_products_are_computed_in_the_stated_order(dtype, k, rng, benchmarks):
    a, b = (mp.cast(rng.standard_normal(k), dtype) for _ in "ab")
    stated = stated_product(a, b, benchmarks("accuracy").BLOCK[dtype], dtype == "bfloat16")
    assert float(mp.matmul(a, b, out_dtype="float32")) == stated


@pytest.mark.usefixtures("reproducible")
def test_bfloat16_products_flush_as_stated(isa, rng):
    a = mp.cast(rng.standard_normal(501) * 2.0**-70, "bfloat16")
    b = mp.cast(rng.standard_normal(501) * 2.0**-56, "bfloat16")
    stated = stated_product(a, b, 2048, pairs=True)
    assert stated != stated_product(a, b, 2048, pairs=False)
    assert float(mp.matmul(a, b, out_dtype="float32")) == stated


ROWS = [5, 16, 37, 384, 4096, 4097, 3 * 4096 + 20]
"""Lengths of rows: below and above one block of a sum."""


def every_isa():
    """Yield once under every instruction set of this machine; the fixture `settings` restores the first one."""
    for name in cpu.available_isas():
        cpu.set_isa(name)
        yield name


def add_square(s, d):
    exact = (Fraction(float(x)) ** 2 + Fraction(float(y)) for x, y in zip(d, s, strict=True))
    return np.float32([float(to_float32(q)) for q in exact])


@pytest.mark.parametrize("n", ROWS)
def test_layer_norm_is_computed_in_the_stated_order(n, rng):
    x, residual, gamma, beta = rng.standard_normal((4, n), np.float32)
    y = x + residual
    d = y - stated_sum(y) / np.float32(n)
    r = np.float32(1) / np.sqrt(stated_sum(d, add=add_square) / np.float32(n) + np.float32(1e-3))
    for _ in every_isa():
        np.testing.assert_array_equal(mp.layer_norm(x, gamma, beta, residual=residual), ((d * r) * gamma) + beta)


@pytest.mark.parametrize("n", ROWS)
def test_rms_norm_is_computed_in_the_stated_order(n, rng):
    x, gamma = rng.standard_normal((2, n), np.float32)
    r = np.float32(1) / np.sqrt(stated_sum(x, add=add_square) / np.float32(n) + np.float32(1e-6))
    for _ in every_isa():
        np.testing.assert_array_equal(mp.rms_norm(x, gamma), (x * r) * gamma)


@pytest.mark.parametrize(("scale", "by"), [(2.0**80, 2.0**-96), (2.0**-80, 2.0**100)])
def test_norms_of_large_and_small_rows_are_multiplied_by_the_stated_powers(scale, by, rng):
    n, epsilon, by = 37, np.float32(1e-33), np.float32(by)
    x = rng.standard_normal(n, np.float32) * np.float32(scale)
    with np.errstate(over="ignore", under="ignore"):
        beside = (np.sqrt(epsilon) * by) ** 2
    y = x * by
    r = np.float32(1) / np.sqrt(stated_sum(y, add=add_square) / np.float32(n) + beside)
    d = y - stated_sum(y) / np.float32(n)
    s = np.float32(1) / np.sqrt(stated_sum(d, add=add_square) / np.float32(n) + beside)
    for _ in every_isa():
        np.testing.assert_array_equal(mp.rms_norm(x, epsilon=float(epsilon)), y * r)
        np.testing.assert_array_equal(mp.layer_norm(x, epsilon=float(epsilon)), d * s)


@pytest.mark.parametrize("n", ROWS)
def test_softmax_is_computed_in_the_stated_order(n, rng):
    """exp of less than -18 beside a 0 leaves the sum of two at 1, so that it can be read."""
    y = rng.uniform(-24, -18, n).astype(np.float32)
    y[n // 2] = 0
    e = mp.softmax(np.stack([np.zeros_like(y), y], axis=1))[:, 1]
    e[n // 2] = 1
    for _ in every_isa():
        np.testing.assert_array_equal(mp.softmax(y), e * (np.float32(1) / stated_sum(e)))


def test_architecture_lists_the_modules_in_import_order():
    rows = re.findall(r"^\| (`mp_core/.*?) \|", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    stated = [
        {re.sub(r"\.pyx?$", "", path).strip("/").replace("/", ".") for path in re.findall("`(.*?)`", row)}
        for row in rows
    ]
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = pyproject["tool"]["importlinter"]["contracts"][0]["layers"]
    assert stated == [set(layer.strip("()").split(" | ")) for layer in layers]


def test_functions_of_architecture_are_in_the_files_beside_them():
    """In rows ``| `function` | `file` |``, and in text as ``function`` (``file``) or ``function`` in ``file``."""
    text = (ROOT / "docs/architecture.md").read_text()
    found = re.findall(r"`([\w.]+)`(?:\s+in\s+|\s+\(| \| )`(mp_core/[\w/]+\.\w+)`", text)
    assert len(found) > 40
    for names, path in found:
        words = set(re.findall(r"\w+", (ROOT / path).read_text()))
        assert set(names.split(".")) <= words, (names, path)


def test_asv_installs_what_the_project_needs():
    lines = (ROOT / "asv_bench/asv.conf.json").read_text().splitlines()
    asv = json.loads("\n".join(line for line in lines if not line.lstrip().startswith("//")))
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    needed = pyproject["build-system"]["requires"] + project["dependencies"]
    needed += extras["cli"] + [name for name in extras["demo"] if not name.startswith("mp-core")]
    assert asv["project"] == project["name"].replace("-", "_")
    assert set(asv["matrix"]["req"]) == {"ninja"} | {re.match(r"[\w-]+", name).group() for name in needed}


def test_every_public_function_and_class_has_a_page():
    """Once each, under one of its names: tests of the pages themselves are those of `make docs`."""
    names = re.findall(r"^   ~(mp_core\.\S+)$", (ROOT / "docs/api.md").read_text(), re.M)
    pages = [_found(name) for name in names]
    assert len(set(map(id, pages))) == len(names)
    homes = {name.rpartition(".")[0] for name in names} | {"mp_core.checkpoint", "mp_core.mixed_precision"}
    public = {f"{home}.{name}" for home in homes for name in importlib.import_module(home).__all__}
    found = {name: _found(name) for name in public}
    assert [name for name, it in found.items() if callable(it) and not any(it is page for page in pages)] == []


def _found(name):
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


AWKWARD = r"for the asking|\bbut\s+for\b|makes numbers of|\b[Dd]oors?\b|\b[Ww]hoever\b|[Ll]ayers? bears? "


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_pages_have_none_of_the_phrases_that_readers_stumbled_over(page):
    if page.name != "CHANGELOG.md":
        assert re.findall(AWKWARD, page.read_text()) == []


def test_changelog_and_citation_name_the_version():
    assert mp.__version__ in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {mp.__version__}\n" in (ROOT / "CITATION.cff").read_text()
