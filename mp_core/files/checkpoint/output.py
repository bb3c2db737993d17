"""Write files and folders so that they appear complete or not at all."""

import errno
import os
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from mp_core.arrays import Array
from mp_core.utilities.system import ENDING, files_below, is_taken, sync_folder, write_at

__all__ = [
    "OutFile",
    "check_free",
    "check_space",
    "naming",
    "new_file",
    "replace",
    "signals_deferred",
    "temporary_beside",
]

_SPARE_PIPES = 2  # they reserve 4 descriptors: removing a folder needs one per level of nesting, and another


class OutFile:
    """A new file that any thread may write at any offset; it is synced to the disk when it is closed."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._stream = FileIO(path, "xb")
        self._descriptor = self._stream.fileno()

    def __enter__(self) -> "OutFile":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                with naming(self._path):
                    os.fsync(self._descriptor)
        finally:
            self._stream.close()

    def write(self, content: Array | bytes, start: int) -> None:
        """Write bytes, or those of an array, at byte `start`."""
        rest = memoryview(content if isinstance(content, bytes) else content.reshape(-1).view("uint8"))
        with naming(self._path):
            while rest:
                written = write_at(self._descriptor, rest, start)
                rest, start = rest[written:], start + written


class naming:  # noqa: N801 - used as a function; an interrupted generator would keep the frames alive
    """Add a path to an OSError without a file name."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _frames: object) -> None:
        """Set the file name of an OSError that has none."""
        if isinstance(error, OSError) and error.filename is None:
            error.filename = os.fspath(self._path)


@contextmanager
def new_file(target: Path, *, force: bool, inputs: Iterable[Path] = ()) -> Iterator[BinaryIO]:
    """Yield a stream whose bytes become the file `target` if the block ends without an error.

    A pipe or a device is written directly. `target` must not be one of the files `inputs`; see :func:`check_free`.
    """
    if target.exists() and not stat.S_ISREG(target.stat().st_mode) and not target.is_dir():
        with naming(target), open(target, "wb") as stream:
            yield stream
        return
    target, inputs = Path(os.path.realpath(target)), list(inputs)
    check_free(target, set(), inputs, force=force)
    with temporary_beside(target) as temporary:
        with naming(temporary), open(temporary, "xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        replace(temporary, target, set(), inputs, force=force)


@contextmanager
def temporary_beside(target: Path) -> Iterator[Path]:
    """Yield an unused path beside `target`; at the end, remove what the block wrote there.

    In errors, the path is replaced by `target`.
    """
    start = os.fsdecode(os.fsencode(target.name)[:100])  # a name may have 255 bytes
    temporary = target.with_name(f".{start}.{token_hex(4)}.tmp")
    with ExitStack() as spare:
        with naming(target):
            for _ in range(_SPARE_PIPES):
                for descriptor in os.pipe():
                    spare.callback(os.close, descriptor)
        try:
            yield temporary
        except OSError as error:
            for attribute in ("filename", "filename2"):
                name = getattr(error, attribute)
                if isinstance(name, str | Path):
                    setattr(error, attribute, os.fspath(name).replace(str(temporary), str(target)))
            raise
        finally:
            with signals_deferred():
                spare.close()
                _remove(temporary)


def check_space(folder: Path, needed: int) -> None:
    """Raise OSError unless the disk of `folder` has `needed` free bytes."""
    if shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {needed} bytes are needed", str(folder))


def replace(temporary: Path, target: Path, names: Set[str], inputs: Iterable[Path], *, force: bool) -> None:
    """Move a complete file or folder to `target`; see :func:`check_free`."""
    check_free(target, names, inputs, force=force)
    with signals_deferred():
        if target.is_dir():
            _replace_folder(temporary, target)
        else:
            os.replace(temporary, target)
        with naming(target):
            sync_folder(target.parent)


def _replace_folder(temporary: Path, target: Path) -> None:
    """Replace a folder that is not empty, which ``rename`` cannot do."""
    old = temporary.with_suffix(".old")
    try:
        os.rename(target, old)
        os.rename(temporary, target)
    finally:  # also after an interrupt at any point
        _twice(_settle, temporary, target, old)


def _settle(temporary: Path, target: Path, old: Path) -> None:
    """Remove the old folder, or move it back if nothing replaced it."""
    if not is_taken(temporary):
        _remove(old)
    elif is_taken(old) and not is_taken(target):
        os.rename(old, target)


def _remove(path: Path) -> None:
    """Remove a file, or a folder and its contents, if it exists."""
    _twice(_remove_at_once, path)


def _remove_at_once(path: Path) -> None:
    if not is_taken(path):
        return
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _twice(clean: Callable[..., object], *paths: Path) -> None:
    """Clean up; if that fails, try once more, so that a single error leaves nothing behind."""
    try:
        clean(*paths)
    except OSError:
        clean(*paths)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer the signals of :data:`~mp_core.utilities.system.ENDING` until the block ends."""
    with ExitStack() as stack:
        for number in ENDING:
            stack.enter_context(_signal_deferred(number))
        yield


@contextmanager
def _signal_deferred(number: signal.Signals) -> Iterator[None]:
    """Defer a signal until the block ends. Python handles signals only in the main thread; elsewhere do nothing."""
    before = signal.getsignal(number)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    try:
        signal.signal(number, lambda number, _: received.append(number))
        yield
    finally:
        signal.signal(number, before)
        if received:
            signal.raise_signal(number)


def check_free(target: Path, names: Set[str], inputs: Iterable[Path], *, force: bool) -> None:
    """Raise unless `target` may be written: as a file, or as a folder with the files `names` if there are any.

    It raises FileExistsError if `target` exists and `force` is false; or it is a folder where a file will be written,
    or the reverse; or it is a folder with files that are not in `names`; or it is, or has, one of the files `inputs`,
    under any name or link.
    """
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target.parent))
    if not is_taken(target):
        return
    _refuse_inputs(target, inputs)
    if target.is_dir() != bool(names):
        raise FileExistsError(f"{target} exists and is {'a' if target.is_dir() else 'not a'} folder")
    if not force:
        raise FileExistsError(f"{target} exists; use force (--force) to replace it")
    found = files_below(target) if names else ()
    other = next((path for path in found if path.relative_to(target).as_posix() not in names), None)
    if other:
        raise FileExistsError(f"{target} has {other.name!r}, which a conversion would not write: it is not replaced")


def _refuse_inputs(target: Path, inputs: Iterable[Path]) -> None:
    """Raise if `target` is, or has, one of the files from which the output is computed."""
    known = {_identity(path): path for path in inputs if path.exists()}
    for path in (target, *files_below(target)):
        if path.exists() and not path.is_dir() and _identity(path) in known:
            raise FileExistsError(f"the output {path} is the input {known[_identity(path)]}: it is not replaced")


def _identity(path: Path) -> tuple[int, int]:
    """Return the device and inode of a file: equal for two names of the same file."""
    found = path.stat()
    return found.st_dev, found.st_ino
