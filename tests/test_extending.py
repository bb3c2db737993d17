"""The recipes of docs/extending.md and docs/extending_core.md: their diffs apply, touch few files, and work.

The diffs of docs/extending.md change Python only: a process imports the Python files of the copy, and the compiled
modules of mp_core as it is installed. The copy with the diffs of docs/extending_core.md is built.
"""

import os
import re
import shutil
import sys
from pathlib import Path

import extended
import processes
import pytest

import mp_core
from mp_core.arrays.products.operands import ACTIVATIONS
from mp_core.core import cpu

ROOT = Path(__file__).resolve().parents[1]
PAGE, CORE_PAGE = ROOT / "docs/extending.md", ROOT / "docs/extending_core.md"
MOST_FILES = {
    CORE_PAGE: {
        "An activation": 4, "An operation": 6, "A function for C programs": 2, "A storage format": 5,
        "An instruction set": 4,
    },
    PAGE: {
        "A layer": 3, "The gradient of an operation": 3, "An optimizer": 3, "A loss": 4, "A metric": 3,
        "A callback": 3, "An architecture": 4, "A command": 3, "A route": 2, "A policy": 2,
    },
}  # fmt: skip
NEEDS = {"An architecture": ("torch", "transformers", "tokenizers"), "A route": ("uvicorn", "starlette", "tokenizers")}
USE = """
import ctypes, sys
from pathlib import Path
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
import ml_dtypes, numpy as np, mp_core as mp
from mp_core.core import cpu
assert set(cpu.isas()) == {"avx2_small", "scalar"}, cpu.isas()
rng = np.random.default_rng(0)

x = rng.standard_normal((5, 3000)).astype(np.float32)
b = rng.standard_normal((3000, 70)).astype(np.float32)
seen = []
for isa in cpu.available_isas():
    cpu.set_isa(isa)
    plain, leaky = mp.matmul(x, b), mp.matmul(x, b, activation="leaky_relu")
    np.testing.assert_array_equal(leaky, np.where(plain > 0, plain, np.float32(0.2) * plain))
    narrow = [mp.cast(mp.matmul(mp.cast(x, name), mp.cast(b, name)), "float32") for name in ("bfloat16", "float16")]
    seen.append(np.concatenate([plain, leaky, *narrow]))

    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e3m4)
    wide = mp.cast(codes, "float32")
    np.testing.assert_array_equal(wide, codes.astype(np.float32))
    np.testing.assert_array_equal(mp.cast(wide, "float8_e3m4").view(np.uint8)[~np.isnan(wide)],
                                  codes.view(np.uint8)[~np.isnan(wide)])
    y = np.concatenate([x[0] * 4, [15.5, 15.74, 15.75, 15.76, 16, np.inf, -np.inf]]).astype(np.float32)
    rounded = y.astype(ml_dtypes.float8_e3m4)
    np.testing.assert_array_equal(mp.cast(y, "float8_e3m4").view(np.uint8), rounded.view(np.uint8))
    assert mp.cast([99.0], "float8_e3m4", saturate=True).astype(np.float32) == 15.5
assert len(cpu.available_isas()) == 2 or not cpu.cpu_features()["avx2+fma+f16c"]
for other in seen[1:]:
    np.testing.assert_array_equal(seen[0].view(np.uint32), other.view(np.uint32))

from mp_core.ops.sums import running_sum
for count in (1, 3):
    with mp.config.num_threads(count):
        np.testing.assert_array_equal(running_sum(x), np.cumsum(x, axis=-1, dtype=np.float32))
library = ctypes.CDLL(str(Path(mp.__file__).parent / "core/libmp_core.so"))
out, size = np.empty_like(x), ctypes.c_ssize_t
addresses = [ctypes.c_void_p(array.ctypes.data) for array in (x, out)]
assert library.mp_core_running_sum(*map(size, x.shape), *addresses, 3) == 0
np.testing.assert_array_equal(out, np.cumsum(x, axis=-1, dtype=np.float32))
assert library.mp_core_running_sum(size(5), size(-1), *addresses, 1) == 1
plan = mp.compile(lambda rows: running_sum(mp.relu(rows)), x)
np.testing.assert_array_equal(plan(-x), np.cumsum(np.maximum(-x, 0), axis=-1, dtype=np.float32))

layer = mp.layers.Dense(7, activation="leaky_relu")
assert layer(x).min() < 0 and layer.get_config()["activation"] == "leaky_relu"
assert mp.matmul(x.astype(float), b.astype(float), activation="leaky_relu").min() < 0
"""


def sections(page):
    """Heading -> the text below it; None -> what comes before the first one."""
    start, *others = re.split(r"^## ", page.read_text(), flags=re.M)
    return {None: start} | {text.splitlines()[0]: text for text in others}


def examples(page):
    """Heading -> its diff."""
    found = {name: re.search(r"^```diff\n(.*?)^```$", text, re.M | re.S) for name, text in sections(page).items()}
    return {heading: diff[1] for heading, diff in found.items() if diff}


@pytest.mark.parametrize(("page", "heading"), [(page, heading) for page in MOST_FILES for heading in MOST_FILES[page]])
def test_an_extension_touches_few_files_and_its_recipe_names_them(page, heading):
    text = sections(page)
    files = re.findall(r"^\+\+\+ b/(.*)$", examples(page)[heading], re.M)
    assert 0 < len(files) == len(set(files)) <= MOST_FILES[page][heading]
    recipe = text[None] + text[heading].partition("```diff")[0]
    for file in files:
        assert file in recipe or f"`{Path(file).name}`" in recipe or Path(file).parent.name == "simd"


@pytest.mark.parametrize("page", MOST_FILES, ids=lambda page: page.name)
def test_every_diff_of_the_pages_is_listed_here(page):
    assert list(examples(page)) == list(MOST_FILES[page])


def run(command, **options):
    done = processes.run(command, capture_output=True, text=True, timeout=processes.LONG, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def copy_of(folder, page, *names):
    """Copy parts of this tree into a folder, and apply all the diffs of a page to them."""
    if not (ROOT / "meson.build").exists() or not shutil.which("git"):
        pytest.skip("needs the source tree and git")
    skipped = shutil.ignore_patterns("__pycache__", "*.so", ".git", "build", "dist", "_build", ".asv", ".venv*")
    folder.mkdir()
    for name in names:
        copy = shutil.copy if (ROOT / name).is_file() else lambda *ends: shutil.copytree(*ends, ignore=skipped)
        copy(ROOT / name, folder / name)
    for diff in examples(page).values():
        run(["git", "apply", "--verbose", "-"], cwd=folder, input=diff)
    return folder


@pytest.fixture(scope="module")
def python_copy(tmp_path_factory):
    """The environment of a process that imports the Python files of a copy with the diffs of docs/extending.md."""
    folder = tmp_path_factory.mktemp("python")
    tree = copy_of(folder / "tree", PAGE, "mp_core", "docs")
    (folder / "sitecustomize.py").write_text(extended.overlay(tree, Path(mp_core.__file__).parents[1]))
    paths = [str(folder), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.mark.parametrize("heading", MOST_FILES[PAGE])
def test_what_a_recipe_adds_works(python_copy, heading, tmp_path):
    for name in NEEDS.get(heading, ()):
        pytest.importorskip(name)
    warnings = [] if heading in NEEDS else ["-W", "error"]
    files = re.findall(r"^\+\+\+ b/(mp_core/.*[.]py)$", examples(PAGE)[heading], re.M)
    run(
        [sys.executable, *warnings, ROOT / "tests/extended.py", heading, tmp_path, *files],
        cwd=tmp_path,
        env=python_copy,
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of this tree with the diffs of docs/extending_core.md."""
    names = ("mp_core", "asv_bench", ".ci", "meson.build", "meson.options")
    return copy_of(tmp_path_factory.mktemp("extended") / "tree", CORE_PAGE, *names)


@pytest.fixture(scope="module")
def built(tree):
    """A build of that tree for scalar and the new instruction set: the folder to import it from."""
    build, out = tree.parent / "build", tree.parent / "out"
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "DESTDIR": str(out)}
    meson = [sys.executable, "-m", "mesonbuild.mesonmain"]
    places = ["--prefix", "/x", "-Dpython.purelibdir=p", "-Dpython.platlibdir=p"]
    run([*meson, "setup", build, "-Disas=avx2_small", *places], cwd=tree, env=environment)
    run([*meson, "install", "-C", build, "--quiet"], cwd=tree, env=environment)
    return next(out.rglob("mp_core")).parent


def test_the_diffs_of_the_core_apply_to_this_tree(tree):
    assert "def running_sum(" in (tree / "mp_core/ops/sums.py").read_text()


@pytest.mark.compiles
def test_the_examples_build_and_do_what_the_page_says(built, tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MP_CORE_")}
    done = processes.run(
        [sys.executable, "-W", "error", "-c", USE],
        cwd=tmp_path, env=environment | {"PYTHONPATH": str(built)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_names_of_the_build_come_from_its_tables():
    """What this build lists, without the copy: the same tables serve C and Python."""
    kernels = ROOT / "mp_core/core/kernels"
    rows = re.findall(r'^MP_ACTIVATION\w*\(\w+, "(\w+)"', (kernels / "activations.def").read_text(), re.M)
    assert list(ACTIVATIONS) == [None, *rows]
    features = re.findall(r'^MP_FEATURE\(\w+, "([^"]+)"\)', (kernels / "isa.def").read_text(), re.M)
    assert list(cpu.cpu_features()) == features
