"""Map files into memory, and check that they are not truncated: reading beyond the end of a file ends the process."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from mmap import mmap
from os import PathLike, fspath, fstat
from typing import BinaryIO
from weakref import ref

import numpy as np

from mp_core.arrays import Array
from mp_core.core.convert import file_map
from mp_core.files.checkpoint.header import open_regular
from mp_core.files.checkpoint.output import naming

__all__ = ["Maps", "collected_maps", "map_file", "map_open"]


class Maps:
    """Weak references to mapped files. A pickled copy, in another process, has none."""

    def __init__(self) -> None:
        self._files: list[tuple[ref[mmap], str, int]] = []

    def add(self, content: mmap, path: str, end: int) -> None:
        """Add a map; `end` is the byte of its file at which it ends."""
        self._files.append((ref(content), path, end))

    @property
    def are_whole(self) -> bool:
        """Whether all files are as long as when they were mapped."""
        return self._shorter() is None

    def check(self) -> None:
        """Raise OSError, with the name of the file, if a file has become shorter."""
        shorter = self._shorter()
        if shorter is not None:
            path, end, size = shorter
            reason = f"the file had {end} bytes when it was opened, and has {size} now: open it again"
            raise OSError(errno.EIO, reason, path)

    def _shorter(self) -> tuple[str, int, int] | None:
        for known, path, end in self._files:
            content = known()
            if content is None:
                continue
            with naming(path):
                size = content.size()
            if size < end:
                return path, end, size
        return None

    def __deepcopy__(self, memo: object) -> "Maps":
        return self

    def __reduce__(self) -> tuple[type["Maps"], tuple[()]]:
        return Maps, ()


_COLLECTOR: ContextVar[Maps | None] = ContextVar("_COLLECTOR", default=None)


@contextmanager
def collected_maps() -> Iterator[Maps]:
    """Yield a :class:`Maps` to which all files that the block maps are added."""
    maps = Maps()
    token = _COLLECTOR.set(maps)
    try:
        yield maps
    finally:
        _COLLECTOR.reset(token)


def map_file(path: str | PathLike[str]) -> Array:
    """Map the bytes of a regular file into memory, read-only; only pages that are read take memory."""
    with naming(path), open_regular(path) as file:
        return map_open(file, path)


def map_open(file: BinaryIO, path: str | PathLike[str], start: int = 0, count: int | None = None) -> Array:
    """Map `count` bytes of an open file from byte `start` on (default: all)."""
    if not fstat(file.fileno()).st_size:
        return np.zeros(0, np.uint8)
    content = np.memmap(file, np.uint8, "r", start, count)
    whole, maps = content.view(np.ndarray), _COLLECTOR.get()
    if maps is not None and (found := file_map(whole)) is not None:
        maps.add(found, fspath(path), start + content.size)
    return whole
