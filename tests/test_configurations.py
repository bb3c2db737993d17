"""The table of configurations keeps older results, and the page of a machine has the speeds of its best set."""

import importlib
from pathlib import Path

import pytest

import mp_core as mp

ROOT = Path(__file__).parents[1]
SEEN = "| old | GCC 1 | tests | passed | 2026-01-01 |\n"


@pytest.fixture
def configurations(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / ".ci")
    module = importlib.import_module("configurations")
    page = tmp_path / "page.md"
    page.write_text(f"before\n<!-- rows of .ci/configurations.py -->\n\n{module.HEAD}{SEEN}\nafter\n")
    monkeypatch.setattr(module, "PAGE", page)
    return module


def failing():
    raise AssertionError("the hashes differ")


def test_the_table_keeps_old_rows_and_says_what_was_not_to_be_had(configurations, monkeypatch, capsys):
    tried = {
        "old": "gcc-1",
        "absent": "gcc-2",
        "good": lambda: configurations.Found("GCC 3", "tests"),
        "bad": failing,
        "not chosen": failing,
    }
    monkeypatch.setattr(configurations, "configurations", lambda: tried)
    assert configurations.main(["old", "absent", "good", "bad"]) == 1
    text = configurations.PAGE.read_text()
    assert text.startswith("before\n") and text.endswith("\n\nafter\n") and "not chosen" not in text
    rows = text.partition(configurations.HEAD)[2].splitlines()
    assert rows[0] + "\n" == SEEN and rows[1] == "| absent | | | not tried: there was no `gcc-2` | |"
    assert rows[2].startswith("| good | GCC 3 | tests | passed | 20")
    assert rows[3].startswith("| bad |  |  | **failed** | 20")
    assert "the hashes differ" in capsys.readouterr().err


def test_every_row_of_the_page_is_a_configuration(configurations):
    table = configurations.TABLE.search((ROOT / "docs/platforms.md").read_text())[0]
    assert table.startswith(configurations.HEAD)
    named = [line.split(" | ")[0].strip("| ") for line in table.splitlines()[2:]]
    assert set(named) <= set(configurations.configurations())


def test_speeds_of_a_machine_are_those_of_its_best_set(monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "asv_bench/lab")
    page, before = importlib.import_module("verify_machine"), (mp.config.isa(), mp.config.is_reproducible())

    def hashes(isas, threads):
        mp.config.set_isa("scalar")
        return {}

    for name, function in {"hashes": hashes, "inexact": dict, "of_speed": lambda: [f"by {mp.config.isa()}"]}.items():
        monkeypatch.setattr(page, name, function)
    monkeypatch.setattr("sys.argv", ["verify_machine"])
    try:
        assert page.main() == 0
    finally:
        mp.config.set_isa(before[0])
        mp.config.set_reproducible(before[1])
    assert f"by {mp.config.available_isas()[0]}" in capsys.readouterr().out.splitlines()
