"""Five of Keras' beginner examples, rewritten: with other import lines and no other change, they run."""

import importlib.util
import os
import re
import sys
from pathlib import Path

import processes
import pytest

EXAMPLES = sorted(Path(__file__).with_name("beginner").glob("*.py"))


def changed(text):
    """Return a script with its imports of Keras replaced by those of mp_core."""
    text = re.sub(r"^import keras$", "import mp_core as keras", text, flags=re.MULTILINE)
    return re.sub(r"^from keras import ", "from mp_core import ", text, flags=re.MULTILINE)


def run(text, folder):
    command = [sys.executable, "-W", "ignore", "-c", text]
    environment = os.environ | {"KERAS_BACKEND": "jax"}
    done = processes.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "SCORE" in done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_with_mp_core(path, tmp_path):
    text = path.read_text()
    assert sum(a != b for a, b in zip(text.split("\n"), changed(text).split("\n"), strict=True)) == 2
    run(changed(text), tmp_path)


@pytest.mark.slow
def test_the_examples_are_those_of_keras(tmp_path):
    if importlib.util.find_spec("keras") is None or importlib.util.find_spec("jax") is None:
        pytest.skip("Keras or JAX is not installed")
    run("\n".join(path.read_text() for path in EXAMPLES), tmp_path)
