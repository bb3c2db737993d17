"""The resources of this process: memory, descriptors and threads."""

import contextlib
import ctypes
import gc
import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import NamedTuple

__all__ = ["Held", "held", "opened", "return_pages"]


class _Mallinfo(ctypes.Structure):
    """What mallinfo2 of glibc returns: numbers of bytes and of blocks, of all arenas."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                     "keepcost")
    ]  # fmt: skip


libc = ctypes.CDLL(None)
PR_SET_THP_DISABLE = 41  # of prctl(2)
M_ARENA_MAX = -8  # of mallopt(3)


class Held(NamedTuple):
    """Python's blocks, bytes of malloc, resident bytes, and numbers of mapped files, open descriptors and threads.

    Resident are the pages without a file: those with one come and go as the kernel likes.
    """

    blocks: int
    malloc: int
    resident: int
    mappings: int
    descriptors: int
    threads: int


def held():
    """Count what is in use after garbage was collected and malloc has returned what is free."""
    gc.collect()
    blocks, allocated = sys.getallocatedblocks(), 0
    if hasattr(libc, "mallinfo2"):  # the GNU C library
        libc.mallinfo2.restype = _Mallinfo
        info = libc.mallinfo2()
        allocated = info.uordblks + info.hblkhd
        libc.malloc_trim(ctypes.c_size_t(0))
    _, pages, with_file, *_ = map(int, Path("/proc/self/statm").read_text().split())
    resident = (pages - with_file) * os.sysconf("SC_PAGE_SIZE")
    mappings = sum(line.split()[4] != "0" for line in Path("/proc/self/maps").read_text().splitlines())  # inodes
    return Held(blocks, allocated, resident, mappings, len(os.listdir("/proc/self/fd")), threading.active_count())


def return_pages():
    """Let no page be resident that nothing uses; to be called before the first thread is started.

    Linux joins pages to huge ones at any time, and all bytes of one are resident. glibc gives threads up to eight
    arenas a CPU, each of which keeps the pages at its end that a thread once used: malloc_trim returns the end of the
    first arena only.
    """
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_THP_DISABLE, *map(ctypes.c_ulong, (1, 0, 0, 0)))
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_ARENA_MAX, 1)


def opened():
    """Return what the open descriptors are of -> how many; nothing where the system does not tell."""
    found = Counter()
    if not Path("/proc/self/fd").is_dir():
        return found
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor by which the folder is read
            found[os.readlink(path)] += 1
    return found
