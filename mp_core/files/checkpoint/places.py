"""Check names of files that come from another file, such as an index: they must stay in the folder of that file.

The file may be hostile, so each name is checked before anything is read, written or removed. The rule is the same on
every system: a name that one system rejects is rejected on all.
"""

import os
import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

__all__ = ["is_inside", "is_plain", "leads_out", "path_in"]

_HALF = re.compile("[\ud800-\udfff]")  # half of a surrogate pair, which JSON can escape; no system allows it in names


def is_plain(name: Any) -> bool:
    """Return whether a value is the name of a file, without folders."""
    return is_inside(name) and "/" not in name and name not in ("", ".")


def is_inside(name: Any) -> bool:
    """Return whether a value is a relative path without ".."; "" is the folder itself."""
    return (
        isinstance(name, str)
        and not {"\0", "\\"}.intersection(name)
        and not _HALF.search(name)
        and not PureWindowsPath(name).drive
        and not PurePosixPath(name).is_absolute()
        and ".." not in name.split("/")
    )


def leads_out(path: Path, folder: Path) -> bool:
    """Return whether links lead from a path to outside of the folder; a snapshot of the Hub includes its blobs."""
    root, end = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    snapshots = (place for place in (root, *root.parents) if place.parent.name == "snapshots")
    return not any(end.is_relative_to(place) for place in (root, *(place.parents[1] / "blobs" for place in snapshots)))


def path_in(folder: Path, name: Any, what: str) -> Path:
    """Return the path of a file in a folder; if it leads out, raise a ValueError that begins with `what`."""
    if not is_inside(name) or not PurePosixPath(name).name:
        raise ValueError(f"{what} names the file {name!r}; expected a name in its own folder")
    path = folder / str(name)
    if leads_out(path, folder):
        raise ValueError(f"{what} names the file {name!r}, a link that leads out of {folder}")
    return path
