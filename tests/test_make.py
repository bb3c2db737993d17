"""The Makefile lists its commands, and prints its progress."""

import importlib.util
import re
from pathlib import Path

import processes

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("install", ROOT / ".ci" / "install.py")
install = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(install)

PRINTED = """
Collecting torch==2.13.0
  Downloading torch-2.13.0-cp311.whl.metadata (30 kB)
Downloading https://example.org/a/torch-2.13.0-cp311.whl (180.1 MB)
  Found ninja-1.13 at ninja
  [1/40] Compiling C object a.o
  [2/40] Compiling C object b.o
  [4/40] Compiling C object c.o
  [39/40] Linking target d
  [40/40] Linking target e
  [1/1] Generating commit.h
Installing collected packages: torch, mp-core
"""


def make(*arguments):
    run = processes.run(["make", "--no-print-directory", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_make_alone_lists_the_commands_and_all_of_them():
    told = make()
    assert told == make("help")
    phony = re.search(r"^\.PHONY: (.*?[^\\])\n", (ROOT / "Makefile").read_text(), re.M | re.S)[1]
    targets = set(phony.replace("\\\n", "").split()) - {"help"}
    assert {name for name in targets if not re.search(rf"(?<![\w-]){name}(?![\w-])", told)} == set()
    assert set(re.findall(r"^make ([\w-]+)", told, re.M)) <= targets
    assert max(map(len, told.splitlines())) <= 80


def test_an_installation_tells_downloads_and_how_far_the_compiler_is():
    log = []
    assert list(install.steps(PRINTED.splitlines(keepends=True), log)) == [
        "downloading torch-2.13.0 (180.1 MB)",
        "compiling: 1 of 40",
        "compiling: 4 of 40",
        "compiling: 39 of 40",
        "compiling: 40 of 40",
        "installing torch, mp-core",
    ]
    assert "".join(log) == PRINTED


def test_a_failed_installation_prints_all_and_returns_the_status(capfd):
    assert install.main(["--no-index", "--find-links", "/nowhere", "mp-core-nowhere"]) == 1
    assert "No matching distribution found for mp-core-nowhere" in capfd.readouterr().err


def test_pages_and_style_need_no_framework():
    for extra in ("docs", "lint"):
        names = {re.match(r"[\w-]+", package)[0] for package in install.packages(extra)}
        assert "numpy" in names and not names & {"torch", "jax", "keras", "mp-core"}
    assert "torch==2.13.0" in install.packages("test") and "tokenizers>=0.20" in install.packages("test")
