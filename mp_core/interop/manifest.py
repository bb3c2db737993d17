"""The journal of a job in its output folder: what the job is and which parts are done, so that it can be resumed."""

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

_NAME = ".mp_core_manifest.jsonl"  # hidden, so that programs that read all files of the folder skip it
_MOST = 1 << 30  # most bytes of the journal: enough for some million parts


@dataclass(frozen=True, slots=True)
class OutputPart:
    """A part of a job; one task writes it into one file."""

    name: str  # The name of the file in the output folder.
    key: str  # A digest of the inputs.
    arguments: tuple[Any, ...] = ()  # The task and its arguments.


class Manifest:
    """A journal: one line for the job, then one per finished part. It is locked: only one process can use it.

    The output folder is created if it does not exist. `job` is what the parts have in common, as plain values. `names`
    is a shell pattern for the names of parts of any job of this kind: no other file in the folder is ever removed.
    `force` allows to replace the output of another job; otherwise, and for a folder with files of no job,
    FileExistsError is raised. `done` has the results of tasks by the names of their parts. A part must not be outside
    of the folder (links included).
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
        """Return the finished parts; raise unless the folder is empty or has this job."""
        if not self._path.exists():
            found = next(self.folder.iterdir(), None)
            if found is not None:
                raise FileExistsError(
                    f"{self.folder} has {found.name!r} and is not the output of a job; choose an empty or new folder"
                )
            return {}
        if self._path.is_symlink():  # writing would change a file elsewhere
            raise ValueError(f"{self._path} is not a regular file: it is a link")
        lines = [_parse(line) for line in read_file(self._path, _MOST).splitlines()]
        job, records = lines[0] if lines else None, [line for line in lines[1:] if line and "part" in line]
        if job != self._job:
            if not force:
                changed = {name for name in {*(job or {}), *self._job} if (job or {}).get(name) != self._job.get(name)}
                names = ", ".join(sorted(changed))
                other = f"the output of a job with another {names}"
                raise FileExistsError(f"{self.folder} is {other}; use force (--force) to replace it")
            self._replaces = True
            return {}
        for record in records:
            path_in(self.folder, record["part"], str(self._path))
        return {record["part"]: record for record in records}

    def begin(self, parts: Iterable[OutputPart]) -> list[OutputPart]:
        """Return the parts that are not done; remove the files and entries of parts that no longer exist."""
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
        for path in self.folder.glob(".*.tmp"):  # left by workers that were killed
            path.unlink(missing_ok=True)
        self.done = kept
        with new_file(self._path, force=True) as stream:
            stream.write(b"".join(map(_line, [self._job, *kept.values()])))
        return [part for part in known.values() if part.name not in kept]

    def add(self, part: OutputPart, result: Mapping[str, Any]) -> None:
        """Record that a part is done, and the size of its file: if the file is truncated later, the part is redone."""
        size = (self.folder / part.name).stat().st_size
        record = {"part": part.name, "key": part.key, "size": size, **result}
        with naming(self._path), open(self._path, "ab") as stream:
            stream.write(_line(record))
            stream.flush()
            os.fsync(stream.fileno())
        self.done[part.name] = record


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line; None if the line is incomplete or of another program."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def digest(*contents: Any) -> str:
    """Return a digest of bytes, texts and plain values; each is hashed with its length, so that they cannot mix."""
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
