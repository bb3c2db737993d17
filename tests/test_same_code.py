"""asv_bench/lab/same_code.py names the functions whose machine code differs, and no others."""

import shutil
import sys
from pathlib import Path

import processes
import pytest

SCRIPT = Path(__file__).parents[1] / "asv_bench" / "lab" / "same_code.py"
SOURCE = """
int first(int x) { %s return x * 3; }
int second(const int *x) { return x[0] + x[1]; }
int third(int x) { return first(x) + 5; }
"""


@pytest.mark.skipif(not shutil.which("objdump") or not shutil.which("gcc"), reason="needs gcc and objdump")
def test_only_what_changed_is_named(tmp_path):
    for build, more in (("old", ""), ("same", ""), ("new", "if (x > 7) return second(&x - 1);")):
        folder = tmp_path / build / "libmp_kernels_avx2.a.p"
        folder.mkdir(parents=True)
        (folder / "rows.c").write_text("int second(const int *x);\n" + SOURCE % more)
        command = ["gcc", "-O1", "-fno-inline", "-c", "rows.c", "-o", "core_kernels_rows_rows.c.o"]
        processes.run(command, cwd=folder, check=True)
    for build, expected in (("same", "none"), ("new", "first")):
        command = [sys.executable, SCRIPT, tmp_path / "old", tmp_path / build]
        said = processes.run(command, capture_output=True, text=True, check=True).stdout
        assert said == f"avx2 rows: 3 functions; other code: {expected}\n"
