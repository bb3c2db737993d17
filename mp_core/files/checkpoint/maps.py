"""Files that are mapped into memory. If one becomes shorter, the system ends a process that reads behind its end."""

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

__all__ = ["Maps", "map_file", "map_open", "noted"]


class Maps:
    """Mapped files, as long as something reads them. A pickled copy, in another process, has none."""

    def __init__(self) -> None:
        self._files: list[tuple[ref[mmap], str, int]] = []

    def add(self, content: mmap, path: str, end: int) -> None:
        """Add a map that ends at a byte of its file."""
        self._files.append((ref(content), path, end))

    @property
    def are_whole(self) -> bool:
        """Whether all files are as long as when they were mapped."""
        return self._shorter() is None

    def check(self) -> None:
        """Raise OSError, with its name, if a file has become shorter."""
        shorter = self._shorter()
        if shorter is not None:
            path, end, size = shorter
            told = f"the file had {end} bytes when it was opened, and has {size} now: open it again"
            raise OSError(errno.EIO, told, path)

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


_NOTED: ContextVar[Maps | None] = ContextVar("_NOTED", default=None)


@contextmanager
def noted() -> Iterator[Maps]:
    """Yield what gets all files that the block maps."""
    maps = Maps()
    token = _NOTED.set(maps)
    try:
        yield maps
    finally:
        _NOTED.reset(token)


def map_file(path: str | PathLike[str]) -> Array:
    """Map the bytes of a regular file into memory, read-only: they take memory where they are read.

    Raises
    ------
    OSError
        The file is missing or cannot be read.
    ValueError
        It is a pipe or a device.
    """
    with naming(path), open_regular(path) as file:
        return map_open(file, path)


def map_open(file: BinaryIO, path: str | PathLike[str], start: int = 0, count: int | None = None) -> Array:
    """Return so many bytes of an open file, by default all, which are read as they are needed.

    Raises
    ------
    OSError
        The file cannot be mapped.
    ValueError
        It has no such bytes.
    """
    if not fstat(file.fileno()).st_size:
        return np.zeros(0, np.uint8)
    content = np.memmap(file, np.uint8, "r", start, count)
    whole, maps = content.view(np.ndarray), _NOTED.get()
    if maps is not None and (found := file_map(whole)) is not None:
        maps.add(found, fspath(path), start + content.size)
    return whole
