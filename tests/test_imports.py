"""Imports go down only, in Cython's files too: .ci/lint_imports.py finds those that do not."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("lint_imports", ROOT / ".ci" / "lint_imports.py")
lint_imports = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lint_imports)


def test_no_cython_file_imports_upward():
    files = [*ROOT.glob("mp_core/**/*.pyx"), *ROOT.glob("mp_core/**/*.pxd")]
    assert len(files) > 10
    assert not [line for path in files for line in lint_imports.upward(path)]


@pytest.mark.parametrize(
    "line",
    [
        "from mp_core.ops import matmul",
        "from mp_core.products.panels cimport Panels",
        "cimport mp_core.products.panels",
        "import math, mp_core.quantization as q",
        "def f():\n    from mp_core.arrays.casting import cast\n",
        'import_module("mp_core.ops")',
        "from mp_core import (\n    dtypes,\n    ops,\n)",
        "from mp_core import surprise",
    ],
)
def test_the_check_finds_an_upward_import(tmp_path, line):
    (tmp_path / "mp_core" / "core").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    path = tmp_path / "mp_core" / "core" / "hook.pyx"
    allowed = "from mp_core.core.header cimport (\n    MP_F32,  # a comment\n    MP_I8,\n)\nimport numpy as np\n"
    path.write_text(allowed)
    assert not lint_imports.upward(path, tmp_path)
    path.write_text(allowed + line)
    assert lint_imports.upward(path, tmp_path)
