"""The record of a job in its output folder: what it is, which parts are done. By it a job goes on where it ended."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, Self

from mp_core.files.checkpoint.header import open_regular
from mp_core.files.checkpoint.output import naming, new_file
from mp_core.files.checkpoint.places import path_in
from mp_core.files.checkpoint.reading import read_file
from mp_core.utilities.system import files_below, lock_folder

__all__ = ["Manifest", "OutputPart", "digest", "digest_of_files"]

_NAME = ".mp_core_manifest.jsonl"  # hidden: whoever reads all files of the folder reads none but the output
_MOST = 1 << 30  # bytes of it: those of some million parts


@dataclass(frozen=True, slots=True)
class OutputPart:
    """A piece of a job, which one task writes into one file.

    Attributes
    ----------
    name : str
        That of the file, in the output folder.
    key : str
        A digest of the inputs.
    arguments : tuple
        What the task needs.
    """

    name: str
    key: str
    arguments: tuple[Any, ...] = ()


class Manifest:
    """A journal: a line for the job, then one for each part that is done. Only one process at a time holds it.

    Parameters
    ----------
    folder : Path
        The output; it is made if it is not there.
    job : mapping
        What the parts have in common, as plain values.
    names : str
        A shell pattern of the names of parts, of any job of this kind: nothing else in the folder is ever removed.
    force : bool
        Whether the output of another job may be replaced. What the journal of that job says is not followed.

    Attributes
    ----------
    done : dict of str to dict
        The name of a part -> what its task returned.

    Raises
    ------
    FileExistsError
        The folder is the output of another job and `force` is false, or of none; or a job is under way there.
    ValueError
        The journal is no regular file, or it names a part outside of the folder, by a link too.
    """

    def __init__(self, folder: Path, job: Mapping[str, Any], names: str, *, force: bool) -> None:
        self.folder, self._job, self._names = folder, json.loads(json.dumps(job)), names
        self._path, self._replaces = folder / _NAME, False
        folder.mkdir(exist_ok=True)
        try:
            self._lock = lock_folder(folder)
        except BlockingIOError:
            raise FileExistsError(f"another process is writing into {folder}") from None
        try:
            self.done = self._read(force)
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def _read(self, force: bool) -> dict[str, dict[str, Any]]:
        """Return what is done, or raise unless the folder is empty or holds this job."""
        if not self._path.exists():
            found = next(self.folder.iterdir(), None)
            if found is not None:
                raise FileExistsError(f"{self.folder} holds {found.name!r} and is the output of no job")
            return {}
        if self._path.is_symlink():  # what is written into it would be written elsewhere
            raise ValueError(f"{self._path} is not a regular file: it is a link")
        lines = [_parsed(line) for line in read_file(self._path, _MOST).splitlines()]
        job, records = lines[0] if lines else None, [line for line in lines[1:] if line and "part" in line]
        if job != self._job:
            if not force:
                changed = {name for name in {*(job or {}), *self._job} if (job or {}).get(name) != self._job.get(name)}
                names = ", ".join(sorted(changed))
                other = f"the output of a job with another {names}"
                raise FileExistsError(f"{self.folder} is {other}; use force to replace it")
            self._replaces = True
            return {}
        for record in records:
            path_in(self.folder, record["part"], str(self._path))
        return {record["part"]: record for record in records}

    def begin(self, parts: Iterable[OutputPart]) -> list[OutputPart]:
        """Return the parts that are to be done, and forget what is no part any more, its files included."""
        known, kept = {part.name: part for part in parts}, {}
        paths = {name: path_in(self.folder, name, "the job") for name in known}
        for name, record in self.done.items():
            same = name in known and record.get("key") == known[name].key
            if same and paths[name].exists() and paths[name].stat().st_size == record.get("size"):
                kept[name] = record
        for path in [*files_below(self.folder)]:
            name = path.relative_to(self.folder).as_posix()
            if name not in known and (self._replaces or name in self.done) and path.match(self._names):
                path.unlink(missing_ok=True)
        for path in self.folder.glob(".*.tmp"):  # of workers that were killed
            path.unlink(missing_ok=True)
        self.done = kept
        with new_file(self._path, force=True) as stream:
            stream.write(b"".join(map(_line, [self._job, *kept.values()])))
        return [part for part in known.values() if part.name not in kept]

    def add(self, part: OutputPart, result: Mapping[str, Any]) -> None:
        """Record that a part is done, and how many bytes its file has: one that is cut off later is no output."""
        size = (self.folder / part.name).stat().st_size
        record = {"part": part.name, "key": part.key, "size": size, **result}
        with naming(self._path), open(self._path, "ab") as stream:
            stream.write(_line(record))
            stream.flush()
            os.fsync(stream.fileno())
        self.done[part.name] = record


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return a line; None if the process ended while it wrote it, or another program wrote it."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def digest(*contents: Any) -> str:
    """Return a digest of bytes, texts and plain values, of which none can be taken for another."""
    found = sha256()
    for content in contents:
        code = content if isinstance(content, bytes) else json.dumps(content, sort_keys=True).encode()
        found.update(b"%d:" % len(code))
        found.update(code)
    return found.hexdigest()


def digest_of_files(folder: Path, names: Iterable[str]) -> str:
    """Return a digest of the names and the contents of files."""
    contents = []
    for name in sorted(names):
        with naming(folder / name), open_regular(folder / name) as file:
            contents += [name, file_digest(file, "sha256").hexdigest()]
    return digest(*contents)
