"""Differences between operating systems: files, signals and memory as in Linux, and without what other systems lack."""

import errno
import os
import sys
from pathlib import Path

import numpy as np
import processes
import pytest

from mp_core.policies.autocast import memory
from mp_core.utilities import system

ROOT = Path(__file__).parents[1]


@pytest.fixture(params=["by one call", "by two"])
def way(request, monkeypatch):
    """Reading and writing at a place, as Linux does it, and as systems without these calls."""
    if request.param == "by two":
        monkeypatch.delattr(os, "preadv", raising=False)
        monkeypatch.delattr(os, "pwrite", raising=False)


def test_files_are_read_and_written_at_any_place(way, tmp_path):
    path = tmp_path / "file"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0))
    try:
        assert system.write_at(descriptor, memoryview(b"\n\r\n world"), 5) == 9
        assert system.write_at(descriptor, memoryview(b"hello"), 0) == 5
        room = np.zeros(12, np.uint8)
        assert system.read_at(descriptor, memoryview(room), 4) == 10
        assert bytes(room) == b"o\n\r\n world\0\0"
        assert system.read_at(descriptor, memoryview(room), 100) == 0
    finally:
        os.close(descriptor)


def test_a_folder_is_held_until_its_descriptor_is_closed(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    held = system.lock_folder(folder)
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            system.lock_folder(folder)
    held.close()
    system.lock_folder(folder).close()
    system.sync_folder(folder)
    assert not list(folder.iterdir())


def refuse(path, *_, **__):
    raise PermissionError(errno.EACCES, "refused", str(path))


def test_what_the_system_does_not_say_is_not_taken_for_no(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    assert system.is_taken(tmp_path / "link")
    assert not system.is_taken(tmp_path / "nothing") and not system.is_taken(tmp_path / "link/nothing")
    monkeypatch.setattr(os, "lstat", refuse)
    with pytest.raises(PermissionError):
        system.is_taken(tmp_path)


def test_files_below_a_folder_are_all_or_an_error(tmp_path, monkeypatch):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").touch()
    (tmp_path / "a/link").symlink_to(tmp_path / "a/b", target_is_directory=True)
    assert sorted(system.files_below(tmp_path)) == [tmp_path / "a/b/c", tmp_path / "a/link"]
    assert not [*system.files_below(tmp_path / "a/b/c"), *system.files_below(tmp_path / "nothing")]
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError):
        list(system.files_below(tmp_path))


def test_peak_memory_covers_what_was_written():
    code = "import numpy as np; from mp_core.utilities import system; x = np.ones(25_000_000); "
    code += "print(system.peak_rss_bytes() - x.nbytes)"
    beside = int(processes.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    assert 0 < beside < 500e6


def test_heaps_are_left_as_they_are_where_python_cannot_call_c(monkeypatch):
    monkeypatch.setitem(sys.modules, "ctypes", None)  # as where it was built without libffi
    memory.trim_heap()


def test_modules_that_fork_import_without_fork():
    # NumPy's generators import `random`, which asks for it.
    code = "import os, numpy.random; vars(os).pop('register_at_fork', 0); import mp_core.plans"
    processes.run([sys.executable, "-c", code], check=True)


def test_signals_that_end_a_process_exist():
    assert {"SIGINT", "SIGTERM"} <= {number.name for number in system.ENDING}


@pytest.mark.skipif(not (ROOT / ".ci").is_dir(), reason="reads the sources")
def test_no_other_file_of_the_library_names_an_operating_system():
    folder = ROOT / "mp_core/core/library"
    names = ("pthread", "sched_", "unistd.h", "__linux__", "__APPLE__", "_WIN32", "aligned_alloc")
    found = {
        (path.name, name)
        for path in folder.glob("*.[ch]")
        if not path.name.startswith("system")
        for name in names
        if name in path.read_text()
    }
    assert not found
