"""The CPU time that Linux lets this process use: the least quota of its control groups and of those above them."""

import math
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["cpu_quota"]


def cpu_quota(process: Path = Path("/proc/self")) -> float:
    """Return how much CPU time a process may use, in CPUs; infinity without a limit, and without control groups.

    Parameters
    ----------
    process : Path
        The folder of the process below ``/proc``. Its files ``cgroup`` and ``mountinfo`` say where its groups are.

    Examples
    --------
    >>> cpu_quota() > 0
    True
    """
    try:
        return min(map(_quota, _folders(process)), default=math.inf)
    except ValueError:  # not the files of Linux
        return math.inf


def _folders(process: Path) -> Iterator[Path]:
    """Yield the folders of the groups of a process, with all that are above them and can be seen."""
    groups = dict(_groups(process / "cgroup"))
    for kind, root, mounted in _mounts(process / "mountinfo"):
        group = groups.get(kind)
        if group is None:
            continue
        # A container may see its own group as the root, and the path of another one, or a path that leads out.
        inside = group.relative_to(root) if group.is_relative_to(root) and ".." not in group.parts else PurePosixPath()
        yield from (mounted / level for level in (inside, *inside.parents))


def _groups(file: Path) -> Iterator[tuple[str, PurePosixPath]]:
    """Yield the hierarchies that may have a quota, ``cgroup2`` and ``cgroup``, with the path of the group in each."""
    for line in _lines(file):  # as 0::/system.slice/x.service or 4:cpu,cpuacct:/docker/1f
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            yield "cgroup" if controllers else "cgroup2", PurePosixPath(path)


def _mounts(file: Path) -> Iterator[tuple[str, PurePosixPath, Path]]:
    """Yield where the hierarchies of :func:`_groups` are mounted: type, the group that is mounted, and the folder."""
    for line in _lines(file):  # as 31 23 0:28 /docker/1f /sys/fs/cgroup/cpu rw,nosuid master:9 - cgroup cgroup rw,cpu
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
