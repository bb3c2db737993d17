"""Write or check mp_core/__init__.pyi, from which type checkers read the public names.

``mp_core/__init__.py`` imports public names at their first use, with tables that a type checker cannot follow. Without
arguments, check that the stub has the names of these tables; ``--write`` writes it.
"""

import runpy
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "mp_core"


def stub(path: Path = PACKAGE / "__init__.py") -> str:
    """Return the text of the stub; ``__init__.py`` itself imports no compiled module."""
    tables = runpy.run_path(str(path))
    names = {"mp_core": [*tables["_MODULES"], *tables["_UNLISTED"]]}
    names |= {f"mp_core.{home}": said.split() for home, said in tables["_NAMES"].items()}
    lines = [f"from {home} import {name} as {name}" for home in sorted(names) for name in sorted(names[home])]
    return "\n".join(["# Written by .ci/stub.py.", *lines, "", "def get_include() -> str: ...", ""])


def main() -> int:
    """Write the stub, or return 1 if the existing one has other names."""
    path = PACKAGE / "__init__.pyi"
    if "--write" in sys.argv:
        path.write_text(stub())
    elif path.read_text() != stub():
        print("mp_core/__init__.pyi has other names than mp_core/__init__.py: run python .ci/stub.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
