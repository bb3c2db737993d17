"""Show type checkers and editors the sources of an editable installation. Run it with the Python of the installation.

Python finds an editable package of meson-python by a hook. mypy and pyright do not call the hook; they read the folders
in .pth files. So this script writes a .pth file with a folder that has only a link to mp_core: no other folder of the
repository can be imported from it. At run time the hook is asked first.
"""

import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Write the link and the .pth file."""
    folder = Path(sys.prefix, "typed")
    folder.mkdir(exist_ok=True)
    link = folder / "mp_core"
    link.unlink(missing_ok=True)
    link.symlink_to(ROOT / "mp_core")
    Path(sysconfig.get_path("purelib"), "mp_core_types.pth").write_text(f"{folder}\n")


if __name__ == "__main__":
    main()
