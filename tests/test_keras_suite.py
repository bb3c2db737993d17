"""The command that runs Keras' own tests: each verdict, on a folder of four tests."""

import sys
from pathlib import Path

import processes
import pytest

TESTS = """
import numpy as np
from keras.src import backend, layers, losses, testing
from keras.src.losses.losses import MeanSquaredError


class SuiteTest(testing.TestCase):
    def test_passes(self):
        self.assertAllClose(MeanSquaredError()(np.ones(3), np.zeros(3)), 1.0)
        self.assertEqual(layers.Dense(2)(backend.KerasTensor((None, 3))).shape, (None, 2))

    def test_is_out_of_scope(self):
        layers.StringLookup(vocabulary=["a"])

    def test_words(self):
        with self.assertRaisesRegex(ValueError, "words of Keras"):
            losses.get("no loss")

    {}
"""
HELPERS = """
import unittest
import numpy as np

class TestCase(unittest.TestCase):
    def assertAllClose(self, actual, desired):
        np.testing.assert_allclose(actual, desired)
"""


def run(folder, *tests):
    source = folder / "keras/src/losses"
    source.mkdir(parents=True, exist_ok=True)
    (source.parent / "testing").mkdir(exist_ok=True)
    for package in (source.parents[1], source.parent, source):
        (package / "__init__.py").touch()
    (source / "losses_test.py").write_text(TESTS.format("\n    ".join(tests)))
    (source.parent / "testing/__init__.py").write_text("from keras.src.testing.test_case import TestCase\n")
    (source.parent / "testing/test_case.py").write_text(HELPERS)
    command = [sys.executable, "-m", "keras_suite", str(folder), "--only", "losses"]
    return processes.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)


def test_each_verdict_is_counted(tmp_path):
    ended = run(tmp_path)
    assert "1 passed, 1 documented, 1 out of scope, 0 skipped by Keras, 0 failed" in ended.stdout
    assert "1 keras.layers.StringLookup" in ended.stdout and ended.returncode == 0


@pytest.mark.parametrize(
    "test", ["def test_wrong(self): self.assertEqual(1, 2)", "def test_hidden(self): layers.Dense(2).no_such_method()"]
)
def test_a_wrong_value_fails_the_command(tmp_path, test):
    ended = run(tmp_path, test)
    assert "1 failed" in ended.stdout.splitlines()[-1] and ended.returncode == 1


def test_a_folder_that_is_no_keras_is_refused(tmp_path):
    command = [sys.executable, "-m", "keras_suite", str(tmp_path)]
    ended = processes.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    assert ended.returncode == 2 and "has no keras/src" in ended.stderr
