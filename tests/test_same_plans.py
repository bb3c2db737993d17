"""asv_bench/lab/same_plans.py finds the plans that differ between two builds, and no others."""

import importlib.util
import sys
from pathlib import Path

import processes
import pytest

SCRIPT = Path(__file__).parents[1] / "asv_bench" / "lab" / "same_plans.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="an installed package, without its sources")


def test_a_build_has_the_plans_of_itself():
    command = [sys.executable, SCRIPT, sys.executable, sys.executable, "--cpu", "zen4", "--caches", "32768", "1048576"]
    said = processes.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith("0 of ") and said.count("\n") == 1


def test_what_both_builds_say_is_compared():
    spec = importlib.util.spec_from_file_location("same_plans", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.differences({"mc": 6, "kc": 64, "wider": 0}, {"mc": 12, "kc": 64, "recoded": 1}) == ("mc",)
