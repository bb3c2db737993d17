"""Run Keras' test files: `python -m keras_suite FOLDER [--only NAMES] [PYTEST ARGUMENTS]`."""

import argparse
import resource
import sys
from pathlib import Path

import pytest

from keras_suite.report import Report

PARTS = ("losses", "metrics", "optimizers", "callbacks", "layers", "models", "saving", "trainers")
"""The folders of Keras that are run."""
PYTEST = (
    "-q", "--no-header", "-c", "/dev/null", "-p", "no:cacheprovider", "-W", "ignore", "--tb=no", "--show-capture=no",
    "-rN", "-o", "python_files=*_test.py", "--continue-on-collection-errors",
)  # fmt: skip
"""Arguments of pytest: neither its settings here nor those of the folder count."""
MEMORY = 8 << 30
"""Bytes of address space: a test that asks for more fails."""


def main(arguments: list[str]) -> int:
    """Run the tests and print the report; return 0 if each passed, or is out of scope for a stated reason."""
    parser = argparse.ArgumentParser(prog="keras_suite", description=__doc__)
    parser.add_argument("folder", type=Path, help="a checkout of Keras, or its unpacked source archive")
    parser.add_argument("--only", nargs="+", default=PARTS, help=f"parts of it: {', '.join(PARTS)}, or files")
    options, rest = parser.parse_known_args(arguments)
    source = options.folder.resolve() / "keras/src"
    if not source.is_dir():
        parser.error(f"{options.folder} has no keras/src: name a checkout of Keras or its unpacked source archive")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    files = [str(source / part) for part in options.only]
    report = Report(options.folder.resolve())
    pytest.main(
        [*PYTEST, "--rootdir", str(options.folder), "--confcutdir", str(source), *rest, *files], plugins=[report]
    )
    return report.print()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
