"""Print a C header with the commit of this source tree. As a script of `meson dist`, write the commit to a file.

In a checkout, git knows the commit. A source archive has no git, and may be inside another project's checkout: it has
the file COMMIT, which `meson dist` wrote.
"""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def commit(root: Path) -> str:
    """Return the first 12 hexadecimal digits, with `-dirty` after them if a tracked file differs; or ``""``."""
    if (root / "COMMIT").exists():
        return (root / "COMMIT").read_text().strip()
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", root, "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or a checkout of another user
        return ""


if __name__ == "__main__":
    archive = os.environ.get("MESON_DIST_ROOT")
    if archive is None:
        print(f'#define MP_CORE_COMMIT "{commit(ROOT)}"')
    else:
        (Path(archive) / "COMMIT").write_text(commit(ROOT) + "\n")
