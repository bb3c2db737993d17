"""The worked examples of docs/extending.md: their diffs apply, touch few files, build, and work as the page says."""

import os
import re
import shutil
import sys
from pathlib import Path

import processes
import pytest

from mp_core.arrays.products.operands import ACTIVATIONS
from mp_core.core import cpu

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/extending.md"
MOST_FILES = {"An activation": 4, "An operation": 12, "A storage format": 6, "An instruction set": 4}
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

from mp_core.ops import running_sum
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


def examples():
    """Heading -> its diff."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]
    found = {text.splitlines()[0]: re.search(r"^```diff\n(.*?)^```$", text, re.M | re.S) for text in sections}
    return {heading: diff[1] for heading, diff in found.items() if diff}


@pytest.mark.parametrize("heading", MOST_FILES)
def test_an_extension_touches_few_files_and_its_recipe_names_them(heading):
    section = PAGE.read_text().split(f"## {heading}\n")[1].partition("\n## ")[0]
    files = re.findall(r"^\+\+\+ b/(.*)$", examples()[heading], re.M)
    assert 0 < len(files) == len(set(files)) <= MOST_FILES[heading]
    recipe = section.partition("```diff")[0]
    for file in files:
        assert file in recipe or f"`{Path(file).name}`" in recipe or Path(file).parent.name == "simd"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of this tree with all the diffs applied."""
    if not (ROOT / "meson.build").exists() or not shutil.which("git"):
        pytest.skip("needs the source tree and git")
    tree = tmp_path_factory.mktemp("extended") / "tree"
    tree.mkdir()
    skipped = shutil.ignore_patterns("__pycache__", "*.so", ".git", "build", "dist", "_build", ".asv", ".venv*")
    for name in ("mp_core", "asv_bench", ".ci"):
        shutil.copytree(ROOT / name, tree / name, ignore=skipped)
    for name in ("meson.build", "meson.options"):
        shutil.copy(ROOT / name, tree)
    for diff in examples().values():
        run(["git", "apply", "--verbose", "-"], cwd=tree, input=diff)
    return tree


def run(command, **options):
    done = processes.run(command, capture_output=True, text=True, timeout=processes.LONG, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


@pytest.fixture(scope="module")
def extended(tree):
    """A build of that tree for scalar and the new instruction set: the folder to import it from."""
    build, out = tree.parent / "build", tree.parent / "out"
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "DESTDIR": str(out)}
    meson = [sys.executable, "-m", "mesonbuild.mesonmain"]
    places = ["--prefix", "/x", "-Dpython.purelibdir=p", "-Dpython.platlibdir=p"]
    run([*meson, "setup", build, "-Disas=avx2_small", *places], cwd=tree, env=environment)
    run([*meson, "install", "-C", build, "--quiet"], cwd=tree, env=environment)
    return next(out.rglob("mp_core")).parent


def test_the_diffs_of_the_page_apply_to_this_tree(tree):
    assert (tree / "mp_core/ops/running.py").exists()


@pytest.mark.compiles
def test_the_examples_build_and_do_what_the_page_says(extended, tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MP_CORE_")}
    done = processes.run(
        [sys.executable, "-W", "error", "-c", USE],
        cwd=tmp_path, env=environment | {"PYTHONPATH": str(extended)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def test_names_of_the_build_come_from_its_tables():
    """What this build lists, without the copy: the same tables serve C and Python."""
    kernels = ROOT / "mp_core/core/kernels"
    rows = re.findall(r'^MP_ACTIVATION\(\w+, "(\w+)"', (kernels / "activations.def").read_text(), re.M)
    assert list(ACTIVATIONS) == [None, *rows]
    features = re.findall(r'^MP_FEATURE\(\w+, "([^"]+)"\)', (kernels / "isa.def").read_text(), re.M)
    assert list(cpu.cpu_features()) == features
