"""The installed package: the size of the wheel, its requirements, and the modules that an import loads."""

import email
import importlib
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("compiler", "message"),
    [
        ("exit 127", "needs a C compiler, and none was found: install gcc or clang"),
        ('"$REAL" "$@" | sed "s/__GNUC__ [0-9]*/__GNUC__ 10/"', "needs GCC 11 or clang 12 or newer; found gcc 10."),
    ],
    ids=["none", "old"],
)
def test_a_missing_or_old_compiler_is_one_clear_line(compiler, message, tmp_path):
    real = shutil.which("gcc") or pytest.skip("needs GCC")
    path = tmp_path / "cc"
    path.write_text(f"#!/bin/sh\n{compiler}\n")
    path.chmod(0o755)
    environment = os.environ | {"CC": str(path), "REAL": real}
    command = [sys.executable, "-m", "mesonbuild.mesonmain", "setup", str(tmp_path / "build"), str(ROOT)]
    run = processes.run(command, capture_output=True, text=True, env=environment, check=False)
    errors = [line for line in run.stdout.splitlines() if "ERROR" in line]
    assert run.returncode == 1
    assert len(errors) == 1 and message in errors[0]


def test_no_message_advises_to_install_this_package_from_an_index():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("mp_core/**/*.py")]
    assert not [path for path in pages if re.search(r"pip install ['\"]?mp[-_]core|mp[-_]core\[", path.read_text())]


def test_the_wheel_is_small_and_holds_no_sources_but_those_for_compilers(wheel):
    assert wheel.stat().st_size < 4.7e6
    names = zipfile.ZipFile(wheel).namelist()
    sources = (".c", ".h", ".pxd", ".pxi", ".pyx", ".o", ".a")
    public = {"mp_core/core/include/mp_core.h", "mp_core/core/include/mp_core_python.h", "mp_core/core/__init__.pxd"}
    assert {name for name in names if "kernels/" in name or name.endswith(sources)} == public
    assert [name for name in names if name.startswith("mp_core/core/cpu.")]


def test_the_wheel_needs_numpy_and_ml_dtypes_only(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(archive.read(name))
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert sorted(line.split(">")[0].replace("-", "_") for line in needed) == ["ml_dtypes", "numpy"]
    extras = {"demo", "cli", "bench", "docs", "test", "dask"}
    assert extras <= set(metadata.get_all("Provides-Extra"))


def test_the_installed_wheel_works_and_imports_nothing_but_numpy_and_ml_dtypes(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = f"""
import sys, numpy, ml_dtypes
before = set(sys.modules)
sys.path.insert(0, {str(tmp_path)!r})
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
import mp_core as mp
assert mp.__file__.startswith({str(tmp_path)!r}), mp.__file__
assert (mp.matmul(numpy.eye(3, dtype="f4"), mp.pack(numpy.eye(3, dtype="f4"))) == numpy.eye(3)).all()
loaded = {{name.split(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names)
print(sorted(name for name in loaded if not name.startswith(("_cython", "cython_runtime", "numpy", "ml_dtypes"))))
print("mp_core.layers" in sys.modules)
mp.layers, mp.models, mp.config
"""
    run = processes.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert run.stdout.split("\n")[:2] == ["['mp_core']", "False"]


def test_a_build_knows_its_commit_from_git_or_from_the_archive(tmp_path):
    def header():
        run = processes.run([sys.executable, script], capture_output=True, text=True, check=True, cwd=tmp_path)
        return run.stdout

    script = tmp_path / ".ci" / "commit.py"
    script.parent.mkdir()
    shutil.copy(ROOT / ".ci" / "commit.py", script)
    assert header() == '#define MP_CORE_COMMIT ""\n'

    git = ["git", "-C", tmp_path, "-c", "user.name=t", "-c", "user.email=t@t"]
    processes.run(["git", "init", "--quiet", tmp_path], check=True)
    processes.run([*git, "add", "."], check=True)
    processes.run([*git, "commit", "--quiet", "-m", "tests: a commit"], check=True)
    head = processes.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    assert header() == f'#define MP_CORE_COMMIT "{head[:12]}"\n'
    script.write_text(script.read_text() + "\n")
    assert header() == f'#define MP_CORE_COMMIT "{head[:12]}-dirty"\n'

    archive = tmp_path / "archive"
    archive.mkdir()
    processes.run([sys.executable, script], check=True, env=os.environ | {"MESON_DIST_ROOT": str(archive)})
    assert (archive / "COMMIT").read_text() == f"{head[:12]}-dirty\n"
    shutil.copy(archive / "COMMIT", tmp_path)
    shutil.rmtree(tmp_path / ".git")
    assert header() == f'#define MP_CORE_COMMIT "{head[:12]}-dirty"\n'


def test_the_release_check_names_the_members_in_which_two_wheels_differ(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / ".ci")
    differences = importlib.import_module("release_check").differences

    def wheel(name, minute, members):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for member, text in members.items():
                archive.writestr(zipfile.ZipInfo(member, (2026, 11, 27, 12, minute, 0)), text)
        return tmp_path / name

    first = wheel("first", 39, {"a.py": "1", "b.so": "2"})
    assert differences(first, wheel("bytes", 39, {"a.py": "1", "b.so": "3"})) == ["bytes: 1 members, b.so"]
    assert differences(first, wheel("fewer", 39, {"a.py": "1"})) == ["in one wheel only: 1 members, b.so"]
    assert differences(first, wheel("order", 39, {"b.so": "2", "a.py": "1"})) == [
        "the same members in another order, or packed otherwise"
    ]
    members, moved = differences(first, wheel("later", 56, {"a.py": "1", "b.so": "2"}))
    assert members == "time: 2 members, a.py, b.so"
    assert "12, 39, 0) and (2026, 11, 27, 12, 56, 0): HEAD, whose time they have, moved" in moved
