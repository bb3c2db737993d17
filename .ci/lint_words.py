"""Check columns, words and subjects of commits, as CONTRIBUTING.md states them.

Lines of source files have at most 120 columns. Words that docs/glossary.md bans must not appear in prose or names of
mp_core; three of them are banned only in the core. Subjects of commits have at most 72 characters.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS, SUBJECT = 120, 72
SOURCES = {".c", ".h", ".def", ".inc", ".pyx", ".pxd", ".py", ".pyi", ".build"}
BY_RUFF = (".py", ".pyi")  # ruff checks their columns
CORE = ("mp_core/core/", "mp_core/arrays/products/", "mp_core/arrays/quantization/")
BANNED_IN_CORE = {"chain", "finish", "direct"}  # elsewhere they name other things: itertools.chain, the end of a job
SINCE = "85d9ce5"  # 194 earlier commits have longer subjects
PHRASES = {"but for": "except"}  # in addition to the words of the glossary
ELSEWHERE = {"atomic_fetch", "prefetch"}  # allowed names: of C11 and of the glossary


def banned(glossary: str) -> dict[str, str]:
    """Return word -> its replacement, from the rows of the glossary with backticks."""
    rows = re.findall(r"^\| `([^`|]+)` \| (.+?) \|$", glossary.split("## Words that are not used")[1], re.M)
    return PHRASES | {word: instead for words, instead in rows for word in words.split(", ")}


def words_of(line: str) -> str:
    """Return a line in lower case with names split into words: `isFar`, `is_far` and `MP_FAR` have the word far."""
    for name in ELSEWHERE:
        line = line.replace(name, "")
    return re.sub(r"[_\W]+", " ", re.sub(r"([a-z])([A-Z])", r"\1 \2", line)).lower()


def in_file(name: str, text: str, words: dict[str, str]) -> Iterator[str]:
    """Yield a line for each error in a file."""
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > COLUMNS and not name.endswith(BY_RUFF):
            yield f"{name}:{number}: {len(line)} columns, allowed are {COLUMNS}"
        if not name.startswith("mp_core/"):
            continue
        said = f" {words_of(line)} "
        for word, instead in words.items():
            if f" {word} " in said and (name.startswith(CORE) or word not in BANNED_IN_CORE):
                yield f"{name}:{number}: `{word}`; the glossary says {instead}"


def in_commits(subjects: str) -> Iterator[str]:
    """Yield subjects that are too long."""
    for line in subjects.splitlines():
        if len(line) > SUBJECT:
            yield f"{line}: {len(line)} characters, allowed are {SUBJECT}"


def git(*arguments: str) -> str:
    """Return the output of a git command; an empty string if it fails, as in a shallow clone."""
    return subprocess.run(("git", "-C", str(ROOT), *arguments), capture_output=True, text=True, check=False).stdout


def main() -> int:
    """Print all errors; return the exit status."""
    words = banned((ROOT / "docs/glossary.md").read_text())
    paths = [ROOT / name for name in git("ls-files").splitlines() if Path(name).suffix in SOURCES]
    found = [
        line
        for path in paths
        if path.is_file()
        for line in in_file(str(path.relative_to(ROOT)), path.read_text(), words)
    ]
    found += in_commits(git("log", "--format=%s", f"{SINCE}..HEAD"))
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
