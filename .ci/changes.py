"""Check the fragments of the changelog, or join them: `.ci/changes.py [join VERSION DATE]`.

A fragment is a file `changes/<name>.<kind>.md` of one paragraph; changes/README.md describes it. `join` moves all of
them into the section of that version in CHANGELOG.md.
"""

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = ("added", "changed", "fixed", "speed", "numerics", "security")
COLUMNS, CHARACTERS = 120, 600
NAME = re.compile(rf"[a-z0-9][a-z0-9-]*\.({'|'.join(KINDS)})\.md")
MARKUP = re.compile(r"^\s*(#|[-*+] |\d+\. |>|\||```|~~~)|<[!/a-z]|!\[", re.M)
LINK = re.compile(r"\]\((?!https?://)([^)#\s]+)[^)]*\)")
NEXT = "<!-- The next version is inserted here. -->\n"


def fragments(root: Path) -> list[Path]:
    """Return the files of changes/ except its README, sorted by name."""
    return sorted(path for path in (root / "changes").iterdir() if path.name != "README.md")


def wrong(root: Path) -> Iterator[str]:
    """Yield a line for everything that a fragment does against changes/README.md."""
    for path in fragments(root):
        place = f"changes/{path.name}"
        if not NAME.fullmatch(path.name):
            yield f"{place}: a name is <words-with-hyphens>.<kind>.md; kinds: {', '.join(KINDS)}"
            continue
        text = path.read_text()
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > COLUMNS or line != line.rstrip():
                yield f"{place}:{number}: at most {COLUMNS} columns, and no space at the end"
        if len(text) > CHARACTERS:
            yield f"{place}: {len(text)} characters, allowed are {CHARACTERS}"
        if not re.match(r"[A-Z`*\[]", text) or not text.endswith(".\n") or "\n\n" in text:
            yield f"{place}: one paragraph of whole sentences, with a full stop and one line end after it"
        if MARKUP.search(re.sub(r"`[^`\n]*`", "``", text)):
            yield f"{place}: plain text, links, code in backticks; no headings, lists, tables, blocks, HTML, images"
        for target in LINK.findall(text):
            if not (target.startswith("docs/") and (root / target).exists()):
                yield f"{place}: nothing at {target}; links are https://... or a file in docs/, as docs/numerics.md"


def joined(changelog: str, version: str, date: str, entries: dict[str, list[str]]) -> str:
    """Return the changelog with kind -> texts of entries in the section of a version, which gets this date."""
    heading = rf"^## {re.escape(version)} \(.*\)\n"
    if not re.search(heading, changelog, re.M):
        changelog = changelog.replace(NEXT, f"{NEXT}\n## {version} ()\n")
    before, _, rest = re.split(f"({heading})", changelog, maxsplit=1, flags=re.M)
    section, following = re.fullmatch(r"(.*?)((?:^## .*)?)", rest, re.M | re.S).groups()
    intro, *parts = re.split(r"^### (.*)\n", section, flags=re.M)
    bodies = {title: body.strip() for title, body in zip(parts[::2], parts[1::2], strict=True)}
    wrap = textwrap.TextWrapper(COLUMNS, "- ", "  ", break_long_words=False, break_on_hyphens=False)
    for kind in KINDS:
        if items := "\n".join(map(wrap.fill, entries.get(kind, []))):
            title = kind.capitalize()
            bodies[title] = f"{bodies[title]}\n{items}" if title in bodies else items
    blocks = [f"## {version} ({date})", intro.strip(), *(f"### {title}\n\n{body}" for title, body in bodies.items())]
    return before + "\n\n".join([block for block in (*blocks, following.rstrip()) if block]) + "\n"


def join(root: Path, version: str, date: str) -> None:
    """Move all fragments into CHANGELOG.md."""
    entries: dict[str, list[str]] = {}
    for path in fragments(root):
        entries.setdefault(path.name.split(".")[1], []).append(path.read_text())
    page = root / "CHANGELOG.md"
    page.write_text(joined(page.read_text(), version, date, entries))
    for path in fragments(root):
        path.unlink()


def main(arguments: list[str]) -> int:
    """Print what is wrong, or join the fragments; return the exit status."""
    found = [*wrong(ROOT)]
    print(*found, sep="\n", end="\n" if found else "")
    if found or not arguments:
        return bool(found)
    if len(arguments) != 3 or arguments[0] != "join" or not re.fullmatch(r"\d{4}-\d\d-\d\d", arguments[2]):
        print("usage: .ci/changes.py [join VERSION YYYY-MM-DD]", file=sys.stderr)
        return 2
    join(ROOT, *arguments[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
