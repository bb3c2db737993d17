"""Fragments of the changelog (changes/): what .ci/changes.py refuses, and how it joins them at a release."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("changes", ROOT / ".ci" / "changes.py")
changes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(changes)

PAGE = (
    f"# Changelog\n\n{changes.NEXT}\n## 0.1.0 (not yet released)\n\nFirst.\n\n### Numerics\n\nThe contract:\n\n- One.\n"
)
GOOD = "`cast` takes [more types](docs/numerics.md): `<a> | # b`.\n"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "changes").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/numerics.md").touch()
    (tmp_path / "changes/README.md").write_text("# How\n")
    (tmp_path / "CHANGELOG.md").write_text(PAGE)
    return tmp_path


def test_the_fragments_of_this_tree_keep_the_rules():
    assert [*changes.wrong(ROOT)] == []
    assert changes.NEXT in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_lists_the_kinds_and_its_example_keeps_the_rules(root):
    page = (ROOT / "changes/README.md").read_text()
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")] == [*changes.KINDS]
    name = page.split("For example `changes/")[1].split("`")[0]
    (root / "changes" / name).write_text(page.split("```text\n")[1].split("```")[0])
    assert [*changes.wrong(root)] == []


@pytest.mark.parametrize("kind", changes.KINDS)
def test_a_good_fragment_passes(root, kind):
    (root / f"changes/more-types.{kind}.md").write_text(GOOD)
    assert [*changes.wrong(root)] == []


@pytest.mark.parametrize(
    "name", ["cast.md", "cast.new.md", "Cast.added.md", "a b.added.md", "cast.added.txt", ".added.md"]
)
def test_a_wrong_name_or_kind_is_found(root, name):
    (root / "changes" / name).write_text(GOOD)
    (line,) = changes.wrong(root)
    assert line.startswith(f"changes/{name}: a name is") and "numerics" in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "one paragraph"),
        ("small letters begin it.\n", "one paragraph"),
        ("No full stop\n", "one paragraph"),
        ("No line end.", "one paragraph"),
        ("Two.\n\nParagraphs.\n", "one paragraph"),
        ("Space. \nAt an end.\n", ":1: at most 120 columns"),
        ("Word " * 30 + "word.\n", ":1: at most 120 columns"),
        ("Lines of words.\n" * 40, "640 characters, allowed are 600"),
        ("A list:\n- one.\n", "plain text"),
        ("A heading:\n## One.\n", "plain text"),
        ("A table:\n| one |.\n", "plain text"),
        ("A block:\n```\nx.\n", "plain text"),
        ("HTML <b>here</b>.\n", "plain text"),
        ("An image ![a](docs/numerics.md).\n", "plain text"),
        ("A [link](docs/gone.md#here).\n", "nothing at docs/gone.md"),
        ("A [link](CHANGELOG.md) that the pages cannot follow.\n", "nothing at CHANGELOG.md"),
    ],
)
def test_a_wrong_text_is_found(root, text, words):
    (root / "changes/cast.fixed.md").write_text(text)
    (line,) = changes.wrong(root)
    assert line.startswith("changes/cast.fixed.md:") and words in line


def test_a_release_joins_the_fragments_into_a_new_section(root):
    (root / "changes/b.fixed.md").write_text("Two " + "words " * 24 + "words\nand more.\n")
    (root / "changes/a.fixed.md").write_text("One.\n")
    (root / "changes/c.numerics.md").write_text("Bits.\n")
    changes.join(root, "0.2.0", "2027-02-01")
    assert [path.name for path in (root / "changes").iterdir()] == ["README.md"]
    two = "- Two " + "words " * 18 + "words\n  " + "words " * 6 + "and more.\n"
    section = f"## 0.2.0 (2027-02-01)\n\n### Fixed\n\n- One.\n{two}\n### Numerics\n\n- Bits.\n\n## 0.1.0"
    assert (root / "CHANGELOG.md").read_text() == PAGE.replace("## 0.1.0", section)


def test_the_first_release_gets_its_date_and_the_fragments_that_came_after_its_text():
    entries = {"numerics": ["Two.\n"], "added": ["More.\n"]}
    page = changes.joined(PAGE, "0.1.0", "2026-12-24", entries)
    expected = PAGE.replace("not yet released", "2026-12-24") + "- Two.\n\n### Added\n\n- More.\n"
    assert page == expected
    again = changes.joined(page, "0.2.0", "2027-02-01", {"added": ["Later.\n"]})
    assert again.replace("## 0.2.0 (2027-02-01)\n\n### Added\n\n- Later.\n\n", "") == page


def test_a_wrong_call_changes_nothing(root, monkeypatch, capsys):
    monkeypatch.setattr(changes, "ROOT", root)
    (root / "changes/a.fixed.md").write_text("One.\n")
    assert changes.main(["join", "0.2.0", "tomorrow"]) == 2 and "usage" in capsys.readouterr().err
    assert changes.main([]) == 0
    (root / "changes/b.fixed.md").write_text("Two\n")
    assert changes.main(["join", "0.2.0", "2027-02-01"]) == 1 and "b.fixed.md" in capsys.readouterr().out
    assert (root / "CHANGELOG.md").read_text() == PAGE and (root / "changes/a.fixed.md").exists()
