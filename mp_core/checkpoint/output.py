"""Files and folders that appear whole or not at all."""

import errno
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from mp_core.arrays import Array

__all__ = ["OutFile", "check_free", "replace", "temporary_beside"]


class OutFile:
    """A new file that is written at any place, from any thread, and is on the disk when it is closed."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def __enter__(self) -> "OutFile":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)

    def write(self, content: Array | bytes, start: int) -> None:
        """Write some bytes, or those of an array."""
        rest = memoryview(content if isinstance(content, bytes) else content.reshape(-1).view("uint8"))
        while rest:
            written = os.pwrite(self._descriptor, rest, start)
            rest, start = rest[written:], start + written


@contextmanager
def temporary_beside(target: Path) -> Iterator[Path]:
    """Yield a path that does not exist, beside `target`; at the end, nothing is there any more."""
    start = os.fsdecode(os.fsencode(target.name)[:100])  # a name may have 255 bytes
    temporary = target.with_name(f".{start}.{token_hex(4)}.tmp")
    try:
        yield temporary
    finally:
        with _held(signal.SIGTERM), _held(signal.SIGINT):
            if temporary.is_dir():
                shutil.rmtree(temporary)
            else:
                temporary.unlink(missing_ok=True)


def replace(temporary: Path, target: Path, names: Set[str], *, force: bool) -> None:
    """Put what is complete in its place; see :func:`check_free`."""
    check_free(target, names, force=force)
    with _held(signal.SIGTERM), _held(signal.SIGINT):
        if target.is_dir():
            _replace_folder(temporary, target)
        else:
            os.replace(temporary, target)
    _sync(target.parent)


def _replace_folder(temporary: Path, target: Path) -> None:
    """Do what rename() does only if the target is empty."""
    old = temporary.with_suffix(".old")
    try:
        os.rename(target, old)
        os.rename(temporary, target)
    finally:  # also of an interrupt, wherever it came
        if not temporary.exists():
            shutil.rmtree(old)
        elif old.exists() and not target.exists():
            os.rename(old, target)


@contextmanager
def _held(number: signal.Signals) -> Iterator[None]:
    """Let a signal wait until this ends; it interrupts the main thread only, and only there it can be held."""
    before = signal.getsignal(number)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    try:
        signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        signal.signal(number, before)
        if came:
            signal.raise_signal(number)


def check_free(target: Path, names: Set[str], *, force: bool) -> None:
    """Raise unless a file, or a folder that will hold the files `names`, may be put there.

    Raises
    ------
    FileExistsError
        It is there and `force` is false, it is the other of file and folder, or a folder that holds other files too.
    FileNotFoundError
        There is no folder to put it in.
    """
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target.parent))
    if not os.path.lexists(target):
        return
    if target.is_dir() != bool(names):
        raise FileExistsError(f"{target} exists and is {'a' if target.is_dir() else 'no'} folder")
    if not force:
        raise FileExistsError(f"{target} exists; force (--force) replaces it")
    found = (path for path in target.rglob("*") if path.is_symlink() or not path.is_dir()) if names else ()
    other = next((path for path in found if path.relative_to(target).as_posix() not in names), None)
    if other:
        raise FileExistsError(f"{target} holds {other.name!r}, which a conversion would not write: it is not replaced")


def _sync(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
