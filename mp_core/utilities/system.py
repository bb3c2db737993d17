"""Functions that differ between operating systems: Windows and macOS lack some system calls of Linux."""

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from mp_core.core.scopes import Descriptor

__all__ = [
    "ENDING",
    "after_fork",
    "files_below",
    "is_present",
    "is_taken",
    "lock_folder",
    "lock_for_forks",
    "peak_rss_bytes",
    "read_at",
    "reading_failure",
    "sync_folder",
    "write_at",
]

T = TypeVar("T")

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that end the process, but let it remove its unfinished files first."""

_BINARY: int = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOINHERIT", 0)
"""Flags for ``os.open``: do not translate line ends; children do not inherit the descriptor."""

_AT_ONCE = 1 << 30  # most bytes per call; macOS fails for 2^31
_SEEKING = threading.Lock()


def read_at(descriptor: int, room: memoryview, start: int) -> int:
    """Read at byte `start` of a file, from any thread; return the number of bytes read."""
    room = room[:_AT_ONCE]
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [room], start)
    with _SEEKING:
        os.lseek(descriptor, start, os.SEEK_SET)
        content = os.read(descriptor, len(room))
    room[: len(content)] = content
    return len(content)


def write_at(descriptor: int, content: memoryview, start: int) -> int:
    """Write at byte `start` of a file, from any thread; return the number of bytes written."""
    content = content[:_AT_ONCE]
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, content, start)
    with _SEEKING:
        os.lseek(descriptor, start, os.SEEK_SET)
        return os.write(descriptor, content)


def reading_failure(error: Exception) -> OSError | None:
    """Return the OSError behind an error of a library if reading failed; None if the file is damaged.

    zipfile raises BadZipFile also if the system cannot read the file. In a damaged file it may seek to invalid offsets;
    that raises OSError with EINVAL.
    """
    cause = error if isinstance(error, OSError) else error.__context__
    is_failure = isinstance(cause, OSError) and cause.errno not in (None, errno.EINVAL)
    return cause if is_failure else None  # type: ignore[return-value]


def is_taken(path: str | os.PathLike[str]) -> bool:
    """Return whether a path exists, even as a broken link; if that is unknown, raise OSError."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_present(path: str | os.PathLike[str]) -> bool:
    """Return whether an optional file or folder exists; raise OSError if the system cannot tell.

    A broken link raises FileNotFoundError: the Hub's cache has one for a file that it lost, and ``Path.exists`` would
    hide that.
    """
    path = Path(path)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        found = next(filter(is_taken, (path, *path.parents)), path)
        if found.is_symlink() and not found.exists():
            raise FileNotFoundError(f"{found} is a link to {os.readlink(found)}, which does not exist") from None
        return False
    return True


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, and all links, also those to folders; nothing if it is not a folder.

    A folder that cannot be read raises OSError; ``Path.rglob`` would skip it.
    """

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    for parent, folders, files in os.walk(folder, onerror=fail):
        links = (name for name in folders if os.path.islink(os.path.join(parent, name)))
        yield from (Path(parent, name) for name in (*files, *links))


def sync_folder(folder: Path) -> None:
    """Wait until the entries of a folder are on the disk. Windows has no call for that."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_folder(folder: Path) -> Descriptor:
    """Lock a folder against other processes until the returned descriptor is closed or garbage-collected.

    On Windows a file beside the folder is locked; the file is not removed. If another process has the lock, raise
    BlockingIOError.
    """
    beside = folder.with_name(f".{folder.name}.lock")
    windows = sys.platform == "win32"
    lock = Descriptor(beside, os.O_RDWR | os.O_CREAT | _BINARY) if windows else Descriptor(folder, os.O_RDONLY)
    try:
        _lock(lock.fileno())
    except BaseException:
        lock.close()
        raise
    return lock


def _lock(descriptor: int) -> None:
    """Lock an open file or folder; raise BlockingIOError if another process has locked it."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from None
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def after_fork(run: Callable[[], object]) -> None:
    """Call `run` in the child of every fork, if the system has forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=run)


def lock_for_forks(make: Callable[[], T]) -> list[T]:
    """Return a list of one lock, which is replaced in the child of every fork.

    A thread of the parent may hold the old lock during the fork; the child has no thread that would release it.
    """
    locks = [make()]
    after_fork(lambda: locks.__setitem__(0, make()))
    return locks


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process in bytes, since its exec (on macOS possibly from before)."""
    if sys.platform == "win32":
        return _peak_working_set()
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
    lines = Path("/proc/self/status").read_text().splitlines()  # getrusage would include the parent before the exec
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024


def _peak_working_set() -> int:
    """Return the peak of the working set on Windows."""
    import ctypes

    class Counters(ctypes.Structure):  # PROCESS_MEMORY_COUNTERS of psapi.h
        _fields_ = (
            ("cb", ctypes.c_uint32),
            ("faults", ctypes.c_uint32),
            ("peak", ctypes.c_size_t),
            ("others", ctypes.c_size_t * 7),
        )

    counters = Counters(ctypes.sizeof(Counters))
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.K32GetProcessMemoryInfo.argtypes = (ctypes.c_void_p, ctypes.POINTER(Counters), ctypes.c_uint32)
    if not kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), counters, counters.cb):
        raise ctypes.WinError(ctypes.get_last_error())  # type: ignore[attr-defined]
    return int(counters.peak)
