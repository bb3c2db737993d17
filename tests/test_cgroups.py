"""The CPU quota of control groups: trees as Linux, Docker, Kubernetes and systemd make them, and a real group."""

import math
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import processes
import pytest

from mp_core.core.cgroups import cpu_quota

UNLIMITED = {"cpu.max": "max 100000\n"}
OLD_UNLIMITED = {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}


def old(cpus, period=100000):
    return {"cpu.cfs_quota_us": f"{int(cpus * period)}\n", "cpu.cfs_period_us": f"{period}\n"}


V2 = "30 23 0:26 {root} {at} rw,nosuid,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "32 31 0:29 {root} {at} rw,relatime - cgroup cgroup rw,cpu,cpuacct"
OTHER = "33 31 0:30 / {at} rw,relatime master:5 - cgroup cgroup rw,cpuset"

# Name -> lines of cgroup; lines of mountinfo with the mounted group and the folder; folder -> its files; CPUs.
TREES = {
    "no control groups": ([], [], {}, math.inf),
    "version 2, the root only": (["0::/"], [(V2, "/", "cg")], {"cg": {}}, math.inf),
    "version 2, its own group": (
        ["0::/a"], [(V2, "/", "cg")], {"cg": {}, "cg/a": {"cpu.max": "150000 100000\n"}}, 1.5
    ),
    "version 2, no limit": (["0::/a"], [(V2, "/", "cg")], {"cg/a": UNLIMITED}, math.inf),
    "systemd: the slice above has less": (
        ["0::/s.slice/x.service"], [(V2, "/", "cg")],
        {"cg/s.slice": {"cpu.max": "50000 100000\n"}, "cg/s.slice/x.service": {"cpu.max": "400000 100000\n"}}, 0.5,
    ),
    "Kubernetes: the pod has the limit, the container none": (
        ["0::/kubepods/pod1/c2"], [(V2, "/", "cg")],
        {"cg/kubepods/pod1": {"cpu.max": "200000 100000\n"}, "cg/kubepods/pod1/c2": UNLIMITED}, 2.0,
    ),
    "a namespace: the group is the root": (["0::/"], [(V2, "/", "cg")], {"cg": {"cpu.max": "300000 100000\n"}}, 3.0),
    "Docker: a part of the tree is mounted": (
        ["4:cpu,cpuacct:/docker/1f/x"], [(V1, "/docker/1f", "cg/cpu")],
        {"cg/cpu": old(2), "cg/cpu/x": old(4), "cg/cpu/docker/1f/x": old(1)}, 2.0,
    ),
    "the group lies outside of what is mounted": (
        ["4:cpu,cpuacct:/elsewhere"], [(V1, "/docker/1f", "cg/cpu")], {"cg/cpu": old(2)}, 2.0
    ),
    "the group lies outside of the namespace": (["0::/../b"], [(V2, "/", "cg")], {"cg": {"cpu.max": "8000 4000"}}, 2.0),
    "version 1, two levels": (
        ["9:name=systemd:/z", "4:cpu,cpuacct:/a/b"], [(V1, "/", "cg/cpu")],
        {"cg/cpu": OLD_UNLIMITED, "cg/cpu/a": old(1.5), "cg/cpu/a/b": OLD_UNLIMITED}, 1.5,
    ),
    "both versions: the quota is in version 1": (
        ["4:cpu,cpuacct:/a", "0::/u"], [(OTHER, "/", "cg/cpuset"), (V1, "/", "cg/cpu"), (V2, "/", "cg/unified")],
        {"cg/cpu/a": old(2, 50000), "cg/unified/u": {}, "cg/cpuset/a": old(1)}, 2.0,
    ),
    "both versions: the least counts": (
        ["4:cpu,cpuacct:/a", "0::/u"], [(V1, "/", "cg/cpu"), (V2, "/", "cg/unified")],
        {"cg/cpu/a": old(2), "cg/unified/u": {"cpu.max": "100000 100000"}}, 1.0,
    ),
    "a colon and a space in the names": (
        ["0::/a:b c"], [(V2, "/", "c g")], {"c g/a:b c": {"cpu.max": "100000 50000"}}, 2.0
    ),
    "a group that was removed": (["0::/a/gone (deleted)"], [(V2, "/", "cg")], {"cg/a": {"cpu.max": "5000 5000"}}, 1.0),
    "files that hold something else": (
        ["0::/a/b"], [(V2, "/", "cg")],
        {"cg": {"cpu.max": "100000 0"}, "cg/a": {"cpu.max": ""}, "cg/a/b": {"cpu.max": "many things"}}, math.inf,
    ),
    "another kind of line": (["0"], [], {}, math.inf),
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_the_least_quota_of_all_levels_counts(tmp_path, name):
    groups, mounts, folders, expected = TREES[name]
    for folder, files in folders.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (tmp_path / folder / file).write_text(text)
    (tmp_path / "self").mkdir()
    lines = [line.format(root=root, at=str(tmp_path / at).replace(" ", r"\040")) for line, root, at in mounts]
    lines.insert(0, "23 1 8:1 / / rw,relatime - ext4 /dev/root rw")
    (tmp_path / "self" / "mountinfo").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "self" / "cgroup").write_text("".join(f"{line}\n" for line in groups))
    assert cpu_quota(tmp_path / "self") == expected


def test_a_system_without_proc_has_no_limit(tmp_path):
    assert cpu_quota(tmp_path) == math.inf


@contextmanager
def nested_group(cpus):
    """A group without a limit in a group that has one: the folder of the inner one."""
    v1, v2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    outer = (v1 if v1.exists() else v2) / f"mp_core-test-{os.getpid()}"
    inner = outer / "inner"
    try:
        outer.mkdir()
        inner.mkdir()
        if v1.exists():
            (outer / "cpu.cfs_quota_us").write_text(f"{int(cpus * 100000)}")
        else:
            (outer / "cpu.max").write_text(f"{int(cpus * 100000)} 100000")
        yield inner
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    finally:
        for folder in (inner, outer):
            if folder.exists():
                folder.rmdir()


def test_a_process_in_a_nested_group_has_as_many_threads_as_the_quota_allows():
    code = """if True:
        import os, sys
        with open(sys.argv[1] + "/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
        from mp_core.core.cpu import threads_and_reason
        print(*threads_and_reason(), sep="|")
    """
    clean = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    with nested_group(1.0) as group:
        done = processes.run([sys.executable, "-c", code, group], env=clean, capture_output=True, text=True)
        if "OSError" in done.stderr or "PermissionError" in done.stderr:
            pytest.skip("no process can be moved into a control group here")
    expected = "1|cgroup CPU quota" if len(os.sched_getaffinity(0)) > 1 else "1|CPU affinity"
    assert (done.stdout.strip(), done.stderr) == (expected, "")
