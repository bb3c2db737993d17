"""Get the sources of revisions, and build them for the instruction set in use.

All builds are made one after another in one folder. Only files that differ are written there, so that ninja compiles
only these, and both sides of a comparison come from one compiler with one set of flags.
"""

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

import mp_core as mp

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "asv_bench/.asv/trees"
BUILD = "build/trees"  # as deep as build/editable, so that ccache finds the files compiled there
KEPT = 12  # builds; the least recently used are deleted
NEEDED = ("mp_core", "meson.build", "meson.options", "pyproject.toml", "README.md", "LICENSE", ".ci/commit.py")

Sources = dict[str, bytes]  # path -> content


class Edit(NamedTuple):
    """Text that occurs once in a source file, and its replacement."""

    path: str
    old: str
    new: str


def git(*arguments: str) -> bytes:
    return subprocess.check_output(("git", "-C", str(ROOT), *arguments))


def sources(revision: str | None = None) -> Sources:
    """Return the sources of a revision; without one, those of the working tree."""
    if revision is None:
        names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *NEEDED).decode().split("\0")
        return {name: (ROOT / name).read_bytes() for name in names if name and (ROOT / name).is_file()}
    present = git("ls-tree", "--name-only", revision, "--", *NEEDED).decode().split()
    with tarfile.open(fileobj=io.BytesIO(git("archive", revision, "--", *present))) as archive:
        return {file.name: archive.extractfile(file).read() for file in archive if file.isfile()}


def edited(files: Sources, edits: tuple[Edit, ...]) -> Sources:
    """Return the sources with the edits made."""
    files = dict(files)
    for edit in edits:
        text = files[edit.path].decode()
        if text.count(edit.old) != 1:
            raise ValueError(f"{edit.path} holds {text.count(edit.old)} times, not once: {edit.old}")
        files[edit.path] = text.replace(edit.old, edit.new).encode()
    return files


def build(files: Sources) -> Path:
    """Return a folder with mp_core built from the sources; an existing build is reused."""
    key = hashlib.sha256(mp.config.isa().encode())
    for name in sorted(files):
        key.update(f"{name} {len(files[name])} ".encode() + files[name])
    target = FOLDER / "builds" / key.hexdigest()[:16]
    if not target.exists():
        install(files, FOLDER / "sources", target)
    target.touch()
    for old in sorted(target.parent.iterdir(), key=lambda folder: folder.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old)
    return target


def install(files: Sources, tree: Path, target: Path, *options: str) -> None:
    """Build the sources in the folder `tree`, with these options of meson, and put mp_core into the folder `target`."""
    lay(files, tree)
    sets = ",".join(compiled_sets(mp.config.isa()))
    if "meson.options" in files:  # revisions without this option build all sets
        options = (f"-Disas={sets}", *options)
    again = ["--reconfigure"] if (tree / BUILD / "build.ninja").exists() else []
    run(tree, "meson", "setup", BUILD, "--buildtype=release", "-Db_ndebug=if-release", *options, *again)
    staged = tree / "installed"
    shutil.rmtree(staged, ignore_errors=True)
    run(tree, "meson", "install", "-C", BUILD, "--destdir", str(staged))
    target.mkdir(parents=True)
    next(staged.rglob("mp_core/__init__.py")).parent.rename(target / "mp_core")


def lay(files: Sources, tree: Path) -> None:
    """Write these sources into the folder; leave equal files alone."""
    for name in NEEDED:
        for path in [tree / name, *(tree / name).rglob("*")]:
            if path.is_file() and str(path.relative_to(tree)) not in files:
                path.unlink()
    for name, content in files.items():
        path = tree / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def compiled_sets(isa: str) -> list[str]:
    """Return the sets whose kernels an instruction set uses: those that its row of isa.def names."""
    row = re.search(rf"^MP_ISA\({isa},.*$", (ROOT / "mp_core/core/kernels/isa.def").read_text(), re.MULTILINE)[0]
    flags = (ROOT / "mp_core/meson.build").read_text()
    return sorted({name for name in re.findall(r"\w+", row) if f"'{name}':" in flags})


def run(tree: Path, *command: str) -> None:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        command, cwd=tree, env=os.environ | {"PATH": path}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise SystemExit(done.stdout[-3000:])
