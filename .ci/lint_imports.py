"""Check that imports go down only: pyproject.toml's contract on the source tree, and its layers for Cython's files.

import-linter asks the import system for the package's location, and meson-python's editable finder answers with one
that exists only in memory, so this script removes that finder. import-linter reads only Python. The imports and
cimports of ``.pyx`` and ``.pxd`` files are checked here, against the layers of the same contract.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Also inside functions, over several lines, `import a, b`, and `from .. import (names)`: names may be modules.
IMPORTS = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+c?import[ \t]*(\([^)]*\)|[^\n]*)|c?import[ \t]+([^\n]*))", re.M
)
DYNAMIC = re.compile(r"""(?:import_module|__import__)\(\s*f?["']([\w.]+)""")


def layers(root: Path = ROOT) -> dict[str, tuple[int, str]]:
    """Return module -> (depth of its layer, 0 at the top; its name) for the modules that the contract names."""
    (contract,) = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return {
        name.strip(" ()"): (depth, name.strip(" ()"))
        for depth, row in enumerate(contract["layers"])
        for name in row.split("|")
    }


def imported(text: str) -> Iterator[str]:
    """Yield the modules of the package, and names in them, that the text of a Cython file imports or cimports."""
    for module, names, plain in IMPORTS.findall(re.sub(r"#[^\n]*", "", text)):
        parts = [part.split()[0] for part in re.split(r"[,()]", plain or names) if part.strip()]
        yield from parts if plain else [f"{module}.{part}" for part in parts]
    yield from DYNAMIC.findall(text)


def upward(path: Path, root: Path = ROOT) -> list[str]:
    """Return the imports of a Cython file that the contract forbids."""
    known = layers(root)

    def place(name: str) -> tuple[int, str] | None:
        found = ".".join(name.split(".")[:2])
        return known.get(found)

    own = place(".".join(path.relative_to(root).with_suffix("").parts))
    wrong = []
    for name in imported(path.read_text()):
        other = place(name)
        if name.startswith(".") or (other and own and other[1] != own[1] and other[0] <= own[0]):
            wrong.append(f"{path.relative_to(root)} imports {name}")
        elif name.startswith("mp_core") and not other:
            wrong.append(f"{path.relative_to(root)} imports {name}, which is in no layer")
    if own is None:
        wrong.append(f"{path.relative_to(root)} is in no layer")
    return wrong


def main() -> int:
    """Check both kinds of files; return the exit status."""
    from importlinter.cli import lint_imports

    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
    sys.path.insert(0, str(ROOT))
    files = sorted([*ROOT.glob("mp_core/**/*.pyx"), *ROOT.glob("mp_core/**/*.pxd")])
    wrong = [line for path in files for line in upward(path)]
    print(*wrong, f"{len(files)} Cython files, {len(wrong)} imports upward", sep="\n")
    return lint_imports(no_cache=True) or bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
