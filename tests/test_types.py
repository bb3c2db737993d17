"""Type checkers see the types of mp_core from an empty folder, and report names that do not exist."""

import ast
import importlib
import re
import shutil
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import processes
import pytest

import mp_core as mp

pytest.importorskip("mypy")
USER = Path(__file__).with_name("data") / "typed_user.py"


def errors(python, folder):
    """Return what mypy says of the user's file for an interpreter; comments say which errors there must be."""
    shutil.copy(USER, folder / "user.py")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), "user.py"]
    run = processes.run([*command, "--python-executable", python], cwd=folder, capture_output=True, text=True)
    return re.sub(r"^Success.*\n", "", run.stdout) + run.stderr


@pytest.mark.slow
def test_types_are_seen_where_this_installation_is(tmp_path):
    """Of an editable installation too: .ci/editable_types.py makes it so, which `make demo` runs."""
    assert errors(sys.executable, tmp_path) == ""


@pytest.mark.slow
def test_types_are_seen_of_a_wheel(wheel, tmp_path):
    site = tmp_path / "venv" / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    venv.create(tmp_path / "venv")
    zipfile.ZipFile(wheel).extractall(site)
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")  # NumPy; mypy reads no .pth file in there
    assert errors(tmp_path / "venv" / "bin" / "python", tmp_path) == ""


def test_names_that_python_imports_late_are_known_to_type_checkers():
    """The stub, which .ci/stub.py writes, has the names of the tables."""
    stub = ast.parse(Path(mp.__file__).with_suffix(".pyi").read_text()).body
    names = [alias.name for statement in stub if isinstance(statement, ast.ImportFrom) for alias in statement.names]
    assert sorted(names) == sorted([*mp._MODULES, *mp._UNLISTED, *mp._HOMES])


FACES = [path.stem for path in Path(mp.__file__).parent.glob("*.py") if "import * " in path.read_text()]


@pytest.mark.parametrize("name", FACES)
def test_a_module_of_public_names_has_all_names_of_its_home(name):
    face = importlib.import_module(f"mp_core.{name}")  # `demo` is no attribute of mp_core
    home = sys.modules[re.search(r"from (mp_core\.\S+) import \*", Path(face.__file__).read_text())[1]]
    assert face.__all__ is home.__all__ and len(FACES) > 15
    assert face.__doc__ is home.__doc__  # which help() shows
    assert all(getattr(face, each) is getattr(home, each) for each in home.__all__)


def test_schedules_can_be_imported_as_from_keras():
    code = "from mp_core.optimizers.schedules import CosineDecay as a; import mp_core as mp; "
    code += "print(a is mp.optimizers.schedules.CosineDecay)"
    done = processes.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize("name", ["", *(name for name in mp.__all__ if isinstance(getattr(mp, name), ModuleType))])
def test_completion_offers_public_names_only(name):
    module = getattr(mp, name) if name else mp
    assert dir(module) == sorted(module.__all__)


def test_help_begins_with_the_public_names():
    words = set(re.findall(r"\w+", mp.__doc__.partition("public names")[2]))
    assert not set(mp.__all__) - words
