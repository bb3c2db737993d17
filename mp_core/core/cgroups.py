"""The CPU quota of this process on Linux: the smallest quota of its control groups and their parents."""

import math
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["cpu_quota"]


def cpu_quota(process: Path = Path("/proc/self")) -> float:
    """Return the CPU quota of a process, in CPUs; infinity if there is no limit, or there are no control groups.

    Parameters
    ----------
    process : Path
        The folder of the process in ``/proc``. Its files ``cgroup`` and ``mountinfo`` locate its control groups.

    Examples
    --------
    >>> cpu_quota() > 0
    True
    """
    try:
        return min(map(_quota, _folders(process)), default=math.inf)
    except ValueError:  # the files do not have Linux' format
        return math.inf


def _folders(process: Path) -> Iterator[Path]:
    """Yield the folders of the groups of a process, and of all their visible parents."""
    groups = dict(_groups(process / "cgroup"))
    for kind, root, mounted in _mounts(process / "mountinfo"):
        group = groups.get(kind)
        if group is None:
            continue
        # In a container the mounted root may be the group itself, and the group's path may not be below that root.
        inside = group.relative_to(root) if group.is_relative_to(root) and ".." not in group.parts else PurePosixPath()
        yield from (mounted / level for level in (inside, *inside.parents))


def _groups(file: Path) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield (hierarchy that may have a quota, ``cgroup2`` or ``cgroup``; path of the group in it)."""
    for line in _lines(file):  # such as 0::/system.slice/x.service or 4:cpu,cpuacct:/docker/1f
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            yield "cgroup" if controllers else "cgroup2", PurePosixPath(path)


def _mounts(file: Path) -> Iterator[tuple[str, PurePosixPath, Path]]:
    """Yield the mounts of the hierarchies of :func:`_groups`: (type, mounted group, folder)."""
    for line in _lines(file):  # 31 23 0:28 /docker/1f /sys/fs/cgroup/cpu rw,nosuid master:9 - cgroup cgroup rw,cpu
        before, _, after = line.partition(" - ")
        root, mounted = (
            re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), x) for x in before.split(" ")[3:5]
        )
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(",")):
            yield kind, PurePosixPath(root), Path(mounted)


def _quota(folder: Path) -> float:
    """Return the quota of one group, in CPUs; infinity if it has none."""
    of_version_1 = (folder / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
    found = " ".join(_lines(folder / "cpu.max") or [line for file in of_version_1 for line in _lines(file)]).split()
    quota, period = (int(x) if x.isdecimal() else 0 for x in found) if len(found) == 2 else (0, 0)
    return quota / period if quota and period else math.inf  # "max" and -1 stand for no limit


def _lines(file: Path) -> list[str]:
    """Return the lines of a file that are not empty; none where it cannot be read."""
    try:
        text = file.read_text("utf-8", "surrogateescape")
    except OSError:
        return []
    return [line for line in text.split("\n") if line]
