"""Show type checkers and editors where an editable installation has its sources: run it by the Python of that one.

Python finds an editable package of meson-python by a hook, which mypy and pyright do not call: they read the folders
that .pth files name. This names one that holds nothing but a link to mp_core, so that no other folder of the
repository can be imported from it. At run time the hook comes first.
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
