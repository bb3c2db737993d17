"""Every allocation of the C library, and every call on a file, fails once: an error, no crash, nothing half written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import processes
import pytest

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """The library that lets calls fail, which a process loads before all others."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or not compiler or "LD_PRELOAD" in os.environ:
        pytest.skip("needs Linux, a C compiler and no other library loaded first")
    path = tmp_path_factory.mktemp("faults") / "faults.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", path, TESTS / "c/faults.c", "-ldl"]
    if processes.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the GNU C library")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "least"), [(["memory"], 30), (["files", "211"], 50)], ids=["memory", "files"])
def test_what_fails_once_is_told_and_leaves_nothing_behind(kind, least, faults, tmp_path):
    name, *every = kind
    environment = os.environ | {"LD_PRELOAD": str(faults)}
    done = processes.run(
        [sys.executable, TESTS / "faulty.py", name, tmp_path, *every],
        env=environment, cwd=TESTS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        timeout=processes.LONG,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(done.stdout.split()[-1]) >= least, done.stdout
